"""Names of properties as regular expressions: everything but some, and the shapes `propertyNames` may take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from vllm_grammar_backend.schema.node import Document, Node
from vllm_grammar_backend.schema.patterns import pattern_tree
from vllm_grammar_backend.schema.regex_match import matches
from vllm_grammar_backend.schema.regex_tree import (
    ANY,
    ANY_TEXT,
    EMPTY,
    NOTHING,
    Alt,
    Chars,
    Repeat,
    Seq,
    Tree,
    chars,
    literal,
    simplified,
    with_lengths,
)
from vllm_grammar_backend.schema.values import accepts

ONE_LINE: Final = chars([(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)], negated=True)
MAX_PREFIX: Final = 40
"""Names are told apart by this many first characters; what begins like a longer one is left out altogether."""


@dataclass(slots=True)
class Trie:
    """Words by their beginnings."""

    word: bool = False
    """What leads here is a word."""
    cut: bool = False
    """Nothing that begins with what leads here is told apart any more."""
    next: dict[str, Trie] = field(default_factory=dict)


def trie_of(words: Iterable[str], prefixes: Iterable[str] = ()) -> Trie:
    """Words, and prefixes after which everything counts as one."""
    trie = Trie()
    for text, prefix in [*((word, False) for word in words), *((prefix, True) for prefix in prefixes)]:
        level = trie
        for character in text[:MAX_PREFIX]:
            level = level.next.setdefault(character, Trie())
        level.word = True
        level.cut |= prefix or len(text) > MAX_PREFIX
    return trie


def all_but(words: Iterable[str], prefixes: Iterable[str] = ()) -> Tree:
    """Every string that is not one of `words`, nor begins with one of `prefixes` or with the first `MAX_PREFIX`
    characters of a longer word.
    """
    return simplified(_beside(trie_of(words, prefixes)))


def _beside(level: Trie) -> Tree:
    """What may follow a common beginning without completing a word."""
    if level.cut:
        return NOTHING
    letters = list(level.next)
    other = chars(((ord(c), ord(c)) for c in letters), negated=True)
    options: list[Tree] = [] if level.word else [EMPTY]
    options.append(Seq((other, ANY_TEXT)))
    options.extend(Seq((literal(c), _beside(level.next[c]))) for c in letters)
    return Alt(tuple(options))


def outside(trees: list[Tree], words: list[str]) -> Tree | None:
    """Strings that are none of `words` and that none of `trees` matches: never too many, possibly too few, None where
    no such expression is known.
    """
    prefixes = [prefix_of(tree) for tree in trees]
    known = [prefix for prefix in prefixes if prefix is not None]
    if len(known) == len(trees):
        return all_but(words, known)
    tree = trees[0]
    if len(trees) > 1 or not isinstance(tree, Repeat) or not isinstance(tree.item, Chars):
        return None
    if tree.low > 1 or tree.high is not None or not all(matches(tree, word) for word in words):
        return None
    strange = Seq((ANY_TEXT, chars(tree.item.ranges, negated=True), ANY_TEXT))
    return simplified(Alt((EMPTY, strange))) if tree.low == 1 else strange


def prefix_of(tree: Tree) -> str | None:
    """The text that all matches of `tree` begin with, if every line that begins so is a match."""
    items = tree.items if isinstance(tree, Seq) else (tree,)
    text = ""
    for item in items:
        if not isinstance(item, Chars) or len(item.ranges) != 1 or len(set(item.ranges[0])) != 1:
            break
        text += chr(item.ranges[0][0])
    rest = items[len(text) :]
    if not all(isinstance(item, Repeat) and item.low == 0 and item.high is None for item in rest):
        return None
    return text if any(isinstance(item, Repeat) and item.item in (ANY, ONE_LINE) for item in rest) else None


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
