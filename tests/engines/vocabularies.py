"""Small vocabularies with what large ones hide: tokens across characters, keys and documents, twins, padding."""

from __future__ import annotations

from vllm_grammar_backend.engines.vocabulary import Vocabulary

SPECIAL = 256
EOS = 257
OTHER_EOS = 258
STOP_TEXT = 259
"""An ordinary token, `}`, that a request may also name as a stop token."""

_LONGER = (
    b"}",
    *(b'{"', b'"}', b'":', b'": ', b'","', b'", "', b'":"', b'"age":', b'"a":{"', b"}}", b"]}", b"},", b'\\"', b'\\"}'),
    *(b"  ", b"\n  ", b"\n" + b" " * 40, b" " * 20, b", ", b",\n", b" {", b'" "', b"\t\t\t\t"),
    *(b"true", b"null", b"fals", b"12", b"-1", b"1.5e", b"e+", b"00"),
    *("é".encode(), "猫".encode(), "🐈".encode(), "🐈".encode()[:2], "🐈".encode()[2:], "猫".encode()[1:] + b'"}'),
    *(b"\xc3", b"\xa9a", b"ab", b"ab", b"abc", b"name", b"ada", b"\\u00", b"\\n", b"</t>", b"<t>", b"x<", b"t>{"),
    *(b"", b"\xff", b"\xc3\x28", b"<|im_end|>"),
)

_TOKENS = (*(bytes([byte]) for byte in range(256)), b"<|special|>", b"<|end|>", b"\n", *_LONGER)
PADDING = 5

SMALL = Vocabulary(
    tokens=(*_TOKENS, *(b"" for _ in range(PADDING))),
    special_ids=frozenset({SPECIAL, EOS}),
    eos_ids=frozenset({EOS, OTHER_EOS}),
)
"""All bytes, then longer tokens. `OTHER_EOS` has the text of a newline without being special."""


def spell(text: str | bytes) -> list[int]:
    """`text` in single-byte tokens of `SMALL`."""
    return list(text.encode() if isinstance(text, str) else text)
