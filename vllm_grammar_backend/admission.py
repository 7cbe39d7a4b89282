"""What a request is checked for on the request path: bounds that cost microseconds, one parse, one digest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import GrammarKind, GrammarOptions, GrammarSpec, canonical_schema
from vllm_grammar_backend.settings import Limits

SMALL_NODES: Final = 2_000
"""Up to this many JSON values a constraint is admitted on the event loop itself (about 2 ms)."""


def admit(kind: GrammarKind, value: object, options: GrammarOptions, limits: Limits) -> GrammarSpec:
    """Check the bounds and make the canonical form.

    Args:
        kind: what the request names.
        value: as vLLM hands it over: a schema or tag as object or JSON text, a regex or grammar as text,
            choices as a list of strings; ignored for `json_object`.
        options: from the settings and the request.
        limits: from the settings.

    Raises:
        GrammarError: past a limit, or not even JSON.
    """
    if kind is GrammarKind.JSON_OBJECT:
        return GrammarSpec(kind, "", options)
    if kind in (GrammarKind.REGEX, GrammarKind.GRAMMAR):
        text = _text(kind, value)
        _check_size(kind, text, limits.regex_bytes if kind is GrammarKind.REGEX else limits.bytes)
        return GrammarSpec(kind, text, options)
    tree = _parse(kind, value, limits)
    check_bounds(tree, limits)
    if kind is GrammarKind.JSON:
        tree = canonical_schema(tree)
    text = _dump(tree)
    _check_size(kind, text, limits.bytes)
    return GrammarSpec(kind, text, options)


def is_small(value: object) -> bool:
    """True if `admit` is cheap enough for an event loop."""
    if isinstance(value, str):
        return len(value) <= 16 * SMALL_NODES
    seen = 0
    stack = [value]
    while stack and seen <= SMALL_NODES:
        node = stack.pop()
        seen += 1
        if isinstance(node, dict):
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
        else:
            seen += _length(node) // 64
    return seen <= SMALL_NODES


def check_bounds(tree: object, limits: Limits) -> None:
    """Refuse a JSON value that is too deep, too wide or too long; stops soon after the first limit is passed."""
    nodes = size = depth = 0
    level: list[object] = [tree]
    while level:
        nodes += len(level)
        below: list[object] = []
        for node in level:
            size += _spread(node, below, limits)
            if nodes + len(below) > limits.nodes:
                raise _too_large(f"it has more than {limits.nodes} values", "nodes", limits.nodes)
        if size > limits.bytes:
            raise _too_large(
                f"its strings and numbers alone have more than {limits.bytes} bytes", "bytes", limits.bytes
            )
        if depth > limits.depth:
            raise _too_large(f"it is nested more than {limits.depth} levels deep", "depth", limits.depth)
        depth += 1
        level = below


def _spread(node: object, below: list[object], limits: Limits) -> int:
    """Add a node's children to `below`; the characters of its own strings."""
    if isinstance(node, dict):
        below.extend(node.values())
        if not all(isinstance(key, str) for key in node):
            raise GrammarError(ErrorCode.INVALID_SCHEMA, "an object of the constraint has a key that is not a string")
        return sum(map(len, node))
    if isinstance(node, list):
        if len(node) > limits.enum:
            raise _too_large(f"an array has {len(node)} entries", "enum", limits.enum)
        below.extend(node)
        return 0
    return _length(node)


def _length(node: object) -> int:
    """About the characters of a scalar. Digits of an integer are counted because printing them costs their square."""
    if isinstance(node, str):
        return len(node)
    return node.bit_length() // 3 if isinstance(node, int) else 0


def _too_large(what: str, limit: str, value: int) -> GrammarError:
    return GrammarError(
        ErrorCode.TOO_LARGE, f"the constraint is too large: {what}", hint=f"The setting limits.{limit} is {value}."
    )


def _check_size(kind: GrammarKind, text: str, most: int) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise GrammarError(_invalid(kind), f"the {kind} holds a lone surrogate, which is not text") from None
    if size > most:
        name = "regex_bytes" if kind is GrammarKind.REGEX else "bytes"
        raise _too_large(f"{size} bytes", name, most)


def _invalid(kind: GrammarKind) -> ErrorCode:
    return ErrorCode.INVALID_SCHEMA if kind is GrammarKind.JSON else ErrorCode.INVALID_GRAMMAR


def _text(kind: GrammarKind, value: object) -> str:
    if not isinstance(value, str):
        raise GrammarError(ErrorCode.INVALID_GRAMMAR, f"a {kind} must be a string, not {type(value).__name__}")
    return value


def _parse(kind: GrammarKind, value: object, limits: Limits) -> object:
    if isinstance(value, str):
        if len(value) > 4 * limits.bytes:
            raise _too_large(f"{len(value)} characters", "bytes", limits.bytes)
        try:
            return json.loads(value)
        except RecursionError:
            raise _too_large(f"it is nested more than {limits.depth} levels deep", "depth", limits.depth) from None
        except ValueError as error:
            where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
            raise GrammarError(_invalid(kind), f"the {kind} is not valid JSON{where}") from None
    if kind is GrammarKind.CHOICE and isinstance(value, Sequence):
        return list(value)
    return value


def _dump(tree: object) -> str:
    try:
        return json.dumps(tree, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise GrammarError(ErrorCode.INVALID_SCHEMA, f"the constraint is not a JSON value: {error}") from None
