"""`format` as an assertion: the strings each name admits, as whole-string patterns.

The patterns follow the RFC that the specification names, so that both backends enforce the same thing and dates have
a calendar. Where an RFC has a rare long form (quoted e-mail local parts, leap seconds) it is left out: what is
produced is always valid.
"""

from __future__ import annotations

from typing import Final

_YEAR: Final = r"(?:[1-9]\d{3}|0[1-9]\d{2}|00[1-9]\d|000[1-9])"
_LEAP: Final = r"(?:\d{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE: Final = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    rf"|02-(?:0[1-9]|1\d|2[0-8]))|{_LEAP}-02-29)"
)
_CLOCK: Final = r"(?:[01]\d|2[0-3]):[0-5]\d"
_TIME: Final = rf"{_CLOCK}:[0-5]\d(?:\.\d+)?(?:[Zz]|[+-]{_CLOCK})"

_OCTET: Final = r"(?:25[0-5]|2[0-4]\d|1\d{2}|[1-9]?\d)"
_IPV4: Final = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H: Final = r"[0-9A-Fa-f]{1,4}"
_LS32: Final = rf"(?:{_H}:{_H}|{_IPV4})"
_IPV6: Final = (
    "(?:"
    + "|".join(
        [
            rf"(?:{_H}:){{6}}{_LS32}",
            rf"::(?:{_H}:){{5}}{_LS32}",
            rf"(?:{_H})?::(?:{_H}:){{4}}{_LS32}",
            rf"(?:(?:{_H}:){{0,1}}{_H})?::(?:{_H}:){{3}}{_LS32}",
            rf"(?:(?:{_H}:){{0,2}}{_H})?::(?:{_H}:){{2}}{_LS32}",
            rf"(?:(?:{_H}:){{0,3}}{_H})?::{_H}:{_LS32}",
            rf"(?:(?:{_H}:){{0,4}}{_H})?::{_LS32}",
            rf"(?:(?:{_H}:){{0,5}}{_H})?::{_H}",
            rf"(?:(?:{_H}:){{0,6}}{_H})?::",
        ]
    )
    + ")"
)


def _host(label: int, labels: int) -> str:
    """Host names of at most `labels` labels of at most `label` characters."""
    one = rf"[A-Za-z0-9](?:[-A-Za-z0-9]{{0,{label - 2}}}[A-Za-z0-9])?"
    return rf"{one}(?:\.{one}){{0,{labels - 1}}}"


# RFC 1123 allows labels of 63 and 253 characters in all; two shapes that keep within 253.
_HOSTNAME: Final = rf"(?:{_host(62, 4)}|{_host(30, 8)})"
_ATOM: Final = r"[-A-Za-z0-9!#$%&'*+/=?^_`{|}~]"
_EMAIL: Final = rf"{_ATOM}{{1,32}}(?:\.{_ATOM}{{1,31}})?@(?:{_HOSTNAME}|\[{_IPV4}\]|\[IPv6:{_IPV6}\])"

_HEX: Final = r"%[0-9A-Fa-f]{2}"
_UNRESERVED: Final = r"[-A-Za-z0-9._~]"
_PCHAR: Final = rf"(?:[-A-Za-z0-9._~!$&'()*+,;=:@]|{_HEX})"
_SEGMENT_NC: Final = rf"(?:[-A-Za-z0-9._~!$&'()*+,;=@]|{_HEX})"
_USER: Final = rf"(?:(?:[-A-Za-z0-9._~!$&'()*+,;=:]|{_HEX})*@)?"
_NAME: Final = rf"(?:[-A-Za-z0-9._~!$&'()*+,;=]|{_HEX})*"
_FUTURE: Final = r"v[0-9A-Fa-f]+\.[-A-Za-z0-9._~!$&'()*+,;=:]+"
_AUTHORITY: Final = rf"{_USER}(?:\[(?:{_IPV6}|{_FUTURE})\]|{_NAME})(?::\d*)?"
_TAIL: Final = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_ABEMPTY: Final = rf"(?:/{_PCHAR}*)*"
_ABSOLUTE: Final = rf"/(?:{_PCHAR}+{_ABEMPTY})?"
_URI: Final = rf"[A-Za-z][-A-Za-z0-9+.]*:(?://{_AUTHORITY}{_ABEMPTY}|{_ABSOLUTE}|{_PCHAR}+{_ABEMPTY}|){_TAIL}"
_RELATIVE: Final = rf"(?://{_AUTHORITY}{_ABEMPTY}|{_ABSOLUTE}|{_SEGMENT_NC}+{_ABEMPTY}|){_TAIL}"

_CLOCK_PART: Final = r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DAYS: Final = r"(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)"

PATTERNS: Final = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}[Tt]{_TIME}",
    "duration": rf"P(?:{_DAYS}(?:{_CLOCK_PART})?|{_CLOCK_PART}|\d+W)",
    "email": _EMAIL,
    "hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "uri-reference": rf"(?:{_URI}|{_RELATIVE})",
    "uuid": r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}",
    "json-pointer": r"(?:/(?:[^/~]|~[01])*)*",
    "relative-json-pointer": r"(?:0|[1-9]\d*)(?:#|(?:/(?:[^/~]|~[01])*)*)",
}
NAMED: Final = frozenset(PATTERNS) | {
    *("idn-email", "idn-hostname", "iri", "iri-reference", "uri-template", "regex"),
}
"""Every format the specification names. Any other asserts nothing."""
