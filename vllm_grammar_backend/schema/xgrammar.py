"""What xgrammar 0.2.8 enforces exactly, and the rewriting of the rest into that.

The library reads one keyword group per node and drops what stands beside it without a word, so it is only ever handed
flat nodes whose every keyword it was seen to enforce.
"""

from __future__ import annotations

import math
from typing import Any, Final

from vllm_grammar_backend.schema.lowering import MAX_SAFE, Lowering, declined, format_tree, trimmed
from vllm_grammar_backend.schema.node import Node
from vllm_grammar_backend.schema.objects import all_but, names_tree
from vllm_grammar_backend.schema.patterns import pattern_tree
from vllm_grammar_backend.schema.regex_match import matches
from vllm_grammar_backend.schema.regex_tree import ANY_TEXT, NOTHING, Alt, Tree, render, with_lengths
from vllm_grammar_backend.schema.values import accepts

MAX_NAME: Final = 512
"""Characters of a property name where others may stand beside it: telling them apart costs the library a rule for each
character, about 4 s for 2,000, and its stack for 20,000."""
MAX_BOUND: Final = 10**15
"""Bounds of fractions it keeps exact; it writes at most 6 digits after the point where there is a bound. Those of
integers are as exact as `MAX_SAFE`."""


class XgrammarLowering(Lowering):
    def _string(self, node: Node, barred: list[str]) -> Node:
        """One expression for everything; plain lengths stay lengths."""
        tree = format_tree(node)
        if "pattern" in node.keywords:
            if tree is not None:
                raise declined("pattern", node, "cannot be combined with format")
            tree = pattern_tree(node.keywords["pattern"], node.pointer)
        low, high = node.get("minLength", 0), node.get("maxLength")
        if high is not None and low > high:
            return self._nothing(node, "minLength")
        if tree is None and not barred:
            return Node(node.pointer, {"type": ("string",)}).having(minLength=low or None, maxLength=high)
        if tree is not None and (low or high is not None):
            tree = with_lengths(tree, low, high)
            if tree is None:
                keyword = "maxLength" if high is not None else "minLength"
                raise declined(keyword, node, "cannot be combined with this pattern or format")
        whole = tree if tree is not None and not barred else _barred(tree, low, high, barred, node)
        return self._nothing(node, "maxLength") if whole == NOTHING else matching(whole, node.pointer)

    def _number(self, node: Node) -> Node:
        integer = node.keywords["type"] == ("integer",)
        step = node.get("multipleOf")
        if step == 1:
            integer = True
        elif step is not None:
            raise declined("multipleOf", node)
        bottoms = [(node.keywords[k], k[0] == "e") for k in ("minimum", "exclusiveMinimum") if k in node.keywords]
        low = max(bottoms, default=None)
        tops = [(node.keywords[k], k[0] != "e") for k in ("maximum", "exclusiveMaximum") if k in node.keywords]
        high = min(tops, default=None)
        if low and high and (low[0] > high[0] or (low[0] == high[0] and (low[1] or not high[1]))):
            return self._nothing(node, "minimum" if "minimum" in node.keywords else "exclusiveMinimum")
        for bound in (low, high):
            limit = MAX_SAFE if integer else MAX_BOUND
            if bound and (abs(bound[0]) > limit or (not integer and round(bound[0], 6) != bound[0])):
                keyword = "minimum" if bound is low else "maximum"
                raise declined(keyword, node, "this bound has too many digits to be enforced")
        out: dict[str, Any] = {"type": ("integer",) if integer else ("number",)}
        if integer:
            bottom = None if low is None else math.floor(low[0]) + 1 if low[1] else math.ceil(low[0])
            top = None if high is None else math.floor(high[0]) if high[1] else math.ceil(high[0]) - 1
            if bottom is not None and top is not None and bottom > top:
                return self._nothing(node, "minimum" if "minimum" in node.keywords else "exclusiveMinimum")
            return Node(node.pointer, out).having(minimum=bottom, maximum=top)
        if low:
            out["exclusiveMinimum" if low[1] else "minimum"] = low[0]
        if high:
            out["maximum" if high[1] else "exclusiveMaximum"] = high[0]
        return Node(node.pointer, out)

    def _array(self, node: Node) -> Node:
        if "contains" in node.keywords and node.get("minContains", 1) > 0:
            raise declined("contains", node)
        if "maxContains" in node.keywords and "contains" in node.keywords:
            raise declined("maxContains", node)
        node = trimmed(node)
        if "uniqueItems" in node.keywords:
            raise declined("uniqueItems", node)
        prefix, rest, high = self._items(node)
        low = node.get("minItems", 0)
        if high is not None and low > high:
            return self._nothing(node, "minItems")
        out: dict[str, Any] = {"type": ("array",)}
        if prefix:
            out["prefixItems"] = tuple(prefix)
        if rest.never or (high is not None and high <= len(prefix)):
            out["items"] = Node(node.pointer, never=True)
        elif not rest.anything:
            out["items"] = rest
        if prefix and high == len(prefix):
            high = None
        return Node(node.pointer, out).having(minItems=low or None, maxItems=high)

    def _items(self, node: Node) -> tuple[list[Node], Node, int | None]:
        """The items one by one, the rest, and the most items there can be: none past one that admits nothing."""
        high = node.get("maxItems")
        prefix = [self._node(item) for item in node.get("prefixItems", ())][:high]
        rest = self._node(node.get("items", Node(node.pointer)))
        dead = next((i for i, item in enumerate(prefix) if item.never), len(prefix))
        if dead < len(prefix) or rest.never:
            high = dead if high is None else min(high, dead)
        return prefix[:dead], rest, high

    def _object(self, node: Node) -> Node:
        node = trimmed(node)
        rest = self._node(node.get("additionalProperties", Node(node.pointer)))
        required = list(node.get("required", ()))
        named: dict[str, Node] = dict(node.get("properties", {}))
        patterns = {
            source: (pattern_tree(source, node.pointer, "patternProperties"), schema)
            for source, schema in node.get("patternProperties", {}).items()
        }
        live: dict[str, Node] = {}
        absent: list[str] = []
        names = node.get("propertyNames")
        for name in dict.fromkeys([*named, *required]):
            schema = self._member(node, name, named, patterns)
            allowed = True if names is None else accepts(names, name, self._document)
            if allowed is None:
                raise declined("propertyNames", node)
            if schema.never or not allowed:
                absent.append(name)
            else:
                live[name] = schema
        if any(name in absent for name in required):
            # What made the property impossible has been noted; it says more than `required` would.
            return Node(node.pointer, never=True)
        return self._closed(node, live, absent, rest, patterns)

    def _member(self, node: Node, name: str, named: dict[str, Node], patterns: dict[str, tuple[Tree, Node]]) -> Node:
        self._document.fuel.burn(node)
        schemas = [named[name]] if name in named else []
        for tree, schema in patterns.values():
            self._document.fuel.burn(node)
            if matches(tree, name):
                schemas.append(schema)
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
        if value.never:
            out["additionalProperties"] = Node(node.pointer, never=True)
            further = None
        elif not value.anything:
            out["additionalProperties"] = value
        if further is not None:
            out["propertyNames"] = further
        return self._counted(node, Node(node.pointer, out))

    def _further(
        self, node: Node, rest: Node, patterns: dict[str, tuple[Tree, Node]], taken: list[str]
    ) -> tuple[Node | None, Node]:
        """How names beyond those in `properties` are spelt (None: freely), and what their values are."""
        names = node.get("propertyNames")
        if patterns:
            tree, value = self._patterned(node, rest, patterns)
        elif rest.never or names is None:
            if taken and not rest.never and max(map(len, taken)) > MAX_NAME:
                raise declined("properties", node, f"a name of more than {MAX_NAME} characters beside open ones")
            apart = Node(node.pointer, {"not": Node(node.pointer, {"enum": tuple(taken)})})
            return (apart if taken and not rest.never else None), rest
        else:
            found = names_tree(names, self._document)
            if found is None:
                raise declined("propertyNames", node)
            tree, value = found, rest
        if any(matches(tree, name) for name in taken):
            keyword = "patternProperties" if patterns else "propertyNames"
            raise declined(keyword, node, "it also matches a name in properties")
        return (None, Node(node.pointer, never=True)) if tree == NOTHING else (matching(tree, node.pointer), value)

    def _patterned(self, node: Node, rest: Node, patterns: dict[str, tuple[Tree, Node]]) -> tuple[Tree, Node]:
        schemas = [schema for _, schema in patterns.values()]
        if "propertyNames" in node.keywords or not rest.never or any(schema != schemas[0] for schema in schemas):
            raise declined("patternProperties", node, "names that match several patterns or none cannot be told apart")
        return Alt(tuple(tree for tree, _ in patterns.values())), self._node(schemas[0])

    def _counted(self, node: Node, out: Node) -> Node:
        """Bounds on the number of properties: counted by occurrence, so only where a name cannot come twice."""
        low, high = node.get("minProperties", 0), node.get("maxProperties")
        named = len(out.get("properties", {}))
        closed = out.get("additionalProperties", Node("")).never
        if closed and high is not None and high >= named:
            high = None
        if high is not None and (high < len(out.get("required", ())) or low > high):
            return self._nothing(node, "minProperties" if low > len(out.get("required", ())) else "maxProperties")
        if closed and low > named:
            return self._nothing(node, "minProperties" if low > len(out.get("required", ())) else "maxProperties")
        if not closed and low > 1:
            raise declined("minProperties", node, "a repeated name would count twice")
        return out.having(minProperties=low or None, maxProperties=high)


def _barred(tree: Tree | None, low: int, high: int | None, barred: list[str], node: Node) -> Tree:
    """`tree`, or any text of that length, without the `barred` strings."""
    if tree is None:
        within = [word for word in barred if low <= len(word) and (high is None or len(word) <= high)]
        tree = with_lengths(ANY_TEXT, low, high)
    else:
        within = [word for word in barred if matches(tree, word)]
    if not within and tree is not None:
        return tree
    if tree != ANY_TEXT:
        raise declined("not", node, "cannot be combined with the pattern or length beside it")
    return all_but(within)


def matching(tree: Tree, pointer: str) -> Node:
    """A string node of one expression."""
    return Node(pointer, {"type": ("string",), "pattern": f"^{render(tree)}$"})
