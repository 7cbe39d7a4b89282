"""Regular expressions as trees: what the parsers make, what the lowerings reason about, what is written out again.

A tree means a set of strings of Unicode code points, matched whole. `Edge` leaves (`^`, `$`) are the exception;
`anchored` removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

LAST: Final = 0x10FFFF
_BRANCHES: Final = 64
"""Most alternatives that pulling an anchor out of a group may make."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One code point out of sorted, disjoint, non-adjacent, inclusive ranges. No range at all matches nothing."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Seq:
    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    item: Tree
    low: int
    high: int | None
    """None: no upper bound."""


@dataclass(frozen=True, slots=True)
class Edge:
    """`^` or `$`: the begin or the end of the whole text."""

    start: bool


Tree = Chars | Seq | Alt | Repeat | Edge

EMPTY: Final = Seq(())
NOTHING: Final = Chars(())
ANY: Final = Chars(((0, LAST),))
ANY_TEXT: Final = Repeat(ANY, 0, None)


class UnsupportedRegexError(ValueError):
    """Correct, but not something the backends can be shown to match exactly. Its text names the construct."""


def chars(ranges: Iterable[tuple[int, int]], *, negated: bool = False) -> Chars:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return Chars(_complement(merged)) if negated else Chars(tuple(merged))


def _complement(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    out: list[tuple[int, int]] = []
    start = 0
    for low, high in ranges:
        if low > start:
            out.append((start, low - 1))
        start = high + 1
    if start <= LAST:
        out.append((start, LAST))
    return tuple(out)


def literal(text: str) -> Tree:
    return Seq(tuple(Chars(((ord(c), ord(c)),)) for c in text))


def size(tree: Tree) -> int:
    """Positions after all counted repetitions are written out: what a backend may have to build."""
    if isinstance(tree, (Seq, Alt)):
        return sum(size(item) for item in tree.items)
    if isinstance(tree, Repeat):
        return size(tree.item) * max(1, tree.low if tree.high is None else tree.high)
    return 1


def lengths(tree: Tree) -> tuple[int, int | None]:
    """Shortest and longest match in code points; None where there is no longest."""
    if isinstance(tree, Chars):
        return 1, 1
    if isinstance(tree, Edge):
        return 0, 0
    if isinstance(tree, Repeat):
        low, high = lengths(tree.item)
        longest = 0 if high == 0 else None if high is None or tree.high is None else high * tree.high
        return low * tree.low, longest
    bounds = [lengths(item) for item in tree.items]
    highs = [high for _, high in bounds if high is not None]
    unbounded = len(highs) < len(bounds)
    if isinstance(tree, Seq):
        return sum(low for low, _ in bounds), None if unbounded else sum(highs)
    return min(low for low, _ in bounds), None if unbounded else max(highs)


def with_lengths(tree: Tree, low: int, high: int | None) -> Tree | None:
    """The matches of `tree` between `low` and `high` code points long, or None where one repetition cannot say it."""
    shortest, longest = lengths(tree)
    if shortest >= low and (high is None or (longest is not None and longest <= high)):
        return tree
    if high is not None and (shortest > high or low > high):
        return NOTHING
    items = tree.items if isinstance(tree, Seq) else (tree,)
    moving = [i for i, item in enumerate(items) if (bounds := lengths(item))[0] != bounds[1]]
    if len(moving) != 1 or not isinstance(stretch := items[moving[0]], Repeat) or lengths(stretch.item) != (1, 1):
        return None
    fixed = shortest - stretch.low
    tops = [bound for bound in (stretch.high, None if high is None else high - fixed) if bound is not None]
    new = Repeat(stretch.item, max(stretch.low, low - fixed), min(tops) if tops else None)
    if new.high is not None and new.low > new.high:
        return NOTHING
    return Seq((*items[: moving[0]], new, *items[moving[0] + 1 :]))


def has_edge(tree: Tree) -> bool:
    if isinstance(tree, (Seq, Alt)):
        return any(has_edge(item) for item in tree.items)
    return has_edge(tree.item) if isinstance(tree, Repeat) else isinstance(tree, Edge)


def anchored(tree: Tree, *, search: bool) -> Tree:
    """The same matches without `^` and `$`.

    Args:
        search: the text need only contain a match (JSON Schema); else it must be one (the regex kind).

    Raises:
        UnsupportedRegexError: an anchor stands where text could precede or follow it.
    """
    done: list[Tree] = []
    todo: list[tuple[Tree, ...]] = [(tree,)]
    while todo:
        items = todo.pop()
        opened = _open(items, first=True) or _open(items, first=False)
        if opened is None:
            done.append(_framed(items, search=search))
        else:
            todo.extend(reversed(opened))
        if len(todo) + len(done) > _BRANCHES:
            raise UnsupportedRegexError("anchors inside many alternatives")
    return done[0] if len(done) == 1 else Alt(tuple(done))


def _open(items: tuple[Tree, ...], *, first: bool) -> list[tuple[Tree, ...]] | None:
    """Replace a group at one end that holds an anchor by its alternatives; None where there is no such group."""
    places = [i for i, item in enumerate(items) if not isinstance(item, Edge)]
    if not places or not has_edge(items[at := places[0 if first else -1]]):
        return None
    group = items[at]

    def put(inner: tuple[Tree, ...]) -> tuple[Tree, ...]:
        return (*items[:at], *inner, *items[at + 1 :])

    if isinstance(group, Seq):
        return [put(group.items)]
    if isinstance(group, Alt):
        return [put((item,)) for item in group.items]
    if isinstance(group, Repeat) and group.high == 1:
        return [put((group.item,))] + ([put(())] if group.low == 0 else [])
    raise UnsupportedRegexError("an anchor inside a repetition")


def _framed(items: tuple[Tree, ...], *, search: bool) -> Tree:
    start, end = 0, len(items)
    while start < end and items[start] == Edge(start=True):
        start += 1
    while end > start and items[end - 1] == Edge(start=False):
        end -= 1
    body = items[start:end]
    if any(has_edge(item) for item in body):
        raise UnsupportedRegexError("an anchor in the middle")
    if search and start == 0:
        body = (ANY_TEXT, *body)
    if search and end == len(items):
        body = (*body, ANY_TEXT)
    return Seq(body)


def simplified(tree: Tree) -> Tree:
    """Without branches that match nothing; `NOTHING` where no branch is left. Nested sequences are flattened and runs
    of one thing counted together, for a text that can be split between two runs in many ways costs a parser dearly.
    """
    if isinstance(tree, Alt):
        items = [item for item in map(simplified, tree.items) if item != NOTHING]
        return NOTHING if not items else items[0] if len(items) == 1 else Alt(tuple(items))
    if isinstance(tree, Repeat):
        item = simplified(tree.item)
        if item == NOTHING:
            return EMPTY if tree.low == 0 else NOTHING
        return (
            EMPTY if tree.high == 0 else item if (tree.low, tree.high) == (1, 1) else Repeat(item, tree.low, tree.high)
        )
    if isinstance(tree, Seq):
        flat: list[Tree] = []
        for item in map(simplified, tree.items):
            if item == NOTHING:
                return NOTHING
            for part in item.items if isinstance(item, Seq) else (item,):
                if flat and (run := _joined(flat[-1], part)) is not None:
                    flat[-1] = run
                else:
                    flat.append(part)
        return flat[0] if len(flat) == 1 else Seq(tuple(flat))
    return tree


def _joined(first: Tree, second: Tree) -> Repeat | None:
    """Two repetitions of one thing, one after the other, as one; None where they are not."""
    if not (isinstance(first, Repeat) and isinstance(second, Repeat) and first.item == second.item):
        return None
    high = None if first.high is None or second.high is None else first.high + second.high
    return Repeat(first.item, first.low + second.low, high)


def narrowed(tree: Tree, keep: Callable[[Chars], Chars]) -> Tree:
    """`tree` with every character class passed through `keep`."""
    if isinstance(tree, Chars):
        return keep(tree)
    if isinstance(tree, Seq):
        return Seq(tuple(narrowed(item, keep) for item in tree.items))
    if isinstance(tree, Alt):
        return Alt(tuple(narrowed(item, keep) for item in tree.items))
    return Repeat(narrowed(tree.item, keep), tree.low, tree.high) if isinstance(tree, Repeat) else tree


def render(tree: Tree) -> str:
    r"""Write a tree in the subset of regex syntax that every backend and Python's `re` read alike.

    Only classes, groups, alternatives and counted repetitions; nothing depends on flags, and `.` `\\d` `\\w` are never
    used.
    """
    if isinstance(tree, Chars):
        return _render_chars(tree)
    if isinstance(tree, Alt):
        return "(?:" + "|".join(map(render, tree.items)) + ")"
    if isinstance(tree, Seq):
        return "".join(map(render, tree.items))
    if isinstance(tree, Edge):
        raise UnsupportedRegexError("an unresolved anchor")
    item = render(tree.item)
    atom = item if isinstance(tree.item, (Chars, Alt)) else f"(?:{item})"
    return atom + _COUNTS.get((tree.low, tree.high), _count(tree.low, tree.high))


_COUNTS: Final = {(0, None): "*", (1, None): "+", (0, 1): "?"}


def _count(low: int, high: int | None) -> str:
    return f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"


def _render_chars(tree: Chars) -> str:
    ranges = tree.ranges
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _escaped(ranges[0][0])
    if tree == ANY:
        return r"[\s\S]"
    negated = bool(ranges) and ranges[-1][1] == LAST
    shown = _complement(list(ranges)) if negated else ranges
    # Control characters last: xgrammar takes hexadecimal digits after one for a part of it.
    ordered = sorted(shown, key=lambda one: one[0] < 0x20 or one[1] == 0x7F)
    body = "".join(_escaped(low) + (f"-{_escaped(high)}" if high > low else "") for low, high in ordered)
    return f"[{'^' if negated else ''}{body}]"


def _escaped(code: int) -> str:
    character = chr(code)
    if character in _SYNTAX:
        return "\\" + character
    if code in _CONTROLS:
        return "\\" + _CONTROLS[code]
    if code < 0x20 or code == 0x7F:
        # In braces: xgrammar reads as many hexadecimal digits as there are after any other form.
        return f"\\u{{{code:x}}}"
    return character


_SYNTAX: Final = frozenset(".^$*+?()[]{}|\\-/")
_CONTROLS: Final = {9: "t", 10: "n", 11: "v", 12: "f", 13: "r"}
