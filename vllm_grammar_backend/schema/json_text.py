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
from vllm_grammar_backend.schema.objects import Trie, trie_of
from vllm_grammar_backend.schema.regex_tree import (
    ANY,
    ANY_TEXT,
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
    simplified,
)

_SIGN: Final = "x0mark0x"
_MARK: Final = f"^(?:{_SIGN}|{{}})*$"
_RULE: Final = re.compile(rf'Regex\("\^\(\\?\?:{_SIGN}\|(\d+)\)\*\$", json_string=true\)')
_FREE: Final = r'("\\" basic_escape basic_string_sub)'
_PLAIN_ONLY: Final = r'("\\" [\"\\bfnrt] basic_string_sub) | ("\\u00" [01] [0-9a-f] basic_string_sub)'
"""Further names branch off from those of `properties` letter by letter, and `\\u0061` must not pass for a branch."""
_SAFE_NAME: Final = re.compile(r"[ !#-\[\]-~]*")
"""Names that the library tells apart itself: plain ASCII."""
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
    grammar, count = _RULE.subn(lambda found: f"{_SIGN}{found[1]}", grammar)
    lines = [line if line.startswith("basic_") else line.replace(_FREE, _PLAIN_ONLY) for line in grammar.split("\n")]
    stray = any("basic_escape" in line and not line.startswith("basic_") for line in lines)
    if grammar.count(_SIGN) != count or stray:
        raise RuntimeError("xgrammar writes rules for strings in a form that is not known here")
    return "\n".join([*lines, *rules])


def _marked(schema: Any, rules: list[str], *, name: bool = False) -> Any:
    """A copy in which every bounded or patterned string has a mark for a pattern; `rules[i]` is what mark i means.

    Args:
        name: `schema` is for the name of a property.
    """
    if not isinstance(schema, dict):
        return schema
    if _told_apart(schema):
        schema = {keyword: value for keyword, value in schema.items() if keyword != "propertyNames"}
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
        number = sum(rule.startswith(_SIGN) for rule in rules)
        out["pattern"] = _MARK.format(number)
        rules.extend(_rules_of(schema, f"{_SIGN}{number}"))
    return out


def _told_apart(schema: dict[str, Any]) -> bool:
    """The library's own rules for further names will do: ten times faster to compile than any written here."""
    words = schema.get("propertyNames", {}).get("not", {}).get("enum")
    named = schema.get("properties", {})
    return words is not None and named.keys() == set(words) and all(map(_SAFE_NAME.fullmatch, words))


def _rules_of(schema: dict[str, Any], name: str) -> list[str]:
    """The rule `name` for the text of a string, and those that it needs."""
    if "not" in schema:
        return _all_but(trie_of(schema["not"]["enum"]), name)
    if "pattern" in schema:
        return [f"{name} ::= {_of_pattern(schema['pattern'])}"]
    return [f"{name} ::= {ebnf(Repeat(ANY, schema.get('minLength', 0), schema.get('maxLength')))}"]


@lru_cache(maxsize=1024)
def _of_pattern(pattern: str) -> str:
    # Not as an automaton of the library's own: its `Regex("(bc(a)*)?")` matches "a".
    return ebnf(anchored(parse(pattern), search=True))


def _all_but(trie: Trie, name: str) -> list[str]:
    """A rule for each common beginning of names: one nested expression takes the library ten times as long."""
    rules: list[str] = []
    todo = [(trie, name)]
    while todo:
        level, rule = todo.pop()
        if level.cut:
            rules.append(f"{rule} ::= [^\\0-\\U0010ffff]")
            continue
        other = chars(((ord(c), ord(c)) for c in level.next), negated=True)
        options = [] if level.word else ['""']
        options.append(f"({ebnf(other)} {ebnf(ANY_TEXT)})")
        for rank, (letter, below) in enumerate(level.next.items()):
            todo.append((below, f"n{rule}_{rank}"))
            options.append(f"({ebnf(literal(letter))} n{rule}_{rank})")
        rules.append(f"{rule} ::= " + " | ".join(options))
    return rules


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
