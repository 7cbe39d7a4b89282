"""Structural tags as Lark for llguidance, where that is exact.

llguidance cuts its input into lexemes by longest match. A translation is exact where no choice is left to it: text
parts that stand side by side are fused into one terminal, a terminal before anything else must be `closed`, and
terminals that may begin at one place must not be prefixes of each other. What is not so is declined by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from llguidance import regex_to_lark

from vllm_grammar_backend.engines import lark
from vllm_grammar_backend.engines.structural_tag import (
    Format,
    child_of,
    children,
    kind_of,
    malformed,
    read,
    refuse_options,
    schema_of,
    text_of,
    texts_of,
    unsupported,
)
from vllm_grammar_backend.errors import pointer
from vllm_grammar_backend.grammar import Whitespace

_COMPACT: Final[dict[str, Any]] = {"whitespace_flexible": False}
_SPACED: Final[dict[str, Any]] = {**_COMPACT, "item_separator": ", ", "key_separator": ": "}
_SCHEMA_OPTIONS: Final[dict[Whitespace, tuple[dict[str, Any], ...]]] = {
    # Nothing tells where in a text the JSON is, so `whitespace.WhitespaceRows` cannot keep the bound here: the two
    # usual ways to write JSON in one line stand for it.
    Whitespace.BOUNDED: (_COMPACT, _SPACED),
    Whitespace.FLEXIBLE: ({"whitespace_flexible": True},),
    Whitespace.COMPACT: (_COMPACT,),
}
_NUMERIC: Final = frozenset("0123456789.eE+-")
_SELF_DELIMITING: Final = frozenset({"object", "array", "string", "boolean", "null"})


@dataclass(frozen=True)
class _Text:
    """A part that is one regular expression."""

    terminal: str
    closed: bool
    """No text of it continues another text of it: its end is known when it is reached."""
    literals: frozenset[str] | None = None
    """All of its texts, where they are few."""


@dataclass(frozen=True)
class _Rule:
    """A part that is a rule."""

    expression: str
    heads: frozenset[str] | None
    """Literal texts, one of which it begins with; None where it begins with JSON."""
    ends_open: bool = False
    """It may end in text that could go on."""


_Part = _Text | _Rule


def to_lark(tag: object, whitespace: Whitespace) -> str:
    """A whole grammar.

    Raises:
        GrammarError: malformed, or nothing exact is known for it.
    """
    writer = _Writer(whitespace)
    part = writer.part(read(tag), pointer("format"))
    return writer.grammar(part)


class _Writer:
    def __init__(self, whitespace: Whitespace) -> None:
        self._options = _SCHEMA_OPTIONS[whitespace]
        self._lines: list[str] = []

    def grammar(self, part: _Part) -> str:
        start = self._as_rule(part)
        return f"{lark.HEADER}start: {start}\n" + "\n".join(self._lines) + "\n"

    def part(self, node: Format, where: str) -> _Part:
        name = kind_of(node, where)
        build = _BUILDERS.get(name)
        if build is None:
            raise unsupported("guidance", f"the format {name}", where)
        return build(self, node, where)

    def _terminal(self, expression: str) -> str:
        name = f"T{len(self._lines)}"
        self._lines.append(f"{name}: {expression}")
        return name

    def _rule(self, expression: str) -> str:
        name = f"r{len(self._lines)}"
        self._lines.append(f"{name}: {expression}")
        return name

    def _as_rule(self, part: _Part) -> str:
        return self._terminal(part.terminal) if isinstance(part, _Text) else part.expression

    # One method per format, listed in `_BUILDERS`.

    def const_string(self, node: Format, where: str) -> _Text:
        return _constant(text_of(node, "value", where))

    def regex(self, node: Format, where: str) -> _Text:
        refuse_options("guidance", node, where, ("excludes",))
        return _Text(lark.regex(text_of(node, "pattern", where), regex_to_lark), closed=False)

    def any_text(self, node: Format, where: str) -> _Text:
        refuse_options("guidance", node, where, ("max_tokens", "max_chars"))
        return _Text(_without(texts_of(node, "excludes", where)), closed=False)

    def json_schema(self, node: Format, where: str) -> _Rule:
        refuse_options("guidance", node, where, ("any_order", "excludes", "max_whitespace_cnt"))
        if node.get("style", "json") != "json":
            raise unsupported("guidance", "a style of json_schema other than json", f"{where}/style")
        schema = schema_of(node, where)
        name = self._rule(" | ".join(lark.json_schema(schema, options) for options in self._options))
        kind = schema.get("type") if isinstance(schema, dict) else None
        kinds = kind if isinstance(kind, list) else [kind]
        return _Rule(name, None, ends_open=not _SELF_DELIMITING.issuperset(map(str, kinds)))

    def sequence(self, node: Format, where: str) -> _Part:
        return self._join(
            [self.part(child, f"{where}/elements/{rank}") for rank, child in children(node, where)], where
        )

    def either_of(self, node: Format, where: str) -> _Part:
        parts = [self.part(child, f"{where}/elements/{rank}") for rank, child in children(node, where)]
        return self._either(parts, where)

    def tag(self, node: Format, where: str) -> _Part:
        if isinstance(node.get("begin"), dict) or isinstance(node.get("end"), dict):
            raise unsupported("guidance", "a token as the begin or end of a tag", where)
        return self._tag_after(_constant(text_of(node, "begin", where)), node, where)

    def _tag_after(self, begin: _Text, node: Format, where: str) -> _Part:
        ends = [node["end"]] if isinstance(node.get("end"), str) else texts_of(node, "end", where)
        if not ends:
            raise malformed("`end` is a string or a list of strings", f"{where}/end")
        content = child_of(node, where)
        if content.get("type") == "any_text" and any(ends):
            # Free text in a tag lasts until the first of its ends.
            refuse_options("guidance", content, f"{where}/content", ("max_tokens", "max_chars"))
            body: list[_Part] = [_until(ends, texts_of(content, "excludes", f"{where}/content"))]
        else:
            end = self._either([_constant(end) for end in ends], where)
            body = [self.part(content, f"{where}/content"), end]
        return self._join([begin, *body], where)

    def optional(self, node: Format, where: str) -> _Part:
        return self._times(node, where, 0, 1)

    def star(self, node: Format, where: str) -> _Part:
        return self._times(node, where, 0, None)

    def plus(self, node: Format, where: str) -> _Part:
        return self._times(node, where, 1, None)

    def repeat(self, node: Format, where: str) -> _Part:
        least, most = node.get("min"), node.get("max")
        if not isinstance(least, int) or not isinstance(most, int) or least < 0 or most < -1 or 0 <= most < least:
            raise malformed("`min` and `max` are whole numbers in order", where)
        return self._times(node, where, least, None if most == -1 else most)

    def _times(self, node: Format, where: str, least: int, most: int | None) -> _Part:
        part = self.part(child_of(node, where), f"{where}/content")
        count = f"{{{least},{'' if most is None else most}}}"
        if isinstance(part, _Text):
            return _Text(f"({part.terminal}){count}", closed=False)
        if most != 1 and (part.heads is None or part.ends_open):
            raise unsupported("guidance", "repetition of a part without a fixed beginning and end", where)
        # What follows could begin like one more turn, or like the first: only the end of everything is safe.
        return _Rule(self._rule(f"({part.expression}){count}"), part.heads, ends_open=True)

    def tags_with_separator(self, node: Format, where: str) -> _Part:
        tags = [self.part(child, f"{where}/tags/{rank}") for rank, child in children(node, where)]
        either = self._either(tags, where)
        if isinstance(either, _Text):
            raise unsupported("guidance", "tags_with_separator around text alone", where)
        least = 1 if node.get("at_least_one") else 0
        if node.get("stop_after_first"):
            return _Rule(self._rule(f"({either.expression}){{{least},1}}"), either.heads, ends_open=True)
        again = self._as_rule(self._join([_constant(text_of(node, "separator", where)), either], where))
        body = f"{either.expression} ({again})*"
        return _Rule(self._rule(f"({body}){{{least},1}}"), either.heads, ends_open=True)

    def triggered_tags(self, node: Format, where: str) -> _Rule:
        triggers = texts_of(node, "triggers", where)
        if not triggers:
            raise malformed("`triggers` is a list of strings, none of them empty", f"{where}/triggers")
        if any(one != other and one in other for one in triggers for other in triggers):
            raise unsupported("guidance", "a trigger inside of another", f"{where}/triggers")
        excludes = texts_of(node, "excludes", where)
        tags = [(tag, f"{where}/tags/{rank}") for rank, tag in children(node, where)]
        dispatch = self._dispatch(tags, triggers, excludes)
        tail = self._terminal(_without([*triggers, *excludes]))
        stop = bool(node.get("stop_after_first"))
        if node.get("at_least_one"):
            first = self._as_rule(self._either([self.tag(tag, place) for tag, place in tags], where))
            return _Rule(self._rule(first if stop else f"{first} ({dispatch})* {tail}"), None, ends_open=True)
        return _Rule(self._rule(f"{dispatch} | {tail}" if stop else f"({dispatch})* {tail}"), None, ends_open=True)

    def _dispatch(self, tags: Sequence[tuple[Format, str]], triggers: list[str], excludes: list[str]) -> str:
        """Free text up to a trigger, then one of its tags."""
        groups: dict[str, list[_Part]] = {}
        for tag, where in tags:
            begin = text_of(tag, "begin", where)
            trigger = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
            if trigger is None:
                raise malformed("a tag begins with none of the triggers", f"{where}/begin")
            groups.setdefault(trigger, []).append(self._tag_after(_constant(begin[len(trigger) :]), tag, where))
        branches = []
        for trigger, parts in groups.items():
            head = self._terminal(_first(trigger, triggers, excludes))
            branches.append(f"{head} {self._as_rule(self._either(parts, tags[0][1]))}")
        return self._rule(" | ".join(branches))

    def _join(self, parts: Sequence[_Part], where: str) -> _Part:
        fused = _fuse(parts)
        for before, after in pairwise(fused):
            _check_border(before, after, where)
        if len(fused) == 1:
            return fused[0]
        first, last = fused[0], fused[-1]
        heads = first.literals if isinstance(first, _Text) else first.heads
        open_end = not last.closed if isinstance(last, _Text) else last.ends_open
        return _Rule(self._rule(" ".join(self._as_rule(part) for part in fused)), heads, ends_open=open_end)

    def _either(self, parts: Sequence[_Part], where: str) -> _Part:
        texts = [part for part in parts if isinstance(part, _Text)]
        if len(texts) == len(parts):
            return _union(texts)
        heads: set[str] | None = set()
        for part in parts:
            found = part.literals if isinstance(part, _Text) else part.heads
            heads = None if heads is None or found is None else heads | found
        if len(parts) > 1 and (heads is None or not _apart(heads)):
            raise unsupported("guidance", "alternatives that do not begin with texts apart from each other", where)
        expression = self._rule(" | ".join(self._as_rule(part) for part in parts))
        open_end = any(not part.closed if isinstance(part, _Text) else part.ends_open for part in parts)
        return _Rule(expression, None if heads is None else frozenset(heads), ends_open=open_end)


def _constant(text: str) -> _Text:
    return _Text(lark.literal(text), closed=True, literals=frozenset({text}))


_EMPTY: Final = _constant("")
_MOST_LITERALS: Final = 1000
"""Past this many the texts of a part are no longer listed, only described."""


def _union(texts: Sequence[_Text]) -> _Text:
    if len(texts) == 1:
        return texts[0]
    terminal = "(" + " | ".join(text.terminal for text in texts) + ")"
    if any(text.literals is None for text in texts):
        return _Text(terminal, closed=False)
    literals = frozenset(literal for text in texts for literal in text.literals or ())
    return _Text(terminal, closed=_apart(literals), literals=literals)


def _fuse(parts: Iterable[_Part]) -> list[_Part]:
    """Neighbouring texts as one; texts that are always empty left out."""
    fused: list[_Part] = []
    for part in parts:
        if part == _EMPTY:
            continue
        before = fused[-1] if fused else None
        if isinstance(part, _Text) and isinstance(before, _Text):
            fused[-1] = _concatenation(before, part)
        else:
            fused.append(part)
    return fused or [_EMPTY]


def _concatenation(one: _Text, two: _Text) -> _Text:
    literals = None
    if one.literals and two.literals and len(one.literals) * len(two.literals) <= _MOST_LITERALS:
        literals = frozenset(first + second for first in one.literals for second in two.literals)
    return _Text(f"{one.terminal} {two.terminal}", one.closed and two.closed, literals)


def _check_border(before: _Part, after: _Part, where: str) -> None:
    if isinstance(before, _Text):
        if not before.closed:
            raise unsupported("guidance", "open-ended text before another part", where)
    elif before.ends_open:
        literals = after.literals if isinstance(after, _Text) else None
        json_number_only = before.heads is None
        if not (json_number_only and literals and all(text and text[0] not in _NUMERIC for text in literals)):
            raise unsupported("guidance", "an open-ended part before another", where)


def _apart(literals: Iterable[str]) -> bool:
    """No text continues another."""
    ordered = sorted(literals)
    return not any(later.startswith(earlier) for earlier, later in pairwise(ordered))


def _containing(texts: Sequence[str], after: str = lark.ANY_TEXT) -> str:
    return f"({lark.ANY_TEXT} ({' | '.join(map(lark.literal, texts))}) {after})"


def _without(texts: Sequence[str]) -> str:
    """Any text that contains none of `texts`."""
    return f"({lark.ANY_TEXT} & ~{_containing(texts)})" if texts else lark.ANY_TEXT


def _first(text: str, others: Sequence[str], excludes: Sequence[str]) -> str:
    """Any text that ends where the first of `others` in it ends, and that one is `text`."""
    terminal = f"({lark.ANY_TEXT} {lark.literal(text)}) & ~{_containing(others, after='/(?s:.+)/')}"
    return f"{terminal} & ~{_containing(excludes)}" if excludes else terminal


def _until(ends: Sequence[str], excludes: Sequence[str]) -> _Text:
    """Any text up to and with the first of `ends`."""
    found = f"({lark.ANY_TEXT} ({' | '.join(map(lark.literal, ends))})) & ~{_containing(ends, after='/(?s:.+)/')}"
    if excludes:
        found = f"{found} & ~{_containing(excludes)}"
    return _Text(f"({found})", closed=True)


_BUILDERS: Final[dict[str, Callable[[_Writer, Format, str], _Part]]] = {
    "const_string": _Writer.const_string,
    "regex": _Writer.regex,
    "any_text": _Writer.any_text,
    "json_schema": _Writer.json_schema,
    "sequence": _Writer.sequence,
    "or": _Writer.either_of,
    "tag": _Writer.tag,
    "optional": _Writer.optional,
    "star": _Writer.star,
    "plus": _Writer.plus,
    "repeat": _Writer.repeat,
    "tags_with_separator": _Writer.tags_with_separator,
    "triggered_tags": _Writer.triggered_tags,
}
