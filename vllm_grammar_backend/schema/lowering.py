"""What the lowerings of all backends share: definitions on demand, values of `enum`, one node for each type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Final

from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.schema.depth import check_descent
from vllm_grammar_backend.schema.finite import barren
from vllm_grammar_backend.schema.flatten import Flattener, union
from vllm_grammar_backend.schema.formats import NAMED, PATTERNS
from vllm_grammar_backend.schema.node import OF_TYPE, TYPES, Document, Node
from vllm_grammar_backend.schema.patterns import pattern_tree
from vllm_grammar_backend.schema.regex_tree import Tree
from vllm_grammar_backend.schema.values import accepts, of_type

MAX_SAFE: Final = 2**53
"""Numbers up to here are exact in the doubles that the libraries read. llguidance ends its process at -2^63."""


_SMALLEST: Final = 1e-7
"""Fractions from here on that have 15 digits need no power of ten past the 22 that a double holds exactly: even a
reader that only multiplies and divides gets them right."""


class Lowering(ABC):
    """One document on its way to one backend. Subclasses say what each type of value may be given."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._flattener = Flattener(document)
        self._seen: set[str] = set()
        self._waiting: list[str] = []
        self._dead: frozenset[str] = frozenset()
        """Definitions found to admit no finite value."""
        self._cause = ("", "")
        """Pointer and keyword of what was last found to admit nothing."""

    def lower(self) -> Document:
        """The document for the backend.

        Raises:
            GrammarError: something in it cannot be enforced exactly, or no value at all is valid.
        """
        while True:
            lowered = self._pass()
            check_descent(lowered)
            dead = barren(lowered)
            if lowered.root.never:
                where, keyword = self._cause
                raise GrammarError(ErrorCode.UNSATISFIABLE, "no value is valid", where, keyword or None)
            if dead <= self._dead:
                return lowered
            self._dead |= dead
            self._seen.clear()

    def _pass(self) -> Document:
        root = self._node(self._document.root)
        done: dict[str, Node] = {}
        while self._waiting:
            name = self._waiting.pop()
            done[name] = self._node(self._document.definitions[name])
        return Document(root, done)

    def _nothing(self, node: Node, keyword: str = "") -> Node:
        """The schema `false`, noted as the reason if the whole turns out to be unsatisfiable."""
        self._cause = (f"{node.pointer}/{keyword}" if keyword else node.pointer, keyword)
        return Node(node.pointer, never=True)

    def _reference(self, node: Node) -> Node:
        """A lone reference, its definition noted as needed."""
        name: str = node.keywords["$ref"]
        if name in self._dead:
            return self._nothing(node, "$ref")
        if name not in self._seen:
            self._seen.add(name)
            self._waiting.append(name)
        return node

    def _node(self, node: Node) -> Node:
        if node.never:
            return self._nothing(node)
        if not node.keywords:
            return node
        flat = [item for each in self._flattener.flatten(node) for item in self._typed(each)]
        if not flat:
            return self._nothing(node)
        return union([item for item in flat if not item.never], node.pointer)

    def _typed(self, node: Node) -> list[Node]:
        if node.keywords.keys() == {"$ref"}:
            return [self._reference(node)]
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
            good = accepts(rest, value, self._document) if rest.keywords else True
            if good is None:
                raise declined("enum", node, "its values cannot be checked against the keywords beside it")
            if good:
                kept.append(value)
        check_exact(kept, node, short=False)
        plain = [value for value in kept if not isinstance(value, (list, dict))]
        if not kept:
            return [self._nothing(node, "enum")]
        found = [Node(node.pointer, {"enum": tuple(plain)})] if plain else []
        return found + [constant(value, node.pointer) for value in kept if isinstance(value, (list, dict))]

    def _single(self, kind: str, node: Node) -> Node:
        """A node of one type, with that type's keywords and no others."""
        barred = [v for v in node.get("not", Node("")).get("enum", ()) if of_type(v, (kind,))]
        flat = Node(node.pointer, {"type": (kind,), **node.only(OF_TYPE[kind]).keywords})
        if kind == "string":
            return self._string(flat, barred)
        if kind == "boolean" and barred:
            left = tuple(value for value in (True, False) if value not in barred)
            return Node(node.pointer, {"enum": left}) if left else self._nothing(node, "not")
        if kind == "null" and barred:
            return self._nothing(node, "not")
        if barred:
            raise declined("not", node, f"the complement of some {kind} values cannot be enforced")
        if kind in ("integer", "number"):
            return self._number(flat)
        if kind == "array":
            return self._array(flat)
        return self._object(flat) if kind == "object" else flat

    @abstractmethod
    def _string(self, node: Node, barred: list[str]) -> Node:
        """A node of type string; `barred` values are excluded besides."""

    @abstractmethod
    def _number(self, node: Node) -> Node:
        """A node of type integer or number."""

    @abstractmethod
    def _array(self, node: Node) -> Node: ...

    @abstractmethod
    def _object(self, node: Node) -> Node: ...


def check_exact(values: Iterable[Any], node: Node, keyword: str = "enum", *, short: bool) -> None:
    """Decline numbers, in `values` or inside of them, that a library would round.

    Args:
        short: it reads exactly only fractions of 15 digits, not every double.
    """
    stack = list(values)
    while stack:
        value = stack.pop()
        if isinstance(value, (list, dict)):
            stack.extend(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, (int, float)) and abs(value) > MAX_SAFE:
            raise declined(keyword, node, "a number past 2^53 would lose digits")
        elif short and isinstance(value, float) and (float(f"{value:.15g}") != value or 0 < abs(value) < _SMALLEST):
            raise declined(keyword, node, "a fraction of more than 15 digits, or below 1e-7, would be rounded")


def format_tree(node: Node) -> Tree | None:
    """The strings that `format` admits; None where it asserts nothing."""
    name = node.get("format")
    if name not in NAMED:
        return None
    if name not in PATTERNS:
        raise declined("format", node, "this format cannot be enforced", "Set formats to annotate to ignore it.")
    return pattern_tree(f"^(?:{PATTERNS[name]})$", node.pointer, "format")


def trimmed(node: Node) -> Node:
    """Without bounds that cannot fail."""
    if node.get("minProperties", 0) <= len(set(node.get("required", ()))):
        node = node.without("minProperties")
    if node.get("minItems") == 0:
        node = node.without("minItems")
    if node.get("minContains") == 0 and "maxContains" not in node.keywords:
        node = node.without("minContains", "contains")
    if not node.get("uniqueItems") or node.get("maxItems", 2) <= 1:
        node = node.without("uniqueItems")
    return node


def constant(value: Any, pointer: str) -> Node:
    """An array or object that is one value, with the library's own freedom of white space."""
    if isinstance(value, list):
        items = tuple(constant(item, pointer) for item in value)
        size = {"minItems": len(items)} if items else {}
        prefix = {"prefixItems": items} if items else {}
        return Node(pointer, {"type": ("array",), **prefix, "items": Node(pointer, never=True), **size})
    if isinstance(value, dict):
        named = {name: constant(item, pointer) for name, item in value.items()}
        known = {"properties": named, "required": list(named)} if named else {}
        return Node(pointer, {"type": ("object",), **known, "additionalProperties": Node(pointer, never=True)})
    return Node(pointer, {"enum": (value,)})


def declined(keyword: str, node: Node, reason: str = "cannot be enforced", hint: str | None = None) -> GrammarError:
    return GrammarError(ErrorCode.UNSUPPORTED_SCHEMA, reason, f"{node.pointer}/{keyword}", keyword, hint)
