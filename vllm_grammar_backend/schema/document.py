"""JSON text to a JSON value, strictly; and where in a schema further schemas stand."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final

from vllm_grammar_backend.errors import ErrorCode, GrammarError

MAX_DEPTH: Final = 128
"""Nested arrays and objects; every pass below recurses at most a few Python frames per level."""

MAPS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
"""Keywords whose value maps names to schemas. In `dependencies` a value may also be a list of names."""
LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SINGLES: Final = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
"""Keywords whose value is one schema. `items` may be a list of them in older drafts."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def parse(text: str, code: ErrorCode = ErrorCode.INVALID_SCHEMA) -> Any:
    """Read JSON as RFC 8259 has it, and refuse what two readers could read differently.

    Raises:
        GrammarError: with `code` for malformed JSON, duplicate names, NaN and infinities, numbers past the range of
            a double, unpaired surrogates; `TOO_LARGE` for too many levels.
    """
    _check_depth(text)
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as e:
        raise GrammarError(code, f"not JSON: {e.msg} (line {e.lineno}, column {e.colno})") from None
    except _UnreadableError as e:
        raise GrammarError(code, str(e)) from None
    except ValueError:
        raise GrammarError(code, "an integer with too many digits") from None
    for string in _strings(value):
        if _SURROGATE.search(string):
            raise GrammarError(code, "a string holds an unpaired surrogate, which UTF-8 cannot carry")
    return value


def children(schema: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every direct subschema with its path below `schema`, whatever the draft."""
    for keyword, value in schema.items():
        if keyword in MAPS and isinstance(value, dict):
            yield from (((keyword, name), child) for name, child in value.items() if is_schema(child))
        elif keyword in LISTS or (keyword == "items" and isinstance(value, list)):
            if isinstance(value, list):
                yield from (((keyword, i), child) for i, child in enumerate(value) if is_schema(child))
        elif keyword in SINGLES and is_schema(value):
            yield (keyword,), value


def is_schema(value: object) -> bool:
    return isinstance(value, (dict, bool))


def keyword_at(path: list[str | int]) -> str | None:
    """The keyword a path from the root leads into: never the name of a property."""
    keyword: str | None = None
    i = 0
    while i < len(path):
        keyword = str(path[i])
        nested = keyword in MAPS or keyword in LISTS or (keyword == "items" and path[i + 1 : i + 2] == [0])
        if not nested and keyword not in SINGLES:
            break
        i += 2 if nested or (i + 1 < len(path) and isinstance(path[i + 1], int)) else 1
    return keyword


class _UnreadableError(Exception):
    """Well-formed JSON that means different things to different readers."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _UnreadableError("an object has the same name twice")
    return value


def _no_constant(name: str) -> float:
    raise _UnreadableError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise _UnreadableError("a number is past the range of a double")
    return number


def _check_depth(text: str) -> None:
    """Count brackets outside strings: `json` itself recurses."""
    depth = 0
    for mark in re.finditer(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]', text, re.DOTALL):
        if mark[0] in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise GrammarError(ErrorCode.TOO_LARGE, f"nested deeper than {MAX_DEPTH} levels")
        elif mark[0] in "]}":
            depth -= 1


def _strings(value: Any) -> Iterator[str]:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            stack.extend(item)
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
