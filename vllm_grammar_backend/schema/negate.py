"""The complement of a node, where it can be said without `not`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from vllm_grammar_backend.schema.node import TYPES, Document, Node

MAX_STEPS: Final = 32


class CannotNegateError(Exception):
    """The complement of this keyword has no form that a grammar can take."""

    def __init__(self, keyword: str, pointer: str) -> None:
        super().__init__(keyword)
        self.keyword = keyword
        self.pointer = pointer


_FLIPPED: Final[dict[str, tuple[str, str, int]]] = {
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
    "minimum": ("number", "exclusiveMaximum", 0),
    "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0),
    "exclusiveMaximum": ("number", "minimum", 0),
}


def negate(node: Node, document: Document, steps: int = MAX_STEPS) -> Node:
    """Valid exactly where `node` is not. A lone `not` of an `enum` is left as such.

    Raises:
        CannotNegateError: a keyword whose complement cannot be said, e.g. `pattern`.
    """
    document.fuel.burn(node)
    if steps == 0:
        raise CannotNegateError("$ref", node.pointer)
    if node.never:
        return Node(node.pointer)
    options = [item for keyword in node.keywords for item in _parts(keyword, node, document, steps - 1)]
    if not options:
        return Node(node.pointer, never=True)
    return options[0] if len(options) == 1 else Node(node.pointer, {"anyOf": tuple(options)})


def _parts(keyword: str, node: Node, document: Document, steps: int) -> Iterator[Node]:
    value = node.keywords[keyword]
    if keyword in _FLIPPED:
        kind, other, step = _FLIPPED[keyword]
        if value + step >= 0 or kind == "number":
            yield Node(node.pointer, {"type": (kind,), other: value + step})
    elif keyword in ("allOf", "anyOf", "$ref", "properties"):
        yield from _below(keyword, value, node.pointer, document, steps)
    else:
        yield from _alone(keyword, value, node.pointer)


def _alone(keyword: str, value: Any, at: str) -> Iterator[Node]:
    if keyword == "type":
        yield _other_types(value, at)
    elif keyword == "enum":
        yield Node(at, {"not": Node(at, {"enum": value})})
    elif keyword == "required":
        yield from (Node(at, {"type": ("object",), "properties": {name: Node(at, never=True)}}) for name in value)
    elif keyword == "not":
        yield value
    else:
        raise CannotNegateError(keyword, at)


def _below(keyword: str, value: Any, at: str, document: Document, steps: int) -> Iterator[Node]:
    if keyword == "$ref":
        yield negate(document.definitions[value], document, steps)
    elif keyword == "properties":
        for name, schema in value.items():
            inner = negate(schema, document, steps)
            if not inner.never:
                yield Node(at, {"type": ("object",), "properties": {name: inner}, "required": [name]})
    else:
        yield from _branches(keyword, value, at, document, steps)


def _branches(keyword: str, value: tuple[Node, ...], at: str, document: Document, steps: int) -> Iterator[Node]:
    inner = tuple(negate(item, document, steps) for item in value)
    if keyword == "allOf":
        yield from (item for item in inner if not item.never)
    elif not any(item.never for item in inner):
        yield Node(at, {"allOf": inner})


def _other_types(types: tuple[str, ...], at: str) -> Node:
    if "integer" in types:
        raise CannotNegateError("type", at)
    rest: tuple[str, ...] = tuple(t for t in TYPES if t not in types)
    keywords: dict[str, Any] = {"type": rest}
    return Node(at, keywords) if rest else Node(at, never=True)
