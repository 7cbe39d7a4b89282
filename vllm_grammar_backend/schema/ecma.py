"""Read regular expressions: ECMA-262 for `pattern`, Python/Rust for the regex kind.

JSON Schema means ECMA-262 with Unicode semantics. What browsers tolerate without the `u` flag (escaped punctuation,
a lone brace) is tolerated here as well, because schemas in the wild use it and it has one reading.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from typing import Final

from vllm_grammar_backend.schema.regex_tree import (
    EMPTY,
    LAST,
    Alt,
    Chars,
    Edge,
    Repeat,
    Seq,
    Tree,
    UnsupportedRegexError,
    chars,
)

MAX_GROUPS: Final = 64
"""Nested groups."""
MAX_COUNT: Final = 1_000_000

_COUNTS: Final = re.compile(r"\{(\d{1,9})(,(\d{0,9}))?\}", re.ASCII)
_NAME: Final = re.compile(r"[^\W\d]\w*>")
_LOW: Final = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})")
"""The second half of a surrogate pair."""
_BRACED: Final = re.compile(r"([0-9A-Fa-f]{1,6})\}")
_DIGIT: Final = ((0x30, 0x39),)
_WORD: Final = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Final = (
    *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)
_ASCII_SPACE: Final = ((0x09, 0x0D), (0x20, 0x20))
_CONTROL: Final = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_ECMA_DOT: Final = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))


class InvalidRegexError(ValueError):
    """Not a regular expression. Its text says why, without quoting the pattern."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between readers of the same pattern."""

    name: str
    dot_excludes: tuple[tuple[int, int], ...]
    space: tuple[tuple[int, int], ...]
    unicode_classes: bool
    """Readers of this dialect disagree about `\\d` `\\w` `\\s` beyond ASCII: such characters match neither the class
    nor its negation, so that what is produced is right for all of them."""


ECMA: Final = Dialect("ECMA-262", _ECMA_DOT, _SPACE, unicode_classes=False)
PLAIN: Final = Dialect("regex", ((0x0A, 0x0A),), _ASCII_SPACE, unicode_classes=True)


def parse(pattern: str, dialect: Dialect = ECMA) -> Tree:
    """The tree of `pattern`, anchors still in it.

    Raises:
        InvalidRegexError: not a regular expression.
        UnsupportedRegexError: look-around, back-references, word boundaries, Unicode properties, inline flags,
            a NUL: named.
    """
    if "\0" in pattern:
        raise UnsupportedRegexError("a NUL character")
    reader = _Reader(pattern, dialect)
    tree = reader.alternatives(0)
    if not reader.done:
        raise InvalidRegexError("unbalanced parenthesis")
    return tree


class _Reader:
    def __init__(self, pattern: str, dialect: Dialect) -> None:
        self._text = pattern
        self._at = 0
        self._dialect = dialect

    @property
    def done(self) -> bool:
        return self._at == len(self._text)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, expected: str) -> bool:
        if self._text.startswith(expected, self._at):
            self._at += len(expected)
            return True
        return False

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise InvalidRegexError("ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def alternatives(self, depth: int) -> Tree:
        if depth > MAX_GROUPS:
            raise UnsupportedRegexError(f"groups nested deeper than {MAX_GROUPS}")
        items = [self._sequence(depth)]
        while self._take("|"):
            items.append(self._sequence(depth))
        return items[0] if len(items) == 1 else Alt(tuple(items))

    def _sequence(self, depth: int) -> Tree:
        items: list[Tree] = []
        while self._peek() not in ("", "|", ")"):
            items.append(self._repeated(self._atom(depth)))
        return items[0] if len(items) == 1 else Seq(tuple(items)) if items else EMPTY

    def _repeated(self, atom: Tree) -> Tree:
        bounds = self._quantifier()
        if bounds is None:
            return atom
        if isinstance(atom, Edge):
            raise UnsupportedRegexError("a repeated anchor")
        if not self._take("?") and self._peek() == "+":
            raise UnsupportedRegexError("a possessive repetition")
        if self._peek() in ("*", "?", "+") or (self._peek() == "{" and self._braces() is not None):
            raise InvalidRegexError("a repetition of a repetition")
        return Repeat(atom, *bounds)

    def _quantifier(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        braces = self._braces() if self._peek() == "{" else None
        if braces is None:
            return None
        low, high, self._at = braces
        if high is not None and low > high:
            raise InvalidRegexError("a repetition with its bounds in the wrong order")
        if max(low, high or 0) > MAX_COUNT:
            raise UnsupportedRegexError(f"a repetition count over {MAX_COUNT}")
        return low, high

    def _braces(self) -> tuple[int, int | None, int] | None:
        """The counts at the present position and where they end; None where the brace is only a brace."""
        found = _COUNTS.match(self._text, self._at)
        if found is None:
            return None
        low = int(found[1])
        high = low if found[2] is None else int(found[3]) if found[3] else None
        return low, high, found.end()

    def _atom(self, depth: int) -> Tree:
        c = self._next()
        if c == "(":
            return self._group(depth)
        if c == "[":
            return self._class()
        if c == "\\":
            return self._escape()
        if c == ".":
            return chars(self._dialect.dot_excludes, negated=True)
        if c in "^$":
            return Edge(start=c == "^")
        if c in "*+?":
            raise InvalidRegexError("a repetition of nothing")
        if c == "{" and _COUNTS.match(self._text, self._at - 1):
            raise InvalidRegexError("a repetition of nothing")
        return _one(ord(c))

    def _group(self, depth: int) -> Tree:
        if self._take("?"):
            self._group_head()
        tree = self.alternatives(depth + 1)
        if not self._take(")"):
            raise InvalidRegexError("a group is not closed")
        return tree

    def _group_head(self) -> None:
        if self._take(":"):
            return
        if any(map(self._take, ("=", "!", "<=", "<!"))):
            raise UnsupportedRegexError("look-around")
        plain = self._dialect is PLAIN
        if plain and self._take("P="):
            raise UnsupportedRegexError("a back-reference")
        if self._take("<") or (plain and self._take("P<")):
            name = _NAME.match(self._text, self._at)
            if name is None:
                raise InvalidRegexError("a group with a malformed name")
            self._at = name.end()
            return
        if self._peek() in "imsuxLaU-" and self._peek():
            raise UnsupportedRegexError("inline flags")
        raise InvalidRegexError("an unknown kind of group")

    def _class(self) -> Tree:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        first = True
        while first or not self._take("]"):
            if first and self._dialect is ECMA and self._take("]"):
                break
            low = self._class_item(first=first)
            first = False
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                low = self._range(low, self._class_item(first=False))
            ranges.extend(low)
        return chars(ranges, negated=negated)

    def _range(
        self, low: tuple[tuple[int, int], ...], high: tuple[tuple[int, int], ...]
    ) -> tuple[tuple[int, int], ...]:
        dash = ((0x2D, 0x2D),)
        if any(len(side) != 1 or side[0][0] != side[0][1] for side in (low, high)):
            if self._dialect is ECMA:
                return (*low, *dash, *high)
            raise InvalidRegexError("a range that ends in a class")
        if low[0][0] > high[0][0]:
            raise InvalidRegexError("a range in the wrong order")
        return ((low[0][0], high[0][0]),)

    def _class_item(self, *, first: bool) -> tuple[tuple[int, int], ...]:
        c = self._next()
        if c == "\\":
            if self._take("b"):
                return ((8, 8),)
            if self._take("-"):
                return ((0x2D, 0x2D),)
            return self._escape(in_class=True).ranges
        if self._dialect is PLAIN and (c == "[" or (c in "&~-" and self._peek() == c) or (c == "]" and first)):
            raise UnsupportedRegexError("an unescaped bracket or set operation in a class")
        return ((ord(c), ord(c)),)

    def _escape(self, *, in_class: bool = False) -> Chars:
        c = self._next()
        if c in "dDwWsS":
            return self._shorthand(c)
        if c in _CONTROL:
            return _one(_CONTROL[c])
        if c in "bB":
            raise UnsupportedRegexError("a word boundary")
        if c in "pP":
            raise UnsupportedRegexError("a Unicode property")
        if c == "k" or (c in "123456789" and not in_class):
            raise UnsupportedRegexError("a back-reference")
        return self._coded(c)

    def _shorthand(self, c: str) -> Chars:
        ranges = {"d": _DIGIT, "w": _WORD, "s": self._dialect.space}[c.lower()]
        if c.islower():
            return Chars(ranges)
        beyond = _beyond_ascii(c.lower()) if self._dialect.unicode_classes else ()
        return chars((*ranges, *beyond), negated=True)

    def _coded(self, c: str) -> Chars:
        if c == "0" and not _number(self._peek()):
            return _one(0)
        if c == "c" and self._dialect is ECMA and (letter := self._peek()).isascii() and letter.isalpha():
            self._at += 1
            return _one(ord(letter) % 32)
        if c == "x" and (code := self._hex(2)) is not None:
            return _one(code)
        if c in "ux" and self._take("{"):
            found = _BRACED.match(self._text, self._at)
            if found is not None and int(found[1], 16) <= LAST:
                self._at = found.end()
                return self._scalar(int(found[1], 16))
            raise InvalidRegexError("a malformed escape")
        if c == "u" and (code := self._hex(4)) is not None:
            if 0xD800 <= code < 0xDC00 and (found := _LOW.match(self._text, self._at)):
                self._at = found.end()
                return _one(0x10000 + ((code - 0xD800) << 10) + (int(found[1], 16) - 0xDC00))
            return self._scalar(code)
        if c.isascii() and c.isalnum():
            raise InvalidRegexError("an unknown escape")
        return _one(ord(c))

    def _scalar(self, code: int) -> Chars:
        if 0xD800 <= code < 0xE000:
            raise UnsupportedRegexError("a surrogate by itself")
        return _one(code)

    def _hex(self, digits: int) -> int | None:
        text = self._text[self._at : self._at + digits]
        if len(text) != digits or not _is_hex(text):
            return None
        self._at += digits
        return int(text, 16)


@cache
def _beyond_ascii(letter: str) -> tuple[tuple[int, int], ...]:
    """The code points over 0x7F that some reader counts as digits, word characters or space."""
    has = {"d": str.isdecimal, "w": _is_word, "s": str.isspace}[letter]
    return chars((code, code) for code in range(0x80, LAST + 1) if has(chr(code))).ranges


def _is_word(character: str) -> bool:
    return character.isalnum() or unicodedata.category(character)[0] == "M" or character in "_\u203f\u2040\u2054"


def _one(code: int) -> Chars:
    return Chars(((code, code),))


def _number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _is_hex(text: str) -> bool:
    return 0 < len(text) <= 6 and all(c in "0123456789abcdefABCDEF" for c in text)
