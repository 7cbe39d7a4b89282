"""From a checked schema of any draft to a `Document`."""

from __future__ import annotations

from typing import Any, Final

from vllm_grammar_backend.errors import ErrorCode, GrammarError, pointer
from vllm_grammar_backend.schema.metaschema import Draft
from vllm_grammar_backend.schema.node import Document, Node
from vllm_grammar_backend.schema.references import Place, References

_PLAIN: Final = frozenset(
    {
        *("minLength", "maxLength", "pattern", "format", "multipleOf", "minimum", "maximum"),
        *("exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems", "uniqueItems", "minProperties"),
        *("maxProperties", "required"),
    }
)
"""Assertions whose value is taken over as it is."""
_UNEVALUATED: Final = ("unevaluatedItems", "unevaluatedProperties")
"""For these an `if` counts even where nothing follows from it."""
_COUNTS: Final = frozenset(
    {
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        *("minContains", "maxContains"),
    }
)
"""Whole numbers, which may be written 2.0."""
_IN_PLACE: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
"""Applicators that look at the same value as the schema they stand in."""
_LATE: Final = {
    "contains": Draft.D6,
    "propertyNames": Draft.D6,
    "const": Draft.D6,
    "if": Draft.D7,
    "then": Draft.D7,
    "else": Draft.D7,
    "dependentRequired": Draft.D2019,
    "dependentSchemas": Draft.D2019,
    "minContains": Draft.D2019,
    "maxContains": Draft.D2019,
    "unevaluatedItems": Draft.D2019,
    "unevaluatedProperties": Draft.D2019,
    "prefixItems": Draft.D2020,
}
"""The draft each of these keywords came with; in an older one it is unknown, so it asserts nothing."""


def build(schema: Any, draft: Draft, *, formats: bool) -> Document:
    """Resolve, strip and normalise a schema that its metaschema accepts.

    Only what the root reaches is looked at: a definition nobody refers to constrains nothing.

    Args:
        formats: keep `format`; else it is an annotation.

    Raises:
        GrammarError: a reference that cannot be followed, a cycle of references that consumes nothing.
    """
    builder = _Builder(schema, draft, formats=formats)
    root = builder.node(builder.references.root)
    while builder.waiting:
        name, place = builder.waiting.popitem()
        builder.definitions[name] = builder.node(place)
    document = Document(root, builder.definitions)
    _refuse_cycles(document)
    return document


class _Builder:
    def __init__(self, schema: Any, draft: Draft, *, formats: bool) -> None:
        self.references = References(schema, draft)
        self.definitions: dict[str, Node] = {}
        self.waiting: dict[str, Place] = {}
        self._draft = draft
        self._formats = formats
        self._names: dict[tuple[str | int, ...], str] = {}

    def node(self, place: Place) -> Node:
        schema = place.schema
        if isinstance(schema, bool):
            return Node(place.pointer, never=not schema)
        keywords: dict[str, Any] = {}
        if "$ref" in schema:
            keywords["$ref"] = self._name(self.references.resolve(schema["$ref"], place))
            if self._draft <= Draft.D7:
                return Node(place.pointer, keywords)
        self._dynamic(schema, place)
        for keyword, value in schema.items():
            if keyword not in _LATE or self._draft >= _LATE[keyword]:
                self._take(keyword, value, place, keywords)
        self._numbers(keywords)
        return Node(place.pointer, keywords)

    def _name(self, place: Place) -> str:
        name = self._names.setdefault(place.path, f"d{len(self._names)}")
        if name not in self.definitions:
            self.waiting[name] = place
        return name

    def _dynamic(self, schema: dict[str, Any], place: Place) -> None:
        for keyword, draft in (("$recursiveRef", Draft.D2019), ("$dynamicRef", Draft.D2020)):
            if keyword in schema and self._draft is draft:
                reason = "resolved while validating, which no grammar can do"
                where = pointer(*place.path, keyword)
                raise GrammarError(ErrorCode.UNSUPPORTED_SCHEMA, reason, where, keyword, "Use $ref.")

    def _take(self, keyword: str, value: Any, place: Place, out: dict[str, Any]) -> None:
        if keyword in _PLAIN:
            if keyword != "format" or self._formats:
                out[keyword] = int(value) if keyword in _COUNTS else value
        elif keyword in ("type", "enum", "const"):
            self._values(keyword, value, out)
        elif keyword in ("allOf", "anyOf", "oneOf"):
            below = tuple(self._below(place, keyword, i, schema=item) for i, item in enumerate(value))
            out[keyword] = (*out.get("allOf", ()), *below) if keyword == "allOf" else below
        elif keyword in ("properties", "patternProperties"):
            out[keyword] = {name: self._below(place, keyword, name, schema=item) for name, item in value.items()}
        elif keyword in ("not", "additionalProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems"):
            out[keyword] = self._below(place, keyword, schema=value)
        elif keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            self._dependencies(keyword, value, place, out)
        else:
            self._conditions(keyword, value, place, out)

    def _values(self, keyword: str, value: Any, out: dict[str, Any]) -> None:
        if keyword == "type":
            types = [value] if isinstance(value, str) else value
            out["type"] = tuple(t for t in dict.fromkeys(types) if not (t == "integer" and "number" in types))
            return
        values = (value,) if keyword == "const" else tuple(value)
        if "enum" in out:
            old = out.pop("enum")
            out["allOf"] = (*out.get("allOf", ()), Node("", {"enum": old}), Node("", {"enum": values}))
        else:
            out["enum"] = values

    def _conditions(self, keyword: str, value: Any, place: Place, out: dict[str, Any]) -> None:
        schema = place.schema
        if keyword == "if" and not schema.keys().isdisjoint(("then", "else", *_UNEVALUATED)):
            out["if"] = self._below(place, "if", schema=value)
        elif keyword in ("then", "else") and "if" in schema:
            out[keyword] = self._below(place, keyword, schema=value)
        elif keyword == "contains":
            out["contains"] = self._below(place, "contains", schema=value)
        elif keyword in ("minContains", "maxContains") and "contains" in schema:
            out[keyword] = int(value)
        elif keyword == "prefixItems" or (keyword == "items" and isinstance(value, list)):
            out["prefixItems"] = tuple(self._below(place, keyword, i, schema=item) for i, item in enumerate(value))
        elif keyword == "items" or (
            keyword == "additionalItems" and self._draft < Draft.D2020 and isinstance(schema.get("items"), list)
        ):
            out["items"] = self._below(place, keyword, schema=value)

    def _dependencies(self, keyword: str, value: dict[str, Any], place: Place, out: dict[str, Any]) -> None:
        """Split `dependencies` in two. Newer drafts dropped it, but nobody writes it to assert nothing. What is said of
        a name in several of these keywords holds together.
        """
        required, schemas = dict(out.get("dependentRequired", {})), dict(out.get("dependentSchemas", {}))
        for name, item in value.items():
            if isinstance(item, list):
                required[name] = list(dict.fromkeys([*required.get(name, ()), *item]))
                continue
            node = self._below(place, keyword, name, schema=item)
            schemas[name] = Node(node.pointer, {"allOf": (schemas[name], node)}) if name in schemas else node
        if required := {name: item for name, item in required.items() if item}:
            out["dependentRequired"] = required
        if schemas:
            out["dependentSchemas"] = schemas

    def _numbers(self, out: dict[str, Any]) -> None:
        if self._draft is not Draft.D4:
            return
        for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            strict = out.pop(exclusive, False)
            if strict is True and limit in out:
                out[exclusive] = out.pop(limit)

    def _below(self, place: Place, *path: str | int, schema: Any) -> Node:
        return self.node(place.child(*path, schema=schema, draft=self._draft))


def in_place(node: Node) -> list[Node]:
    """The subschemas that look at the same value as `node`."""
    found: list[Node] = []
    for keyword in _IN_PLACE:
        value = node.get(keyword)
        if isinstance(value, Node):
            found.append(value)
        elif isinstance(value, tuple):
            found.extend(value)
        elif isinstance(value, dict):
            found.extend(value.values())
    return found


def _refuse_cycles(document: Document) -> None:
    """Raise where following references and in-place applicators leads back without consuming a value."""
    reached = {name: list(_references(node)) for name, node in document.definitions.items()}
    state: dict[str, bool] = {}
    for start, first in reached.items():
        stack: list[tuple[str, list[tuple[str, str]]]] = []
        if start not in state:
            state[start] = False
            stack.append((start, list(first)))
        while stack:
            name, edges = stack[-1]
            if not edges:
                state[name] = True
                stack.pop()
                continue
            target, where = edges.pop()
            if state.get(target) is False:
                reason = "refers back to itself without consuming anything"
                raise GrammarError(ErrorCode.INVALID_SCHEMA, reason, where + "/$ref", "$ref")
            if target not in state:
                state[target] = False
                stack.append((target, list(reached[target])))


def _references(node: Node) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    stack = [node]
    while stack:
        item = stack.pop()
        if "$ref" in item.keywords:
            found.append((item.keywords["$ref"], item.pointer))
        stack.extend(in_place(item))
    return found
