"""What llguidance 1.7.6 enforces exactly, and the rewriting of the rest into that.

The library intersects `allOf`, siblings and references itself and refuses what it lacks, so nodes stay as they are
written where it has all their keywords; only what it lacks is rewritten or declined here, with its place and name.
"""

from __future__ import annotations

from typing import Any, Final

from vllm_grammar_backend.errors import GrammarError
from vllm_grammar_backend.schema.lowering import Lowering, declined, format_tree, trimmed
from vllm_grammar_backend.schema.node import Node
from vllm_grammar_backend.schema.objects import all_but, names_tree
from vllm_grammar_backend.schema.patterns import pattern_tree
from vllm_grammar_backend.schema.regex_tree import NOTHING, Tree, render
from vllm_grammar_backend.schema.values import accepts

_LACKS: Final = (
    *("contains", "uniqueItems", "minProperties", "maxProperties"),
    *("propertyNames", "unevaluatedItems", "unevaluatedProperties"),
)
_ONE: Final = ("additionalProperties", "items")
_MANY: Final = ("allOf", "anyOf", "oneOf", "prefixItems")


class GuidanceLowering(Lowering):
    def _node(self, node: Node) -> Node:
        if node.never or not node.keywords:
            return node
        node = self._flattener.eliminate(node)
        if "enum" in node.keywords and (listed := self._listed(node)) is not None:
            return listed
        if "not" in node.keywords:
            return super()._node(node)
        if "oneOf" in node.keywords:
            node = self._exclusive(node)
        return self._native(node)

    def _listed(self, node: Node) -> Node | None:
        """An `enum` without the values its siblings refuse, and without the siblings; None where that is not certain."""
        kept: list[Any] = []
        rest = node.without("enum")
        for value in node.keywords["enum"]:
            good = accepts(rest, value, self._document)
            if good is None:
                return None
            if good:
                kept.append(value)
        return Node(node.pointer, {"enum": tuple(kept)}) if kept else Node(node.pointer, never=True)

    def _exclusive(self, node: Node) -> Node:
        """`oneOf` as `anyOf` where its branches are provably exclusive; else the library has to prove it."""
        try:
            self._flattener.exclusive(node)
        except GrammarError:
            return node
        branches = node.keywords["oneOf"]
        node = node.without("oneOf")
        if "anyOf" not in node.keywords:
            return node.having(anyOf=branches)
        return node.having(allOf=(*node.get("allOf", ()), Node(node.pointer, {"anyOf": branches})))

    def _native(self, node: Node) -> Node:
        node = self._names(trimmed(node))
        for keyword in _LACKS:
            if keyword in node.keywords:
                raise declined(keyword, node)
        if "$ref" in node.keywords and self._reference(node).never:
            return Node(node.pointer, never=True)
        out: dict[str, Any] = dict(node.keywords)
        for keyword in _ONE:
            if keyword in out:
                out[keyword] = self._node(out[keyword])
        for keyword in _MANY:
            if keyword in out:
                out[keyword] = tuple(self._node(item) for item in out[keyword])
        if "properties" in out:
            out["properties"] = {name: self._node(item) for name, item in out["properties"].items()}
        if "patternProperties" in out:
            out["patternProperties"] = {
                _shown(pattern_tree(name, node.pointer, "patternProperties")): self._node(item)
                for name, item in out["patternProperties"].items()
            }
        return _texts(node, out)

    def _names(self, node: Node) -> Node:
        """`propertyNames` as one pattern, with the names in `properties` decided here and now."""
        names = node.get("propertyNames")
        if names is None or "patternProperties" in node.keywords:
            return node
        tree = names_tree(names, self._document)
        if tree is None:
            return node
        verdicts = {name: accepts(names, name, self._document) for name in node.get("properties", {})}
        if None in verdicts.values():
            return node
        kept = {
            name: item if verdicts[name] else Node(item.pointer, never=True)
            for name, item in node.get("properties", {}).items()
        }
        rest = node.get("additionalProperties", Node(node.pointer))
        closed = Node(node.pointer, never=True)
        if rest.never or tree == NOTHING:
            return node.without("propertyNames").having(properties=kept, additionalProperties=closed)
        if kept:
            return node
        named = {f"^(?:{render(tree)})$": rest}
        return node.without("propertyNames").having(patternProperties=named, additionalProperties=closed)

    # Flat nodes, reached only where a `not` was resolved.

    def _typed(self, node: Node) -> list[Node]:
        if "enum" in node.keywords and (listed := self._listed(node)) is not None:
            return [listed]
        return super()._typed(node)

    def _string(self, node: Node, barred: list[str]) -> Node:
        if not barred:
            return self._native(node)
        return self._native(node.having(allOf=(Node(node.pointer, {"pattern": _shown(all_but(barred))}),)))

    def _number(self, node: Node) -> Node:
        return self._native(node)

    def _array(self, node: Node) -> Node:
        return self._native(node)

    def _object(self, node: Node) -> Node:
        return self._native(node)


def _texts(node: Node, out: dict[str, Any]) -> Node:
    """`pattern` and `format` as anchored expressions."""
    tree = format_tree(node)
    out.pop("format", None)
    if "pattern" in out:
        out["pattern"] = _shown(pattern_tree(out["pattern"], node.pointer))
    if tree is not None:
        if "pattern" in out:
            out["allOf"] = (*out.get("allOf", ()), Node(node.pointer, {"pattern": _shown(tree)}))
        else:
            out["pattern"] = _shown(tree)
    return Node(node.pointer, out)


def _shown(tree: Tree) -> str:
    return f"^(?:{render(tree)})$"
