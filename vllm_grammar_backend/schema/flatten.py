"""A node as a union of flat ones: only `type`, `enum`, a lone `$ref`, and the keywords of each type.

Both backends take flat nodes; how they nest in properties and items is the backends' own affair. Everything here keeps
the meaning exactly or raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.schema.disjoint import disjoint
from vllm_grammar_backend.schema.merge import CannotMergeError, merge
from vllm_grammar_backend.schema.negate import CannotNegateError, negate
from vllm_grammar_backend.schema.node import Document, Node

MAX_BRANCHES: Final = 512
"""Flat nodes that one node may become."""
MAX_COMPARED: Final = 32


class Flattener:
    def __init__(self, document: Document) -> None:
        self._document = document

    def flatten(self, node: Node, inlined: frozenset[str] = frozenset()) -> list[Node]:
        """The flat nodes whose union is `node`; none where it is unsatisfiable on the face of it.

        Raises:
            GrammarError: `UNSUPPORTED_SCHEMA` names the keyword that stands in the way, `TOO_COSTLY` a blow-up.
        """
        self._document.fuel.burn(node)
        if node.never:
            return []
        node = self.eliminate(node)
        if "$ref" in node.keywords and len(node.keywords) > 1:
            return self.flatten(*self._inlined(node, inlined))
        if "anyOf" in node.keywords:
            rest, branches = node.without("anyOf"), node.keywords["anyOf"]
            return self._union([self._both(rest, branch, inlined) for branch in branches], node)
        if "oneOf" in node.keywords:
            return self._union(self.exclusive(node, inlined), node)
        if "allOf" in node.keywords:
            whole = node.without("allOf")
            for item in node.keywords["allOf"]:
                whole, inlined = self._both(whole, item, inlined)
            return self.flatten(whole, inlined)
        return [node]

    def eliminate(self, node: Node) -> Node:
        """Rewrite `not`, `if`, `dependent*` into the combinations that are left."""
        node = _evaluated(node)
        extra: list[Node] = []
        inner = node.get("not")
        if inner is not None and inner.keywords.keys() != {"enum"}:
            extra.append(self._negate(inner, "not", node))
            node = node.without("not")
        if "if" in node.keywords:
            extra.append(self._conditional(node))
            node = node.without("if", "then", "else")
        for name, names in node.get("dependentRequired", {}).items():
            extra.append(_dependent(name, Node(node.pointer, {"required": [name, *names]}), node))
        for name, schema in node.get("dependentSchemas", {}).items():
            there = Node(node.pointer, {"required": [name], "allOf": (schema,)})
            extra.append(_dependent(name, there, node))
        node = node.without("dependentRequired", "dependentSchemas")
        return node if not extra else node.having(allOf=(*node.get("allOf", ()), *extra))

    def _conditional(self, node: Node) -> Node:
        condition = node.keywords["if"]
        when, otherwise = node.get("then", Node(node.pointer)), node.get("else", Node(node.pointer))
        yes = Node(condition.pointer, {"allOf": (condition, when)})
        no = Node(condition.pointer, {"allOf": (self._negate(condition, "if", node), otherwise)})
        return Node(condition.pointer, {"anyOf": (yes, no)})

    def _negate(self, inner: Node, keyword: str, node: Node) -> Node:
        try:
            return negate(inner, self._document)
        except CannotNegateError as e:
            reason = f"the complement of {e.keyword!r} cannot be enforced"
            raise _declined(keyword, node.pointer, reason) from None

    def exclusive(self, node: Node, inlined: frozenset[str] = frozenset()) -> list[tuple[Node, frozenset[str]]]:
        """The branches of `oneOf`, each with its siblings, if no value can be valid against two of them.

        Raises:
            GrammarError: that cannot be shown.
        """
        rest, branches = node.without("oneOf"), node.keywords["oneOf"]
        whole = [self._both(rest, branch, inlined) for branch in branches]
        live = [pair for pair in whole if not pair[0].never]
        for i, (first, _) in enumerate(live):
            for second, _ in live[:i]:
                self._document.fuel.burn(node)
                if not disjoint(first, second, self._document):
                    reason = "its branches are not provably exclusive"
                    hint = "Use anyOf, or a required property whose const differs from branch to branch."
                    raise _declined("oneOf", node.pointer, reason, hint)
        return live

    def _union(self, pairs: Iterable[tuple[Node, frozenset[str]]], origin: Node) -> list[Node]:
        found: list[Node] = []
        for node, inlined in pairs:
            fresh = self.flatten(node, inlined)
            # Comparing is only worth it for the short lists that types beside an object make.
            found.extend(fresh if len(found) > MAX_COMPARED else [item for item in fresh if item not in found])
            if len(found) > MAX_BRANCHES:
                reason = f"its combinations have more than {MAX_BRANCHES} alternatives"
                raise GrammarError(ErrorCode.TOO_COSTLY, reason, origin.pointer)
        return found

    def _both(self, first: Node, second: Node, inlined: frozenset[str]) -> tuple[Node, frozenset[str]]:
        """The conjunction, properties of `first` before those of `second`, and the references that were opened."""
        second = self.eliminate(second)
        if first.anything:
            return second, inlined
        if "$ref" in second.keywords and second.keywords["$ref"] != first.get("$ref"):
            second, inlined = self._inlined(second, inlined)
            return self._both(first, second, inlined)
        return self._merge(first, second), inlined

    def _inlined(self, node: Node, inlined: frozenset[str]) -> tuple[Node, frozenset[str]]:
        """The target of a reference together with what stands beside the reference."""
        name = node.keywords["$ref"]
        if name in inlined:
            raise _declined("$ref", node.pointer, "a recursive reference with keywords beside it")
        target, opened = self.eliminate(self._document.definitions[name]), inlined | {name}
        rest = node.without("$ref")
        while "$ref" in target.keywords and rest.keywords:
            target, opened = self._inlined(target, opened)
        return self._merge(target, rest), opened

    def _merge(self, first: Node, second: Node) -> Node:
        self._document.fuel.burn(first)
        try:
            return merge(first, second)
        except CannotMergeError as e:
            reason = "cannot be combined with the same keyword of a schema beside it"
            raise _declined(e.keyword, e.pointer, reason) from None


def _dependent(name: str, there: Node, node: Node) -> Node:
    absent = Node(node.pointer, {"properties": {name: Node(node.pointer, never=True)}})
    return Node(node.pointer, {"anyOf": (absent, there)})


def _evaluated(node: Node) -> Node:
    """`unevaluated*` without anything beside it that evaluates in place is `additionalProperties` or `items`."""
    for keyword, plain in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
        schema = node.get(keyword)
        if schema is None:
            continue
        if plain in node.keywords or schema.anything:
            node = node.without(keyword)
        elif node.keywords.keys().isdisjoint(
            ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "contains", "dependentSchemas")
        ):
            node = node.without(keyword).having(**{plain: schema})
        else:
            raise _declined(keyword, node.pointer, "depends on which of the schemas beside it apply")
    return node


def _declined(keyword: str, pointer: str, reason: str, hint: str | None = None) -> GrammarError:
    return GrammarError(ErrorCode.UNSUPPORTED_SCHEMA, reason, f"{pointer}/{keyword}", keyword, hint)


def union(nodes: list[Node], pointer: str) -> Node:
    """Flat nodes as one: itself, an `anyOf`, or the schema `false`."""
    if not nodes:
        return Node(pointer, never=True)
    return nodes[0] if len(nodes) == 1 else Node(pointer, {"anyOf": tuple(nodes)})
