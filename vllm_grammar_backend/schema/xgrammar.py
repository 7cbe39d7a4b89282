"""What xgrammar 0.2.8 enforces exactly, and the rewriting of the rest into that. See `support.py` for the table.

The library reads one keyword group per node and drops what stands beside it without a word, so it is only ever handed
flat nodes whose every keyword it was seen to enforce.
"""

from __future__ import annotations

import math
from typing import Any, Final

from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.schema.flatten import Flattener, union
from vllm_grammar_backend.schema.formats import NAMED, PATTERNS
from vllm_grammar_backend.schema.node import OF_TYPE, TYPES, Document, Node
from vllm_grammar_backend.schema.objects import all_but, bounded_text, names_tree
from vllm_grammar_backend.schema.patterns import pattern_tree
from vllm_grammar_backend.schema.regex_match import matches
from vllm_grammar_backend.schema.regex_tree import NOTHING, Chars, Tree, narrowed, render, simplified, with_lengths
from vllm_grammar_backend.schema.values import accepts, every, of_type

MAX_SAFE: Final = 2**53
"""Integers the library keeps exact in `enum`."""
MAX_BOUND: Final = 10**15
"""Bounds of numbers it keeps exact; it writes at most 6 digits after the point where there is a bound."""


class XgrammarLowering:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._flattener = Flattener(document)
        self._definitions: dict[str, Node] = {}
        self._waiting: list[str] = []

    def lower(self) -> Document:
        root = self._node(self._document.root)
        while self._waiting:
            name = self._waiting.pop()
            if self._definitions[name].never:
                self._definitions[name] = self._node(self._document.definitions[name])
        return Document(root, self._definitions)

    def _node(self, node: Node) -> Node:
        if not node.keywords:
            return node
        flat = [item for each in self._flattener.flatten(node) for item in self._typed(each)]
        return union([item for item in flat if not item.never], node.pointer)

    def _typed(self, node: Node) -> list[Node]:
        if node.keywords.keys() == {"$ref"}:
            name = node.keywords["$ref"]
            if name not in self._definitions:
                self._definitions[name] = Node("", never=True)
                self._waiting.append(name)
            return [node]
        if "enum" in node.keywords:
            return self._enumerated(node)
        types = node.get("type", TYPES)
        if set(types) == set(TYPES) and node.keywords.keys() <= {"type"}:
            return [Node(node.pointer)]
        return [self._single(kind, node) for kind in types]

    def _enumerated(self, node: Node) -> list[Node]:
        rest = node.without("enum")
        kept: list[Any] = []
        for value in node.keywords["enum"]:
            good = accepts(rest, value, self._document)
            if good is None:
                raise _declined("enum", node, "its values cannot be checked against the keywords beside it")
            if good:
                kept.append(value)
        plain = [value for value in kept if not isinstance(value, (list, dict))]
        for value in plain:
            if isinstance(value, (int, float)) and abs(value) > MAX_SAFE:
                raise _declined("enum", node, "a number past 2^53 would lose digits")
        found = [Node(node.pointer, {"enum": tuple(plain)})] if plain else []
        return found + [_constant(value, node.pointer) for value in kept if isinstance(value, (list, dict))]

    def _single(self, kind: str, node: Node) -> Node:
        """A node of one type, with that type's keywords and no others."""
        barred = [v for v in node.get("not", Node("")).get("enum", ()) if of_type(v, (kind,))]
        flat = Node(node.pointer, {"type": (kind,), **node.only(OF_TYPE[kind]).keywords})
        if kind == "string":
            return _string(flat, barred)
        if kind == "boolean" and barred:
            left = tuple(value for value in (True, False) if value not in barred)
            return Node(node.pointer, {"enum": left}) if left else Node(node.pointer, never=True)
        if kind == "null" and barred:
            return Node(node.pointer, never=True)
        if barred:
            raise _declined("not", node, f"the complement of some {kind} values cannot be enforced")
        if kind in ("integer", "number"):
            return _number(flat)
        if kind == "array":
            return self._array(flat)
        return self._object(flat) if kind == "object" else flat

    def _array(self, node: Node) -> Node:
        if "contains" in node.keywords and node.get("minContains", 1) > 0:
            raise _declined("contains", node)
        if "maxContains" in node.keywords and "contains" in node.keywords:
            raise _declined("maxContains", node)
        low, high = node.get("minItems", 0), node.get("maxItems")
        if node.get("uniqueItems") and (high is None or high > 1):
            raise _declined("uniqueItems", node)
        prefix = [self._node(item) for item in node.get("prefixItems", ())][: None if high is None else high]
        dead = next((i for i, item in enumerate(prefix) if item.never), None)
        rest = self._node(node.get("items", Node(node.pointer)))
        if dead is not None:
            prefix, high = prefix[:dead], dead
        elif rest.never:
            high = len(prefix) if high is None else min(high, len(prefix))
        if high is not None and low > high:
            return Node(node.pointer, never=True)
        out: dict[str, Any] = {"type": ("array",)}
        if prefix:
            out["prefixItems"] = tuple(prefix)
        if rest.never or (high is not None and high <= len(prefix)):
            out["items"] = Node(node.pointer, never=True)
        elif not rest.anything:
            out["items"] = rest
        return Node(node.pointer, out).having(minItems=low or None, maxItems=high if high != len(prefix) or not prefix else None)

    def _object(self, node: Node) -> Node:
        node = _trimmed(node)
        rest = self._node(node.get("additionalProperties", Node(node.pointer)))
        required = list(node.get("required", ()))
        named: dict[str, Node] = dict(node.get("properties", {}))
        patterns = {p: (pattern_tree(p, node.pointer, "patternProperties"), s) for p, s in node.get("patternProperties", {}).items()}
        live: dict[str, Node] = {}
        absent: list[str] = []
        names = node.get("propertyNames")
        for name in dict.fromkeys([*named, *required]):
            schema = self._member(node, name, named, patterns)
            allowed = True if names is None else accepts(names, name, self._document)
            if allowed is None:
                raise _declined("propertyNames", node)
            if schema.never or not allowed:
                absent.append(name)
            else:
                live[name] = schema
        if any(name in absent for name in required):
            return Node(node.pointer, never=True)
        return self._closed(node, live, absent, rest, patterns)

    def _member(self, node: Node, name: str, named: dict[str, Node], patterns: dict[str, tuple[Tree, Node]]) -> Node:
        schemas = [named[name]] if name in named else []
        schemas += [schema for tree, schema in patterns.values() if matches(tree, name)]
        schemas = schemas or [node.get("additionalProperties", Node(node.pointer))]
        return self._node(schemas[0] if len(schemas) == 1 else Node(schemas[0].pointer, {"allOf": tuple(schemas)}))

    def _closed(
        self, node: Node, live: dict[str, Node], absent: list[str], rest: Node, patterns: dict[str, tuple[Tree, Node]]
    ) -> Node:
        """Decide how further names are spelt: not at all, by one expression, or freely."""
        out: dict[str, Any] = {"type": ("object",)}
        if live:
            out["properties"] = live
        required = [name for name in live if name in node.get("required", ())]
        if required:
            out["required"] = required
        further, value = self._further(node, rest, patterns, [*live, *absent])
        if value.never or further == NOTHING:
            out["additionalProperties"] = Node(node.pointer, never=True)
            further = None
        elif not value.anything:
            out["additionalProperties"] = value
        if further is not None:
            key = Node(node.pointer, {"type": ("string",), "pattern": _shown(further)})
            out["propertyNames"] = key
        return _counted(node, Node(node.pointer, out))

    def _further(
        self, node: Node, rest: Node, patterns: dict[str, tuple[Tree, Node]], taken: list[str]
    ) -> tuple[Tree | None, Node]:
        names = node.get("propertyNames")
        if patterns:
            trees = [tree for tree, _ in patterns.values()]
            if names is not None or not rest.never or len({id(s) for _, s in patterns.values()}) > 1:
                raise _declined("patternProperties", node, "its names overlap with others in a way that cannot be enforced")
            if any(matches(trees[0], name) for name in taken):
                raise _declined("patternProperties", node, "it matches a name in properties")
            return trees[0], self._node(next(iter(patterns.values()))[1])
        if rest.never or names is None:
            return (all_but(taken) if taken and not rest.never else None), rest
        tree = names_tree(names, self._document)
        if tree is None or any(matches(tree, name) for name in taken):
            raise _declined("propertyNames", node)
        return tree, rest


def _trimmed(node: Node) -> Node:
    required = len(set(node.get("required", ())))
    if node.get("minProperties", 0) <= required:
        node = node.without("minProperties")
    return node


def _counted(node: Node, out: Node) -> Node:
    """Bounds on the number of properties: counted by occurrence, so only where a name cannot come twice."""
    low, high = node.get("minProperties", 0), node.get("maxProperties")
    named = len(out.get("properties", {}))
    closed = out.get("additionalProperties", Node("")).never
    if closed and high is not None and high >= named:
        high = None
    if high is not None and (high < len(out.get("required", ())) or low > high):
        return Node(node.pointer, never=True)
    if closed and low > named:
        return Node(node.pointer, never=True)
    if not closed and low > 1:
        raise _declined("minProperties", node, "a repeated name would count twice")
    return out.having(minProperties=low or None, maxProperties=high)


def _string(node: Node, barred: list[str]) -> Node:
    tree: Tree | None = None
    name = node.get("format")
    if name in NAMED:
        if name not in PATTERNS:
            raise _declined("format", node, "this format cannot be enforced", "Set formats to annotate to ignore it.")
        tree = pattern_tree(f"^(?:{PATTERNS[name]})$", node.pointer, "format")
    if "pattern" in node.keywords:
        if tree is not None:
            raise _declined("pattern", node, "cannot be combined with format")
        tree = pattern_tree(node.keywords["pattern"], node.pointer)
    low, high = node.get("minLength", 0), node.get("maxLength")
    if high is not None and low > high:
        return Node(node.pointer, never=True)
    if low or high is not None:
        bounded = bounded_text(low, high) if tree is None else with_lengths(tree, low, high)
        if bounded is None:
            keyword = "maxLength" if high is not None else "minLength"
            raise _declined(keyword, node, "cannot be combined with this pattern or format")
        tree = bounded
    if barred:
        if tree is not None and any(matches(tree, value) for value in barred):
            raise _declined("not", node, "cannot be combined with the pattern or length beside it")
        tree = all_but(barred) if tree is None else tree
    if tree == NOTHING:
        return Node(node.pointer, never=True)
    plain = Node(node.pointer, {"type": ("string",)})
    return plain if tree is None else plain.having(pattern=_shown(tree))


def _number(node: Node) -> Node:
    integer = node.keywords["type"] == ("integer",)
    step = node.get("multipleOf")
    if step is not None and not (step == 1 and integer):
        raise _declined("multipleOf", node)
    low = max(((node.keywords[k], k[0] == "e") for k in ("minimum", "exclusiveMinimum") if k in node.keywords), default=None)
    tops = [(node.keywords[k], k[0] != "e") for k in ("maximum", "exclusiveMaximum") if k in node.keywords]
    high = min(tops, default=None)
    if low and high and (low[0] > high[0] or (low[0] == high[0] and (low[1] or not high[1]))):
        return Node(node.pointer, never=True)
    for bound in (low, high):
        if bound and (abs(bound[0]) > MAX_BOUND or round(bound[0], 6) != bound[0]):
            keyword = "minimum" if bound is low else "maximum"
            raise _declined(keyword, node, "this bound has too many digits to be enforced")
    out: dict[str, Any] = {"type": node.keywords["type"]}
    if integer:
        bottom = None if low is None else math.floor(low[0]) + 1 if low[1] else math.ceil(low[0])
        top = None if high is None else math.floor(high[0]) if high[1] else math.ceil(high[0]) - 1
        if bottom is not None and top is not None and bottom > top:
            return Node(node.pointer, never=True)
        return Node(node.pointer, out).having(minimum=bottom, maximum=top)
    if low:
        out["exclusiveMinimum" if low[1] else "minimum"] = low[0]
    if high:
        out["maximum" if high[1] else "exclusiveMaximum"] = high[0]
    return Node(node.pointer, out)


def _shown(tree: Tree) -> str:
    """The pattern the library is given. It writes no escapes inside such a string, so none are asked of it."""
    return f"^{render(simplified(narrowed(tree, _unescaped)))}$"


def _unescaped(one: Chars) -> Chars:
    return one


def _constant(value: Any, pointer: str) -> Node:
    """An array or object that is one value, with the library's own freedom of white space."""
    if isinstance(value, list):
        items = tuple(_constant(item, pointer) for item in value)
        size = {"minItems": len(items)} if items else {}
        prefix = {"prefixItems": items} if items else {}
        return Node(pointer, {"type": ("array",), **prefix, "items": Node(pointer, never=True), **size})
    if isinstance(value, dict):
        named = {name: _constant(item, pointer) for name, item in value.items()}
        known = {"properties": named, "required": list(named)} if named else {}
        return Node(pointer, {"type": ("object",), **known, "additionalProperties": Node(pointer, never=True)})
    return Node(pointer, {"enum": (value,)})


def _declined(keyword: str, node: Node, reason: str = "cannot be enforced", hint: str | None = None) -> GrammarError:
    return GrammarError(ErrorCode.UNSUPPORTED_SCHEMA, reason, f"{node.pointer}/{keyword}", keyword, hint)
