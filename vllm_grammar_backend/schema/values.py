"""What is known of a JSON value and a schema without running anything: equality, types, a cautious verdict."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Final

from vllm_grammar_backend.schema.node import Document, Node
from vllm_grammar_backend.schema.patterns import pattern_tree
from vllm_grammar_backend.schema.regex_match import matches

MAX_STEPS: Final = 64
"""References and subschemas one inside another that a verdict follows."""
MAX_UNIQUE: Final = 200
"""Items that are compared with each other."""
_UNDECIDED: Final = frozenset({"if", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties", "format"})


def equal(first: Any, second: Any) -> bool:
    """JSON equality: 1 and 1.0 are one number, true is none."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(equal, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(equal(v, second[k]) for k, v in first.items())
    return type(first) is type(second) and first == second if isinstance(first, str) else bool(first == second)


def type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    if isinstance(value, (int, float)):
        return "integer" if value == int(value) else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def of_type(value: Any, types: Iterable[str]) -> bool:
    kind = type_of(value)
    return kind in types or (kind == "integer" and "number" in types)


def accepts(node: Node, value: Any, document: Document, steps: int = MAX_STEPS) -> bool | None:
    """Whether `value` is valid against `node`; None where that is not certain."""
    document.fuel.burn(node)
    if node.never or steps == 0:
        return False if node.never else None
    kind = type_of(value)
    verdicts = [_scalar(node, value)]
    if kind == "string":
        verdicts.append(_string(node, value))
    elif kind in ("integer", "number"):
        verdicts.append(_number(node, value))
    elif kind == "array":
        verdicts.append(_array(node, value, document, steps - 1))
    elif kind == "object":
        verdicts.append(_object(node, value, document, steps - 1))
    verdicts.append(_combined(node, value, document, steps - 1))
    return every(verdicts)


def every(verdicts: Iterable[bool | None]) -> bool | None:
    """Conjunction with None for unknown."""
    seen = list(verdicts)
    return False if False in seen else None if None in seen else True


def some(verdicts: Iterable[bool | None]) -> bool | None:
    seen = list(verdicts)
    return True if True in seen else None if None in seen else False


def _scalar(node: Node, value: Any) -> bool | None:
    if "type" in node.keywords and not of_type(value, node.keywords["type"]):
        return False
    if "enum" in node.keywords and not any(equal(value, item) for item in node.keywords["enum"]):
        return False
    return None if not _UNDECIDED.isdisjoint(node.keywords) else True


def _string(node: Node, value: str) -> bool | None:
    if not node.get("minLength", 0) <= len(value) <= node.get("maxLength", len(value)):
        return False
    pattern = node.get("pattern")
    return True if pattern is None else matches(pattern_tree(pattern, node.pointer), value)


def _number(node: Node, value: float) -> bool | None:
    low, high = node.get("minimum", value), node.get("maximum", value)
    if not low <= value <= high:
        return False
    if "exclusiveMinimum" in node.keywords and value <= node.keywords["exclusiveMinimum"]:
        return False
    if "exclusiveMaximum" in node.keywords and value >= node.keywords["exclusiveMaximum"]:
        return False
    step = node.get("multipleOf")
    return True if step is None else Fraction(str(value)) % Fraction(str(step)) == 0


def _array(node: Node, value: list[Any], document: Document, steps: int) -> bool | None:
    if not node.get("minItems", 0) <= len(value) <= node.get("maxItems", len(value)):
        return False
    if node.get("uniqueItems") and len(value) > MAX_UNIQUE:
        return None
    if node.get("uniqueItems") and any(equal(a, b) for i, a in enumerate(value) for b in value[:i]):
        return False
    prefix = node.get("prefixItems", ())
    rest = node.get("items", Node(""))
    verdicts = [accepts(prefix[i] if i < len(prefix) else rest, v, document, steps) for i, v in enumerate(value)]
    if "contains" in node.keywords:
        inside = [accepts(node.keywords["contains"], item, document, steps) for item in value]
        low, high = node.get("minContains", 1), node.get("maxContains", len(value))
        verdicts.append(None if None in inside else low <= inside.count(True) <= high)
    return every(verdicts)


def _object(node: Node, value: dict[str, Any], document: Document, steps: int) -> bool | None:
    if not node.get("minProperties", 0) <= len(value) <= node.get("maxProperties", len(value)):
        return False
    if any(name not in value for name in node.get("required", ())):
        return False
    if any(n in value and not value.keys() >= set(names) for n, names in node.get("dependentRequired", {}).items()):
        return False
    verdicts: list[bool | None] = []
    for name, item in value.items():
        verdicts.extend(accepts(schema, item, document, steps) for schema in schemas_for(node, name, document))
        if "propertyNames" in node.keywords:
            verdicts.append(accepts(node.keywords["propertyNames"], name, document, steps))
    return every(verdicts)


def schemas_for(node: Node, name: str, document: Document) -> list[Node]:
    """The subschemas that the value of property `name` must obey."""
    named = node.get("properties", {})
    found = [named[name]] if name in named else []
    for pattern, schema in node.get("patternProperties", {}).items():
        document.fuel.burn(node)
        if matches(pattern_tree(pattern, node.pointer, "patternProperties"), name):
            found.append(schema)
    return found or [node.get("additionalProperties", Node(""))]


def _combined(node: Node, value: Any, document: Document, steps: int) -> bool | None:
    verdicts: list[bool | None] = [accepts(item, value, document, steps) for item in node.get("allOf", ())]
    if "$ref" in node.keywords:
        verdicts.append(accepts(document.definitions[node.keywords["$ref"]], value, document, steps))
    if "anyOf" in node.keywords:
        verdicts.append(some(accepts(item, value, document, steps) for item in node.keywords["anyOf"]))
    if "oneOf" in node.keywords:
        branches = [accepts(item, value, document, steps) for item in node.keywords["oneOf"]]
        verdicts.append(False if branches.count(True) > 1 else None if None in branches else True in branches)
    if "not" in node.keywords:
        inside = accepts(node.keywords["not"], value, document, steps)
        verdicts.append(None if inside is None else not inside)
    return every(verdicts)
