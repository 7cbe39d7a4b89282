"""What llguidance 1.7.6 enforces exactly, and the rewriting of the rest into that.

The library intersects `allOf`, siblings and references itself and refuses what it lacks, so nodes stay as they are
written where it has all their keywords; only what it lacks is rewritten or declined here, with its place and name.
"""

from __future__ import annotations

from typing import Any, Final

from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.schema.lowering import Lowering, check_exact, declined, format_tree, trimmed
from vllm_grammar_backend.schema.node import NUMBER_KEYWORDS, TYPES, Node
from vllm_grammar_backend.schema.objects import all_but, names_tree, outside
from vllm_grammar_backend.schema.patterns import pattern_tree
from vllm_grammar_backend.schema.regex_tree import ANY_TEXT, NOTHING, Tree, render
from vllm_grammar_backend.schema.values import accepts

MAX_ITEMS: Final = 10_000
"""Of `minItems` and `maxItems`: 0.5 s and 20 MB; 100,000 take 12 s, and 1,000,000,000 more memory than there is, for
which the library ends its process."""
_LACKS: Final = (
    *("contains", "uniqueItems", "minProperties", "maxProperties"),
    *("propertyNames", "unevaluatedItems", "unevaluatedProperties"),
)
_PAIRS: Final = (
    ("minimum", "maximum", {"integer", "number"}),
    ("minLength", "maxLength", {"string"}),
    ("minItems", "maxItems", {"array"}),
)
"""Bounds that may leave nothing of the only types that a node has."""
_ONE: Final = ("additionalProperties", "items")
_MANY: Final = ("allOf", "anyOf", "oneOf", "prefixItems")


class GuidanceLowering(Lowering):
    def _node(self, node: Node) -> Node:
        if node.never:
            return self._nothing(node)
        if not node.keywords:
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
        """An `enum` without the values its siblings refuse and without the siblings; None where that is uncertain."""
        kept: list[Any] = []
        rest = node.without("enum")
        for value in node.keywords["enum"]:
            good = accepts(rest, value, self._document) if rest.keywords else True
            if good is None:
                return None
            if good:
                kept.append(value)
        check_exact(kept, node, short=True)
        return Node(node.pointer, {"enum": tuple(kept)}) if kept else self._nothing(node, "enum")

    def _exclusive(self, node: Node) -> Node:
        """`oneOf` as `anyOf` where its branches are provably exclusive; else the library has to prove it."""
        try:
            self._flattener.exclusive(node)
        except GrammarError as e:
            if e.code is not ErrorCode.UNSUPPORTED_SCHEMA:
                raise
            return node
        branches = node.keywords["oneOf"]
        node = node.without("oneOf")
        if "anyOf" not in node.keywords:
            return node.having(anyOf=branches)
        return node.having(allOf=(*node.get("allOf", ()), Node(node.pointer, {"anyOf": branches})))

    def _native(self, node: Node) -> Node:
        node = self._spelt(self._names(trimmed(node)))
        for keyword in _LACKS:
            if keyword in node.keywords:
                raise declined(keyword, node)
        self._check_count(node)
        for keyword in NUMBER_KEYWORDS & node.keywords.keys():
            check_exact([node.keywords[keyword]], node, keyword, short=True)
        check_exact(node.get("enum", ()), node, short=True)
        if "$ref" in node.keywords and self._reference(node).never:
            return self._nothing(node, "$ref")
        for low, high, kinds in _PAIRS:
            crossed = low in node.keywords and node.keywords[low] > node.get(high, node.keywords[low])
            if crossed and kinds.issuperset(node.get("type", TYPES)):
                return self._nothing(node, low)
        node = _stepped(node)
        out = {keyword: self._below(keyword, value, node) for keyword, value in node.keywords.items()}
        named: dict[str, Node] = out.get("properties", {})
        if node.get("type") == ("object",) and any(named[n].never for n in out.get("required", ()) if n in named):
            return Node(node.pointer, never=True)
        return _texts(node, out)

    def _below(self, keyword: str, value: Any, node: Node) -> Any:
        if keyword in _ONE:
            # Nothing further is no reason for the whole to be unsatisfiable.
            return value if value.never else self._node(value)
        if keyword in _MANY:
            return tuple(self._node(item) for item in value)
        if keyword == "properties":
            return {name: self._node(item) for name, item in value.items()}
        if keyword == "patternProperties":
            trees = {name: pattern_tree(name, node.pointer, keyword) for name in value}
            return {_shown(trees[name]): self._node(item) for name, item in value.items()}
        return value

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

    def _spelt(self, node: Node) -> Node:
        r"""An open object whose further names are an expression too.

        The library's own free names may be spelt with any escape, so `"\u0061"` would get past what is said of `a`.
        """
        named, patterns = node.get("properties", {}), node.get("patternProperties", {})
        rest = node.get("additionalProperties", Node(node.pointer))
        if not (named or patterns) or rest.never:
            return node
        trees = {name: pattern_tree(name, node.pointer, "patternProperties") for name in patterns}
        patterns = {name: item for name, item in patterns.items() if not (item.anything and rest.anything)}
        closed = Node(node.pointer, never=True)
        if rest.anything and not patterns:
            # The same expression in every object: two of them can be intersected.
            return node.having(patternProperties={_shown(ANY_TEXT): rest}, additionalProperties=closed)
        further = outside([trees[name] for name in patterns], list(named))
        if further is None:
            reason = "a name that it does not match could be spelt so that it does"
            raise declined("patternProperties", node, reason, "Set additionalProperties to false.")
        if further != NOTHING:
            patterns = {**patterns, _shown(further): rest}
        return node.having(patternProperties=patterns, additionalProperties=closed)

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

    def _check_count(self, node: Node) -> None:
        for keyword in ("minItems", "maxItems"):
            if node.get(keyword, 0) > MAX_ITEMS:
                reason = f"guidance writes every item out and counts to {MAX_ITEMS} at most"
                raise GrammarError(ErrorCode.TOO_COSTLY, reason, f"{node.pointer}/{keyword}", keyword)

    def _object(self, node: Node) -> Node:
        return self._native(node)


def _stepped(node: Node) -> Node:
    """The library writes no negative multiples, so a step is only taken where there are none to lose."""
    step = node.get("multipleOf")
    if step is None or not {"number", "integer"} & set(node.get("type", TYPES)):
        return node
    if step == 1:
        types = tuple("integer" if kind == "number" else kind for kind in node.get("type", TYPES))
        return node.without("multipleOf").having(type=tuple(dict.fromkeys(types)))
    if node.get("minimum", -1) < 0 and node.get("exclusiveMinimum", -1) < 0:
        raise declined("multipleOf", node, "negative multiples cannot be produced", "Give a minimum of 0 or more.")
    return node


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
