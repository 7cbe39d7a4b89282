"""Matching without backtracking, for the few strings (names, enum values) that are decided while a schema is vetted."""

from __future__ import annotations

from vllm_grammar_backend.schema.regex_tree import Alt, Chars, Repeat, Seq, Tree


def matches(tree: Tree, text: str) -> bool:
    """Whether `tree`, without anchors, matches all of `text`. Polynomial in both."""
    return len(text) in _ends(tree, text, frozenset({0}))


def _ends(tree: Tree, text: str, starts: frozenset[int]) -> frozenset[int]:
    if isinstance(tree, Chars):
        return frozenset(i + 1 for i in starts if i < len(text) and _within(ord(text[i]), tree))
    if isinstance(tree, Seq):
        for item in tree.items:
            starts = _ends(item, text, starts)
        return starts
    if isinstance(tree, Alt):
        return frozenset().union(*(_ends(item, text, starts) for item in tree.items))
    if isinstance(tree, Repeat):
        return _repeated(tree, text, starts)
    raise ValueError("anchors must be resolved before a tree is matched")


def _repeated(tree: Repeat, text: str, starts: frozenset[int]) -> frozenset[int]:
    for _ in range(tree.low):
        after = _ends(tree.item, text, starts)
        if after == starts:
            break
        starts = after
    reached = starts
    fresh = starts
    rounds = 0
    while fresh and (tree.high is None or rounds < tree.high - tree.low):
        fresh = _ends(tree.item, text, fresh) - reached
        reached |= fresh
        rounds += 1
    return reached


def _within(code: int, tree: Chars) -> bool:
    return any(low <= code <= high for low, high in tree.ranges)
