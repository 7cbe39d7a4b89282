"""Names of properties as regular expressions: everything but some, and the shapes `propertyNames` may take."""

from __future__ import annotations

from collections.abc import Iterable

from vllm_grammar_backend.schema.node import Document, Node
from vllm_grammar_backend.schema.patterns import pattern_tree
from vllm_grammar_backend.schema.regex_tree import (
    ANY,
    ANY_TEXT,
    EMPTY,
    NOTHING,
    Alt,
    Repeat,
    Seq,
    Tree,
    chars,
    literal,
    simplified,
    with_lengths,
)
from vllm_grammar_backend.schema.values import accepts


def all_but(words: Iterable[str]) -> Tree:
    """Every string that is not one of `words`."""
    trie: dict[str, dict] = {}  # type: ignore[type-arg]
    for word in words:
        level = trie
        for character in word:
            level = level.setdefault(character, {})
        level[""] = {}
    return simplified(_outside(trie))


def _outside(level: dict[str, dict]) -> Tree:  # type: ignore[type-arg]
    """What may follow a common beginning without completing a word. Depth is bounded by the longest name."""
    letters = [c for c in level if c]
    other = chars(((ord(c), ord(c)) for c in letters), negated=True)
    options: list[Tree] = [] if "" in level else [EMPTY]
    options.append(Seq((other, ANY_TEXT)))
    options.extend(Seq((literal(c), _outside(level[c]))) for c in letters)
    return Alt(tuple(options))


def names_tree(node: Node, document: Document) -> Tree | None:
    """The strings a `propertyNames` schema admits, None where one expression cannot say it."""
    while node.keywords.keys() == {"$ref"}:
        node = document.definitions[node.keywords["$ref"]]
    if node.never:
        return NOTHING
    if "enum" in node.keywords:
        verdicts = {v: accepts(node, v, document) for v in node.keywords["enum"] if isinstance(v, str)}
        if None in verdicts.values():
            return None
        kept = [literal(value) for value, good in verdicts.items() if good]
        return simplified(Alt(tuple(kept))) if kept else NOTHING
    if not node.keywords.keys() <= {"type", "pattern", "minLength", "maxLength"}:
        return None
    if "string" not in node.get("type", ("string",)):
        return NOTHING
    pattern = node.get("pattern")
    tree = ANY_TEXT if pattern is None else pattern_tree(pattern, node.pointer)
    return with_lengths(tree, node.get("minLength", 0), node.get("maxLength"))


def bounded_text(low: int, high: int | None) -> Tree:
    return Repeat(ANY, low, high)
