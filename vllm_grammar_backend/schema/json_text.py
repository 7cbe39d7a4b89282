"""From a lowered schema to xgrammar's EBNF, with strings that are exactly the JSON text of what they stand for.

xgrammar 0.2.8 turns a bounded string into a run of plain characters - raw control characters allowed, escapes not -
and a pattern into an automaton without escapes, which past some size admits even a bare quote. So it is shown a mark
in place of each pattern and length, and the rules it makes for the marks are replaced by rules made here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from vllm_grammar_backend.schema.ecma import parse
from vllm_grammar_backend.schema.objects import all_but
from vllm_grammar_backend.schema.regex_tree import (
    ANY,
    EMPTY,
    LAST,
    Alt,
    Chars,
    Repeat,
    Seq,
    Tree,
    anchored,
    chars,
    literal,
    render,
    simplified,
)

MAX_UNROLLED: Final = 200
"""Largest count that an automaton is made for: its cost grows with the square. Larger ones become counted rules."""

_SIGN: Final = "x0mark0x"
_MARK: Final = f"^(?:{_SIGN}|{{}})*$"
_RULE: Final = re.compile(rf'Regex\("\^\(\\?\?:{_SIGN}\|(\d+)\)\*\$", json_string=true\)')
_OF_STRINGS: Final = ("pattern", "minLength", "maxLength", "not")
_SHORT: Final = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 0x22: '"', 0x5C: "\\"}
_ESCAPED: Final = (*range(0x20), 0x22, 0x5C)
"""What JSON text cannot hold as itself."""
_PLAIN: Final = chars([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)], negated=True)


def to_ebnf(schema: str, convert: Callable[[str], str]) -> str:
    """The grammar of a schema that was lowered for xgrammar.

    Args:
        schema: JSON text.
        convert: JSON text of a schema to EBNF, `str(Grammar.from_json_schema(...))`.

    Raises:
        RuntimeError: the library no longer writes its rules as it did.
    """
    rules: list[str] = []
    grammar = convert(json.dumps(_marked(json.loads(schema), rules), ensure_ascii=False))
    grammar = _RULE.sub(lambda found: rules[int(found[1])], grammar)
    if _SIGN in grammar:
        raise RuntimeError("xgrammar writes rules for patterns in a form that is not known here")
    return grammar


def _marked(schema: Any, rules: list[str], *, name: bool = False) -> Any:
    """A copy in which every bounded or patterned string has a mark for a pattern; `rules[i]` is what mark i means.

    Args:
        name: `schema` is for the name of a property.
    """
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in ("properties", "$defs"):
            out[keyword] = {key: _marked(item, rules) for key, item in value.items()}
        elif keyword in ("anyOf", "prefixItems"):
            out[keyword] = [_marked(item, rules) for item in value]
        elif keyword in ("additionalProperties", "items", "propertyNames"):
            out[keyword] = _marked(value, rules, name=keyword == "propertyNames")
        else:
            out[keyword] = value
    if (name or schema.get("type") == "string") and not schema.keys().isdisjoint(_OF_STRINGS):
        out = {keyword: value for keyword, value in out.items() if keyword not in _OF_STRINGS}
        out["pattern"] = _MARK.format(len(rules))
        rules.append(_rule_of(schema))
    return out


def _rule_of(schema: dict[str, Any]) -> str:
    if "not" in schema:
        return _automaton(all_but(schema["not"]["enum"]))
    if "pattern" in schema:
        return _rule(schema["pattern"])
    return ebnf(Repeat(ANY, schema.get("minLength", 0), schema.get("maxLength")))


@lru_cache(maxsize=1024)
def _rule(pattern: str) -> str:
    tree = simplified(anchored(parse(pattern), search=True))
    if _largest(tree) > MAX_UNROLLED:
        return ebnf(tree)
    return _automaton(tree)


def _automaton(tree: Tree) -> str:
    return "Regex(" + json.dumps(render(simplified(json_text(tree))), ensure_ascii=False) + ")"


def _largest(tree: Tree) -> int:
    """The product of the counts of the deepest nest of repetitions."""
    if isinstance(tree, (Seq, Alt)):
        return max(map(_largest, tree.items), default=1)
    if isinstance(tree, Repeat):
        return max(1, tree.low, tree.high or 0) * _largest(tree.item)
    return 1


def json_text(tree: Tree) -> Tree:
    """What a JSON writer puts between the quotes for each string that `tree` matches."""
    if isinstance(tree, Chars):
        return _text(tree)
    if isinstance(tree, Seq):
        return Seq(tuple(map(json_text, tree.items)))
    if isinstance(tree, Alt):
        return Alt(tuple(map(json_text, tree.items)))
    return Repeat(json_text(tree.item), tree.low, tree.high) if isinstance(tree, Repeat) else tree


@lru_cache(maxsize=4096)
def _text(tree: Chars) -> Tree:
    options: list[Tree] = [_common(tree, _PLAIN)]
    codes = [code for code in _ESCAPED if any(low <= code <= high for low, high in tree.ranges)]
    short = chars((ord(_SHORT[code]), ord(_SHORT[code])) for code in codes if code in _SHORT)
    options.append(Seq((literal("\\"), short)))
    others = [code for code in codes if code not in _SHORT]
    if len(codes) == len(_ESCAPED):
        options.append(Seq((literal("\\u00"), chars([(0x30, 0x31)]), chars([(0x30, 0x39), (0x61, 0x66)]))))
    else:
        options.extend(literal(f"\\u{code:04x}") for code in others)
    return simplified(Alt(tuple(options)))


def _common(first: Chars, second: Chars) -> Chars:
    return chars((max(a, c), min(b, d)) for a, b in first.ranges for c, d in second.ranges if max(a, c) <= min(b, d))


def ebnf(tree: Tree) -> str:
    """The JSON text of the strings that `tree` matches as an EBNF expression."""
    return _written(simplified(json_text(tree)))


def _written(tree: Tree) -> str:
    if isinstance(tree, Chars):
        negated = len(tree.ranges) > 1 and tree.ranges[-1][1] == LAST
        shown = chars(tree.ranges, negated=True).ranges if negated else tree.ranges
        body = "".join(_letter(low) + (f"-{_letter(high)}" if high > low else "") for low, high in shown)
        return f"[{'^' if negated else ''}{body}]"
    if isinstance(tree, Alt):
        return "(" + " | ".join(map(_written, tree.items)) + ")"
    if isinstance(tree, Repeat):
        return f"({_written(tree.item)}){{{tree.low},{'' if tree.high is None else tree.high}}}"
    return "(" + " ".join(map(_written, tree.items)) + ")" if isinstance(tree, Seq) and tree != EMPTY else '""'


def _letter(code: int) -> str:
    character = chr(code)
    return character if code < 0x80 and character.isalnum() else f"\\U{code:08x}"
