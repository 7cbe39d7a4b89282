"""Expressions of xgrammar's EBNF that are exactly the JSON text of the strings a tree matches.

The library (0.2.8) counts in two ways. In an expression it enters a rule for every character, and each mask tries the
whole vocabulary: 30 to 1,500 ms at 49k tokens. In an automaton, `Regex("...")`, a mask is looked up, but each state
costs 10 ms to compile and past 128 it goes back to the first way. So long runs are counted in automata of `BLOCK`
characters: 1.5 s to compile, 0.1 ms for most masks and 20 ms for those that reach over the end of a block.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from vllm_grammar_backend.schema.regex_tree import (
    EMPTY,
    LAST,
    Alt,
    Chars,
    Repeat,
    Seq,
    Tree,
    chars,
    literal,
    render,
    simplified,
)

BLOCK: Final = 64
"""Characters that one automaton counts."""
_SHORT: Final = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 0x22: '"', 0x5C: "\\"}
_ESCAPED: Final = (*range(0x20), 0x22, 0x5C)
"""What JSON text cannot hold as itself."""
_PLAIN: Final = chars([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)], negated=True)


class Rules:
    """Named rules: one for each body, however often it is asked for."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._names: dict[str, str] = {}

    def name(self, body: str) -> str:
        return self._names.setdefault(body, f"{self._prefix}{len(self._names)}")

    def lines(self) -> list[str]:
        return [f"{name} ::= {body}" for body, name in self._names.items()]


def ebnf(tree: Tree, rules: Rules) -> str:
    """The JSON text of the strings that `tree` matches as an expression, which may refer to `rules`."""
    return _written(simplified(json_text(tree)), rules)


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


def _written(tree: Tree, rules: Rules) -> str:
    if isinstance(tree, Chars):
        negated = len(tree.ranges) > 1 and tree.ranges[-1][1] == LAST
        shown = chars(tree.ranges, negated=True).ranges if negated else tree.ranges
        body = "".join(_letter(low) + (f"-{_letter(high)}" if high > low else "") for low, high in shown)
        return f"[{'^' if negated else ''}{body}]"
    if isinstance(tree, Alt):
        return "(" + " | ".join(_written(item, rules) for item in tree.items) + ")"
    if isinstance(tree, Repeat):
        if (tree.low or tree.high is not None) and _is_character(tree.item):
            return _run(tree, rules)
        # Not `{0,}`: that counts, and a rule is entered for each.
        count = (
            "*" if not tree.low and tree.high is None else f"{{{tree.low},{'' if tree.high is None else tree.high}}}"
        )
        return f"({_written(tree.item, rules)}){count}"
    if isinstance(tree, Seq) and tree != EMPTY:
        return "(" + " ".join(_written(item, rules) for item in tree.items) + ")"
    return '""'


def _is_character(text: Tree) -> bool:
    """The JSON text of one character, or as simple as that: nothing repeated in it."""
    if isinstance(text, (Alt, Seq)):
        return all(map(_is_character, text.items))
    return isinstance(text, Chars)


def _run(tree: Repeat, rules: Rules) -> str:
    """A counted run: whole blocks first, then what is left."""

    def some(low: int, high: int | None) -> str:
        return rules.name(_automaton(Repeat(tree.item, low, high)))

    block = some(BLOCK, BLOCK)
    whole, low = divmod(tree.low, BLOCK)
    high = None if tree.high is None else tree.high - whole * BLOCK
    if high is None or high <= BLOCK:
        rest = some(low, high)
    else:
        full, left = divmod(high, BLOCK)
        between = f" | {block}{{1,{full - 1}}} {some(0, BLOCK - 1)}" if full > 1 else ""
        rest = f"({some(low, BLOCK - 1)}{between} | {block}{{{full}}} {some(0, left)})"
    return f"({block}{{{whole}}} {rest})" if whole else rest


def _automaton(tree: Repeat) -> str:
    source = render(tree).replace("\\", "\\\\").replace('"', '\\"')
    return f'Regex("{source}")'


def _letter(code: int) -> str:
    character = chr(code)
    return character if code < 0x80 and character.isalnum() else f"\\U{code:08x}"
