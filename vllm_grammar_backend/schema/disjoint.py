"""A cautious proof that no value is valid against two nodes at once."""

from __future__ import annotations

from typing import Any, Final

from vllm_grammar_backend.schema.merge import CannotMergeError, common_types, merge
from vllm_grammar_backend.schema.node import TYPES, Document, Node
from vllm_grammar_backend.schema.values import accepts

MAX_STEPS: Final = 24
"""References, branches and properties one inside another that a proof follows."""
_MAX_VALUES: Final = 1000


def disjoint(first: Node, second: Node, document: Document, steps: int = MAX_STEPS) -> bool:
    """True only where it is certain."""
    document.fuel.burn(first)
    if first.never or second.never:
        return True
    if steps <= 0 or first is second:
        return False
    first, second = _opened(first, document, steps), _opened(second, document, steps)
    if first.never or second.never:
        return True
    if _branch(first, second, document, steps) or _branch(second, first, document, steps):
        return True
    if _excluded(first, second, document) or _excluded(second, first, document):
        return True
    types = common_types(first.get("type", TYPES), second.get("type", TYPES))
    return all(_apart(kind, first, second, document, steps - 1) for kind in types)


def _opened(node: Node, document: Document, steps: int) -> Node:
    """References followed and `allOf` merged, as far as that goes; what cannot be merged is left out, so the result
    admits more than `node` at most.
    """
    for _ in range(steps):
        parts = list(node.get("allOf", ()))
        if "$ref" in node.keywords:
            parts.append(document.definitions[node.keywords["$ref"]])
        if not parts or node.never:
            break
        node = node.without("allOf", "$ref")
        for part in parts:
            try:
                node = merge(node, part)
            except CannotMergeError:
                continue
    return node


def _branch(first: Node, second: Node, document: Document, steps: int) -> bool:
    for keyword in ("anyOf", "oneOf"):
        branches = first.get(keyword)
        if branches and all(disjoint(branch, second, document, steps // 2) for branch in branches):
            return True
    return False


def _excluded(first: Node, second: Node, document: Document) -> bool:
    """Every value that `first` lists is refused by `second`, or `second` is what `first` negates."""
    values = first.get("enum")
    if values is not None and len(values) <= _MAX_VALUES:
        return all(accepts(second, value, document) is False for value in values)
    inner = first.get("not")
    return inner is not None and inner == second


def _apart(kind: str, first: Node, second: Node, document: Document, steps: int) -> bool:
    if kind in ("number", "integer"):
        return _past(first, second) or _past(second, first)
    if kind == "string":
        return _short(first, second, "Length") or _short(second, first, "Length")
    if kind == "array":
        return _arrays(first, second, document, steps) or _arrays(second, first, document, steps)
    if kind == "object":
        return _objects(first, second, document, steps) or _objects(second, first, document, steps)
    return False


def _past(first: Node, second: Node) -> bool:
    """All numbers of `first` lie below those of `second`."""
    tops = [(first.keywords[k], k != "maximum") for k in ("maximum", "exclusiveMaximum") if k in first.keywords]
    bottoms = [(second.keywords[k], k != "minimum") for k in ("minimum", "exclusiveMinimum") if k in second.keywords]
    return any(top < low or (top == low and (a or b)) for top, a in tops for low, b in bottoms)


def _short(first: Node, second: Node, what: str) -> bool:
    high, low = first.get(f"max{what}"), second.get(f"min{what}")
    return high is not None and low is not None and high < low


def _arrays(first: Node, second: Node, document: Document, steps: int) -> bool:
    if _short(first, second, "Items"):
        return True
    sure = max(first.get("minItems", 0), second.get("minItems", 0))
    return any(disjoint(_item(first, i), _item(second, i), document, steps // 2) for i in range(min(sure, 8)))


def _item(node: Node, index: int) -> Node:
    prefix: tuple[Node, ...] = node.get("prefixItems", ())
    rest: Node = node.get("items", Node(node.pointer))
    return prefix[index] if index < len(prefix) else rest


def _objects(first: Node, second: Node, document: Document, steps: int) -> bool:
    if _short(first, second, "Properties"):
        return True
    sure: dict[str, Any] = dict.fromkeys([*first.get("required", ()), *second.get("required", ())])
    return any(disjoint(_property(first, n), _property(second, n), document, steps // 2) for n in sure)


def _property(node: Node, name: str) -> Node:
    """What `node` at least says of this property."""
    named: dict[str, Node] = node.get("properties", {})
    if name in named or "patternProperties" in node.keywords:
        return named.get(name, Node(node.pointer))
    rest: Node = node.get("additionalProperties", Node(node.pointer))
    return rest
