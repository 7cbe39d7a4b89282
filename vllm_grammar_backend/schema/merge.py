"""Two nodes that hold for one value, as one node."""

from __future__ import annotations

from typing import Any, Final

from vllm_grammar_backend.schema.node import Node
from vllm_grammar_backend.schema.values import equal

_HIGHER: Final = frozenset(
    {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains", "uniqueItems"}
)
_LOWER: Final = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains"})
_OBJECT: Final = frozenset({"properties", "patternProperties", "additionalProperties"})
_ARRAY: Final = frozenset({"prefixItems", "items"})
_BRANCHING: Final = frozenset({"anyOf", "oneOf", "not"})
_SCOPED: Final = frozenset({"unevaluatedProperties", "unevaluatedItems"})
"""What these mean depends on which keywords stand beside them, so they cannot be moved."""


class CannotMergeError(Exception):
    """`keyword` of the two nodes has no single value that says both."""

    def __init__(self, keyword: str, pointer: str) -> None:
        super().__init__(keyword)
        self.keyword = keyword
        self.pointer = pointer


def merge(first: Node, second: Node) -> Node:
    """The conjunction; subschemas that meet are left as an `allOf` of two.

    Raises:
        CannotMergeError: a keyword of both whose conjunction needs both.
    """
    if first.never or second.never or first.anything:
        return second if not first.never else first
    out = dict(first.keywords)
    for keyword, value in second.keywords.items():
        if keyword in _SCOPED or not _SCOPED.isdisjoint(first.keywords):
            raise CannotMergeError(next(iter(_SCOPED & (first.keywords.keys() | {keyword}))), first.pointer)
        if keyword in _OBJECT or keyword in _ARRAY:
            continue
        if keyword in out:
            _combine(keyword, value, out, first.pointer)
        else:
            out[keyword] = value
    if "contains" in first.keywords and "contains" in second.keywords:
        out["minContains"] = max(first.get("minContains", 1), second.get("minContains", 1))
    _objects(first, second, out)
    _arrays(first, second, out)
    if out.get("type") == () or out.get("enum") == ():
        return Node(first.pointer, never=True)
    return Node(first.pointer, out)


def both(first: Node, second: Node) -> Node:
    if first.never or second.anything:
        return first
    if second.never or first.anything or first == second:
        return second
    return Node(first.pointer, {"allOf": (first, second)})


def _combine(keyword: str, value: Any, out: dict[str, Any], pointer: str) -> None:
    old = out[keyword]
    if keyword == "type":
        out["type"] = common_types(old, value)
    elif keyword == "enum":
        out["enum"] = tuple(item for item in old if any(equal(item, other) for other in value))
    elif keyword in _HIGHER:
        out[keyword] = max(old, value)
    elif keyword in _LOWER:
        out[keyword] = min(old, value)
    elif keyword == "required":
        out["required"] = list(dict.fromkeys([*old, *value]))
    elif keyword == "allOf":
        out["allOf"] = (*old, *value)
    elif keyword == "not" and _lists_values(old) and _lists_values(value):
        out["not"] = Node(pointer, {"enum": (*old.keywords["enum"], *value.keywords["enum"])})
    elif keyword in _BRANCHING:
        out["allOf"] = (*out.get("allOf", ()), Node(pointer, {keyword: value}))
    elif old != value:
        raise CannotMergeError(keyword, pointer)


def _lists_values(node: Node) -> bool:
    return node.keywords.keys() == {"enum"}


def common_types(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    found: list[str] = []
    for one in first:
        if one in second or (one == "integer" and "number" in second):
            found.append(one)
        elif one == "number" and "integer" in second:
            found.append("integer")
    return tuple(found)


def _objects(first: Node, second: Node, out: dict[str, Any]) -> None:
    mine, other = _OBJECT & first.keywords.keys(), _OBJECT & second.keywords.keys()
    if not mine or not other:
        out.update({k: second.keywords[k] for k in other})
        return
    if "patternProperties" in mine | other:
        raise CannotMergeError("patternProperties", first.pointer)
    rest_1 = first.get("additionalProperties", Node(first.pointer))
    rest_2 = second.get("additionalProperties", Node(second.pointer))
    named_1, named_2 = first.get("properties", {}), second.get("properties", {})
    names = dict.fromkeys([*named_1, *named_2])
    out["properties"] = {n: both(named_1.get(n, rest_1), named_2.get(n, rest_2)) for n in names}
    out["additionalProperties"] = both(rest_1, rest_2)


def _arrays(first: Node, second: Node, out: dict[str, Any]) -> None:
    mine, other = _ARRAY & first.keywords.keys(), _ARRAY & second.keywords.keys()
    if not mine or not other:
        out.update({k: second.keywords[k] for k in other})
        return
    rest_1, rest_2 = first.get("items", Node(first.pointer)), second.get("items", Node(second.pointer))
    prefix_1, prefix_2 = first.get("prefixItems", ()), second.get("prefixItems", ())
    out["prefixItems"] = tuple(
        both(_at(prefix_1, i, rest_1), _at(prefix_2, i, rest_2)) for i in range(max(len(prefix_1), len(prefix_2)))
    )
    out["items"] = both(rest_1, rest_2)


def _at(prefix: tuple[Node, ...], index: int, rest: Node) -> Node:
    return prefix[index] if index < len(prefix) else rest
