"""EBNF in the style of llama.cpp's GBNF (`root ::= ...`): a parser, and a translation to Lark that keeps the language.

llguidance splits its input into lexemes by longest match, so a literal translation of rules loses texts (`[a-z]+ "end"`
never ends). Two translations are exact: a grammar without recursion becomes one terminal, hence one regular
expression; any other becomes rules over terminals of a single character each, between which nothing is to be chosen.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from vllm_grammar_backend.engines.lark import HEADER, check_encodable
from vllm_grammar_backend.errors import ErrorCode, GrammarError

_ROOT: Final = "root"
# Possessive: a comment is never given back, and hostile text costs linear time.
_FIRST_RULE: Final = re.compile(r"(?:\s++|#[^\n]*+|//[^\n]*+)*+[\w-]++\s*+::=")
_BLANK: Final = re.compile(r"(?:\s++|#[^\n]*+)*+")
_NAME: Final = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
_RULE_HEAD: Final = re.compile(r"([A-Za-z_][\w-]*)\s*::=", re.ASCII)
_COUNT: Final = re.compile(r"\{\s*(\d+)\s*(,?)\s*(\d*)\s*\}")
_ESCAPE: Final = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([^xuU]))", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t"} | {sign: sign for sign in "\\\"'[]-^/"}
_STARS: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_SURROGATES: Final = range(0xD800, 0xE000)
MAX_DEPTH: Final = 64
"""Nested groups in one rule."""
MAX_REPEAT: Final = 10_000


def is_ebnf(text: str) -> bool:
    """True where the first statement is a rule in EBNF; anything else is read as Lark."""
    return _FIRST_RULE.match(text) is not None


def choice(strings: Iterable[str]) -> str:
    """An EBNF grammar of literal alternatives."""
    return f"{_ROOT} ::= " + " | ".join(_quote(string) for string in strings)


def _quote(text: str) -> str:
    check_encodable(text)
    plain = (sign if sign.isascii() and sign.isalnum() else f"\\U{ord(sign):08x}" for sign in text)
    return '"' + "".join(plain) + '"'


@dataclass(frozen=True, slots=True)
class Characters:
    """One character out of inclusive ranges of code points, or out of all others."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Reference:
    name: str


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    item: Node
    least: int
    most: int | None


Node = Characters | Reference | Sequence | Alternatives | Repeat


def invalid(reason: str) -> GrammarError:
    return GrammarError(ErrorCode.INVALID_GRAMMAR, reason, keyword="grammar")


def parse(text: str) -> dict[str, Node]:
    """All rules by name.

    Raises:
        GrammarError: not EBNF, a rule defined twice, an undefined rule, or no rule `root`.
    """
    rules: dict[str, Node] = {}
    reader = _Reader(text)
    while (name := reader.rule_head()) is not None:
        if name in rules:
            raise invalid("a rule is defined twice")
        rules[name] = reader.alternatives(0)
    if not reader.at_end():
        raise invalid(f"line {reader.line()} cannot be parsed as EBNF")
    if _ROOT not in rules:
        raise invalid("there is no rule named root")
    if any(name not in rules for node in rules.values() for name in references(node)):
        raise invalid("it refers to a rule that is not defined")
    return rules


def references(node: Node) -> Iterator[str]:
    """Names of the rules that a node refers to directly."""
    match node:
        case Reference(name):
            yield name
        case Sequence(children) | Alternatives(children):
            for child in children:
                yield from references(child)
        case Repeat(child):
            yield from references(child)


class _Reader:
    """Recursive descent over the text. A rule ends where the next `name ::=` begins, newlines or not."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._skip()

    def line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    def at_end(self) -> bool:
        return self._at == len(self._text)

    def rule_head(self) -> str | None:
        found = _RULE_HEAD.match(self._text, self._at)
        if found is None:
            return None
        self._move(found.end())
        return found[1]

    def alternatives(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise GrammarError(ErrorCode.TOO_LARGE, f"groups are nested more than {MAX_DEPTH} deep", keyword="grammar")
        branches = [self._sequence(depth)]
        while self._next() == "|":
            self._move(self._at + 1)
            branches.append(self._sequence(depth))
        return branches[0] if len(branches) == 1 else Alternatives(tuple(branches))

    def _sequence(self, depth: int) -> Node:
        items: list[Node] = []
        while (item := self._item(depth)) is not None:
            items.append(self._repeated(item))
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _item(self, depth: int) -> Node | None:
        sign = self._next()
        if sign == '"':
            return self._literal()
        if sign == "[":
            return self._characters()
        if sign == ".":
            self._move(self._at + 1)
            return Characters((), negated=True)
        if sign == "(":
            return self._group(depth)
        found = _NAME.match(self._text, self._at)
        if found is None or _RULE_HEAD.match(self._text, self._at):
            return None
        self._move(found.end())
        return Reference(found[0])

    def _group(self, depth: int) -> Node:
        self._move(self._at + 1)
        inner = self.alternatives(depth + 1)
        if self._next() != ")":
            raise invalid(f"a group is not closed in line {self.line()}")
        self._move(self._at + 1)
        return inner

    def _repeated(self, item: Node) -> Node:
        while True:
            sign = self._next()
            if sign in _STARS:
                least, most = _STARS[sign]
                self._move(self._at + 1)
            elif sign == "{":
                least, most = self._count()
            else:
                return item
            item = Repeat(item, least, most)

    def _count(self) -> tuple[int, int | None]:
        found = _COUNT.match(self._text, self._at)
        if found is None or (found[3] and not found[2]):
            raise invalid(f"a repetition cannot be parsed in line {self.line()}")
        self._move(found.end())
        least = int(found[1][:9])
        most = int(found[3][:9]) if found[3] else (None if found[2] else least)
        if max(least, most or 0) > MAX_REPEAT:
            raise GrammarError(ErrorCode.TOO_LARGE, f"a repetition counts past {MAX_REPEAT}", keyword="grammar")
        if most is not None and most < least:
            raise invalid("a repetition has its bounds the wrong way round")
        return least, most

    def _literal(self) -> Node:
        self._at += 1
        points: list[Node] = []
        while self._peek() != '"':
            point = self._character()
            points.append(Characters(((point, point),)))
        self._move(self._at + 1)
        return points[0] if len(points) == 1 else Sequence(tuple(points))

    def _characters(self) -> Node:
        self._at += 1
        negated = self._peek() == "^"
        self._at += negated
        ranges: list[tuple[int, int]] = []
        while self._peek() != "]":
            low = high = self._character()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._character()
            if high < low:
                raise invalid("a character range has its ends the wrong way round")
            ranges.append((low, high))
        self._move(self._at + 1)
        if not ranges and not negated:
            raise invalid("a character class is empty")
        return Characters(tuple(ranges), negated)

    def _character(self) -> int:
        sign = self._peek()
        if sign != "\\":
            self._at += 1
            return ord(sign)
        found = _ESCAPE.match(self._text, self._at)
        if found is None or (found[4] and found[4] not in _ESCAPED):
            raise invalid(f"an escape cannot be parsed in line {self.line()}")
        self._at = found.end()
        digits = found[1] or found[2] or found[3]
        point = int(digits, 16) if digits else ord(_ESCAPED[found[4]])
        if point > sys.maxunicode or point in _SURROGATES:
            raise invalid("an escape names no character")
        return point

    def _peek(self) -> str:
        if self._at >= len(self._text):
            raise invalid("a literal or character class is not closed")
        return self._text[self._at]

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _move(self, position: int) -> None:
        self._at = position
        self._skip()

    def _skip(self) -> None:
        found = _BLANK.match(self._text, self._at)
        self._at = found.end() if found else self._at


def to_lark(text: str) -> str:
    """A Lark grammar for llguidance with the same language.

    Raises:
        GrammarError: as `parse`.
    """
    rules = parse(text)
    order = _reachable(rules)
    recursive = _has_cycle(rules, order)
    names = {name: f"{'r' if recursive else 'R'}{rank}" for rank, name in enumerate(order)}
    lines = [f"{names[name]}: {_render(rules[name], names, bare=recursive)}" for name in order]
    return HEADER + f"start: {names[_ROOT]}\n" + "\n".join(lines) + "\n"


def _reachable(rules: dict[str, Node]) -> list[str]:
    order, waiting = {_ROOT: None}, [_ROOT]
    while waiting:
        for name in references(rules[waiting.pop()]):
            if name not in order:
                order[name] = None
                waiting.append(name)
    return list(order)


def _has_cycle(rules: dict[str, Node], names: list[str]) -> bool:
    left = {name: set(references(rules[name])) for name in names}
    while leaves := [name for name, needs in left.items() if not needs]:
        for name in leaves:
            del left[name]
        for needs in left.values():
            needs.difference_update(leaves)
    return bool(left)


def _render(node: Node, names: dict[str, str], *, bare: bool) -> str:
    """Lark text of a node; `bare` where it stands in a rule, whose literals must stay apart."""
    match node:
        case Characters():
            return f"/{_class(node)}/"
        case Reference(name):
            return names[name]
        case Sequence(items):
            return " ".join(_render(item, names, bare=bare) for item in items) or '""'
        case Alternatives(branches):
            return "(" + " | ".join(_render(branch, names, bare=bare) for branch in branches) + ")"
        case Repeat(item, least, most):
            return f"({_render(item, names, bare=bare)}){{{least},{'' if most is None else most}}}"


def _class(node: Characters) -> str:
    if node.negated and not node.ranges:
        return "(?s:.)"
    ranges = "".join(f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in node.ranges)
    return f"[{'^' if node.negated else ''}{ranges}]"
