"""The schema as the passes see it: one draft, references resolved, no annotations, every node knows where it came from.

A `Node` is a conjunction of keywords with 2020-12 meaning, whatever draft it was written in:

| keyword | value |
|---|---|
| `type` | tuple of type names |
| `enum` | tuple of JSON values (`const` is an `enum` of one) |
| `$ref` | a name in `Document.definitions` |
| `properties` `patternProperties` `dependentSchemas` | dict of name to `Node` |
| `allOf` `anyOf` `oneOf` `prefixItems` | tuple of `Node` |
| `not` `if` `then` `else` `items` `contains` `additionalProperties` `propertyNames` `unevaluated*` | `Node` |
| everything else | as in the schema |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from vllm_grammar_backend.errors import ErrorCode, GrammarError

TYPES: Final = ("object", "array", "string", "number", "boolean", "null")
"""Every JSON type; `integer` is a part of `number`."""
STRING_KEYWORDS: Final = frozenset({"minLength", "maxLength", "pattern", "format"})
NUMBER_KEYWORDS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
ARRAY_KEYWORDS: Final = frozenset(
    {
        "contains",
        "items",
        "maxContains",
        "maxItems",
        "minContains",
        "minItems",
        "prefixItems",
        "unevaluatedItems",
        "uniqueItems",
    }
)
OBJECT_KEYWORDS: Final = frozenset(
    {
        "additionalProperties",
        "dependentRequired",
        "dependentSchemas",
        "maxProperties",
        "minProperties",
        "patternProperties",
        "properties",
        "propertyNames",
        "required",
        "unevaluatedProperties",
    }
)
OF_TYPE: Final = {
    "string": STRING_KEYWORDS,
    "number": NUMBER_KEYWORDS,
    "integer": NUMBER_KEYWORDS,
    "array": ARRAY_KEYWORDS,
    "object": OBJECT_KEYWORDS,
    "boolean": frozenset[str](),
    "null": frozenset[str](),
}
"""The keywords that say something about values of each type."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """Equal to another where both say the same; where they were written makes no difference."""

    pointer: str
    """RFC 6901 pointer into the schema as it was sent."""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    never: bool = False
    """True for the schema `false`."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.never == other.never and _same(self.keywords, other.keywords)

    __hash__ = None  # type: ignore[assignment]

    def get(self, keyword: str, default: Any = None) -> Any:
        return self.keywords.get(keyword, default)

    def having(self, **keywords: Any) -> Node:
        """A copy with these keywords set; a value of None removes one."""
        merged = {**self.keywords, **keywords}
        return replace(self, keywords={k: v for k, v in merged.items() if v is not None})

    def without(self, *keywords: str) -> Node:
        return replace(self, keywords={k: v for k, v in self.keywords.items() if k not in keywords})

    def only(self, keywords: frozenset[str]) -> Node:
        return replace(self, keywords={k: v for k, v in self.keywords.items() if k in keywords})

    @property
    def anything(self) -> bool:
        return not self.never and not self.keywords


def _same(first: Any, second: Any) -> bool:
    """Equality that does not take true for 1, as Python's would."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(_same(value, second[key]) for key, value in first.items())
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(_same, first, second))
    return bool(first == second)


@dataclass(slots=True)
class Fuel:
    """Steps that vetting one document may still take; what branches without bound burns it. A step is some 10 µs."""

    left: int = 100_000

    def burn(self, node: Node) -> None:
        self.left -= 1
        if self.left < 0:
            reason = "its combinations take too many steps to resolve"
            raise GrammarError(ErrorCode.TOO_COSTLY, reason, node.pointer)


@dataclass(frozen=True, slots=True)
class Document:
    root: Node
    definitions: Mapping[str, Node]
    fuel: Fuel = field(default_factory=Fuel, compare=False)


def render(document: Document) -> Any:
    """The JSON value of a document: a 2020-12 schema whose references all read `#/$defs/NAME`."""
    root = render_node(document.root)
    if not document.definitions or not isinstance(root, dict):
        return root
    return {**root, "$defs": {name: render_node(node) for name, node in document.definitions.items()}}


def render_node(node: Node) -> Any:
    if node.never:
        return False
    return {keyword: _rendered(keyword, value) for keyword, value in node.keywords.items()}


def _rendered(keyword: str, value: Any) -> Any:
    if keyword == "$ref":
        return f"#/$defs/{value}"
    if keyword == "type":
        return value[0] if len(value) == 1 else list(value)
    if keyword == "enum":
        return list(value)
    if isinstance(value, Node):
        return render_node(value)
    if isinstance(value, tuple):
        return [render_node(item) for item in value]
    if isinstance(value, dict) and keyword in ("properties", "patternProperties", "dependentSchemas"):
        return {name: render_node(item) for name, item in value.items()}
    return value
