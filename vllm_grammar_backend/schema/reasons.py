"""Further reasons beside the first: whoever wrote a schema wants to hear of all of them at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, Final

from vllm_grammar_backend.errors import ErrorCode, GrammarError

MOST: Final = 8
"""Reasons in all. Each costs one more lowering."""
MOST_S: Final = 1.0
"""Seconds after which no further one is looked for."""
_OF_ONE_PLACE: Final = frozenset({ErrorCode.INVALID_SCHEMA, ErrorCode.UNSUPPORTED_SCHEMA})
"""What a keyword is refused for by itself; that no value is valid may be the doing of what was taken out."""


def every(schema: Any, lower: Callable[[Any], Any]) -> Any:
    """`lower(schema)`, whose refusal tells of other places as well.

    Each reason is true of the schema: with all other places taken out, it is still refused for that one. The list may
    not be complete.

    Raises:
        GrammarError: that of `lower`, with `more`.
    """
    try:
        return lower(schema)
    except GrammarError as first:
        found = tuple(_others(schema, lower, first))
        raise GrammarError(first.code, first.reason, first.pointer, first.keyword, first.hint, found) from None


def _others(schema: Any, lower: Callable[[Any], Any], error: GrammarError) -> Iterator[GrammarError]:
    rest, seen, began = copy.deepcopy(schema), {error.pointer}, perf_counter()
    while len(seen) < MOST and perf_counter() - began < MOST_S and error.code in _OF_ONE_PLACE:
        if not _take_out(rest, error.pointer or ""):
            return
        try:
            lower(rest)
        except GrammarError as found:
            error = found
        else:
            return
        if error.pointer in seen or error.code not in _OF_ONE_PLACE:
            return
        seen.add(error.pointer)
        yield error


def _take_out(schema: Any, pointer: str) -> bool:
    """Delete the keyword that a JSON pointer leads into; of a list, all of it. False where it leads nowhere."""
    holder, key, node = None, "", schema
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and name in node:
            holder, key, node = node, name, node[name]
        elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
            node = node[int(name)]
        else:
            return False
    if holder is None:
        return False
    del holder[key]
    return True
