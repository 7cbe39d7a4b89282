"""From a lowered schema to xgrammar's EBNF, with strings that are exactly the JSON text of what they stand for.

xgrammar 0.2.8 turns a bounded string into a run of plain characters - raw control characters allowed, escapes not -
and a pattern into an automaton without escapes, which past some size admits even a bare quote. So it is shown a mark
in place of each pattern and length, and the rules it makes for the marks are replaced by rules made here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from vllm_grammar_backend.schema.ebnf_text import Rules, ebnf
from vllm_grammar_backend.schema.ecma import parse
from vllm_grammar_backend.schema.objects import Trie, trie_of
from vllm_grammar_backend.schema.regex_tree import ANY, ANY_TEXT, Repeat, anchored, chars, literal

_SIGN: Final = "x0mark0x"
_MARK: Final = f"^(?:{_SIGN}|{{}})*$"
_RULE: Final = re.compile(rf'Regex\("\^\(\\?\?:{_SIGN}\|(\d+)\)\*\$", json_string=true\)')
_FREE: Final = r'("\\" basic_escape basic_string_sub)'
_PLAIN_ONLY: Final = r'("\\" [\"\\bfnrt] basic_string_sub) | ("\\u00" [01] [0-9a-f] basic_string_sub)'
"""Further names branch off from those of `properties` letter by letter, and `\\u0061` must not pass for a branch."""
_SAFE_NAME: Final = re.compile(r"[ !#-\[\]-~]*")
"""Names that the library tells apart itself: plain ASCII."""
_OF_STRINGS: Final = ("pattern", "minLength", "maxLength", "not")


def to_ebnf(schema: str, convert: Callable[[str], str]) -> str:
    """The grammar of a schema that was lowered for xgrammar.

    Args:
        schema: JSON text.
        convert: JSON text of a schema to EBNF, `str(Grammar.from_json_schema(...))`.

    Raises:
        RuntimeError: the library no longer writes its rules as it did.
    """
    strings = _Strings()
    grammar = convert(json.dumps(strings.marked(json.loads(schema)), ensure_ascii=False))
    for number in strings.numbers:
        # The library writes 17 digits: 0.10000000000000001 for 0.1.
        grammar = grammar.replace(f'"{number:.17g}"', f'"{json.dumps(number)}"')
    grammar, count = _RULE.subn(lambda found: f"{_SIGN}{found[1]}", grammar)
    lines = [line if line.startswith("basic_") else line.replace(_FREE, _PLAIN_ONLY) for line in grammar.split("\n")]
    stray = any("basic_escape" in line and not line.startswith("basic_") for line in lines)
    if grammar.count(_SIGN) != count or stray:
        raise RuntimeError("xgrammar writes rules for strings in a form that is not known here")
    return "\n".join([*lines, *strings.rules.lines()])


class _Strings:
    """The strings of one schema: marks in the schema, and rules for the marks, which equal strings share."""

    def __init__(self) -> None:
        self.rules = Rules(_SIGN)
        self.numbers: set[float] = set()
        """Those that an `enum` spells out."""

    def marked(self, schema: Any, *, name: bool = False) -> Any:
        """A copy in which every bounded or patterned string has the number of its rule for a pattern.

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
                out[keyword] = {key: self.marked(item) for key, item in value.items()}
            elif keyword in ("anyOf", "prefixItems"):
                out[keyword] = [self.marked(item) for item in value]
            elif keyword in ("additionalProperties", "items", "propertyNames"):
                out[keyword] = self.marked(value, name=keyword == "propertyNames")
            else:
                out[keyword] = value
                if keyword == "enum":
                    self.numbers.update(item for item in value if isinstance(item, float) and not item.is_integer())
        if (name or schema.get("type") == "string") and not schema.keys().isdisjoint(_OF_STRINGS):
            out = {keyword: value for keyword, value in out.items() if keyword not in _OF_STRINGS}
            out["pattern"] = _MARK.format(self._rule(schema).removeprefix(_SIGN))
        return out

    def _rule(self, schema: dict[str, Any]) -> str:
        """The name of the rule for the text of a string."""
        if "not" in schema:
            return self._all_but(trie_of(schema["not"]["enum"]))
        if "pattern" in schema:
            # Not as an automaton of the library's own: its `Regex("(bc(a)*)?")` matches "a".
            tree = anchored(parse(schema["pattern"]), search=True)
        else:
            tree = Repeat(ANY, schema.get("minLength", 0), schema.get("maxLength"))
        return self.rules.name(ebnf(tree, self.rules))

    def _all_but(self, trie: Trie) -> str:
        """A rule for each common beginning of names: one nested expression takes the library ten times as long."""
        levels = [trie]
        for level in levels:
            levels.extend(level.next.values())
        names: dict[int, str] = {}
        for level in reversed(levels):
            names[id(level)] = self.rules.name(self._branches(level, names))
        return names[id(trie)]

    def _branches(self, level: Trie, names: dict[int, str]) -> str:
        if level.cut:
            return "[^\\0-\\U0010ffff]"
        other = chars(((ord(c), ord(c)) for c in level.next), negated=True)
        options = [] if level.word else ['""']
        options.append(f"({ebnf(other, self.rules)} {ebnf(ANY_TEXT, self.rules)})")
        options.extend(
            f"({ebnf(literal(letter), self.rules)} {names[id(below)]})" for letter, below in level.next.items()
        )
        return " | ".join(options)


def _told_apart(schema: dict[str, Any]) -> bool:
    """The library's own rules for further names will do: ten times faster to compile than any written here."""
    words = schema.get("propertyNames", {}).get("not", {}).get("enum")
    named = schema.get("properties", {})
    return words is not None and named.keys() == set(words) and all(map(_SAFE_NAME.fullmatch, words))
