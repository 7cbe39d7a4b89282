"""Errors as data: a code, an HTTP status, and where in the schema it happened; text is rendered last."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class ErrorCode(StrEnum):
    """The stable codes. Every message begins with one; clients and dashboards match on them."""

    INVALID_SCHEMA = "invalid_schema"
    """Not a JSON Schema: malformed JSON, wrong keyword types, dangling or remote references."""
    INVALID_GRAMMAR = "invalid_grammar"
    """A regex, choice list, grammar or structural tag that cannot be parsed."""
    UNSUPPORTED_SCHEMA = "unsupported_schema"
    """A correct schema with something the pinned backend cannot enforce exactly."""
    UNSUPPORTED_KIND = "unsupported_kind"
    """A kind or dialect of constraint that the pinned backend does not have."""
    UNSUPPORTED_OPTION = "unsupported_option"
    """A request option that would drop or break the constraint."""
    UNSATISFIABLE = "unsatisfiable_schema"
    """No document at all satisfies it."""
    TOO_LARGE = "schema_too_large"
    """Past one of the limits in the settings."""
    TOO_COSTLY = "schema_too_costly"
    """A time, memory or step budget was reached while it was worked on."""
    UNAVAILABLE = "grammar_unavailable"
    """The service's own fault, or its queue is full; the same request may succeed later."""
    OVER_QUOTA = "tenant_over_quota"
    """This tenant has as much waiting as one tenant may; the same request may succeed later."""


POINTER_LIMIT: Final = 1024
"""Characters of a pointer; property names are the client's, and a message is not the place for a long one."""
_RETRYABLE: Final = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.OVER_QUOTA})
_STATUS: Final = {ErrorCode.UNAVAILABLE: 503, ErrorCode.OVER_QUOTA: 429}


@dataclass(eq=False)
class GrammarError(Exception):
    """Why a constraint is refused. Raised inside the core, carried as data across processes.

    `reason` is one sentence without the schema's text: schemas are private, digests are not.
    """

    code: ErrorCode
    reason: str
    pointer: str | None = None
    """RFC 6901 JSON pointer to the offending place, `""` for the whole document, None where there is none."""
    keyword: str | None = None
    hint: str | None = None
    more: tuple[GrammarError, ...] = ()
    """Further reasons, none with more of its own."""

    def __post_init__(self) -> None:
        if self.pointer is not None and len(self.pointer) > POINTER_LIMIT:
            self.pointer = self.pointer[:POINTER_LIMIT] + "…"
        # Exceptions are copied and pickled through their arguments.
        super().__init__(self.code, self.reason, self.pointer, self.keyword, self.hint, self.more)

    @property
    def http_status(self) -> int:
        return _STATUS.get(self.code, 400)

    @property
    def retryable(self) -> bool:
        return self.code in _RETRYABLE

    def __str__(self) -> str:
        """`CODE: KEYWORD at POINTER: REASON. HINT`, what is not there left out."""
        named = repr(self.keyword) if self.keyword else ""
        place = f"at {self.pointer!r}" if self.pointer is not None else ""
        where = f"{named} {place}".strip()
        hint = f" {self.hint}" if self.hint else ""
        return f"{self.code}: {where}: {self.reason}.{hint}" if where else f"{self.code}: {self.reason}.{hint}"

    @property
    def reasons(self) -> tuple[GrammarError, ...]:
        """Each by itself, this one first."""
        return (GrammarError(self.code, self.reason, self.pointer, self.keyword, self.hint), *self.more)

    def as_data(self) -> dict[str, Any]:
        """A dictionary that msgpack and JSON take; `from_data` reads it back. `more` is there where it is not empty."""
        data: dict[str, Any] = {
            "code": self.code.value,
            "reason": self.reason,
            "pointer": self.pointer,
            "keyword": self.keyword,
            "hint": self.hint,
        }
        return data | ({"more": [error.as_data() for error in self.more]} if self.more else {})

    def anew(self) -> GrammarError:
        """An equal one to raise: an exception that is raised again keeps the frames of every time before."""
        return GrammarError(self.code, self.reason, self.pointer, self.keyword, self.hint, self.more)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> GrammarError:
        more = tuple(cls.from_data(each) for each in data.get("more", ()))
        return cls(**{**data, "code": ErrorCode(data["code"]), "more": more})


def pointer(*parts: str | int) -> str:
    """Join path segments into an RFC 6901 pointer, escaping `~` and `/`."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


class StartupError(ValueError):
    """A configuration that must not start. Its text is one sentence that says what to do."""
