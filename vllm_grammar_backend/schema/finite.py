"""Which definitions admit a finite value at all: `{"required": ["self"], ...}` around itself does not."""

from __future__ import annotations

from vllm_grammar_backend.schema.node import Document, Node


def barren(document: Document) -> frozenset[str]:
    """Names of the definitions that no finite JSON value is valid against, as far as their shape tells."""
    fertile: set[str] = set()
    while True:
        found = {name for name, node in document.definitions.items() if name not in fertile and _ends(node, fertile)}
        if not found:
            return frozenset(document.definitions.keys() - fertile)
        fertile |= found


def _ends(node: Node, fertile: set[str]) -> bool:
    if node.never or ("$ref" in node.keywords and node.keywords["$ref"] not in fertile):
        return False
    if not all(_ends(item, fertile) for item in node.get("allOf", ())):
        return False
    for keyword in ("anyOf", "oneOf"):
        if keyword in node.keywords and not any(_ends(item, fertile) for item in node.keywords[keyword]):
            return False
    kinds = node.get("type", ("null",))
    return any(_type_ends(kind, node, fertile) for kind in kinds)


def _type_ends(kind: str, node: Node, fertile: set[str]) -> bool:
    if kind == "object":
        named = node.get("properties", {})
        return all(_ends(named[name], fertile) for name in node.get("required", ()) if name in named)
    if kind == "array":
        prefix = node.get("prefixItems", ())
        low = node.get("minItems", 0)
        rest = node.get("items", Node(""))
        return all(_ends(item, fertile) for item in prefix[:low]) and (low <= len(prefix) or _ends(rest, fertile))
    return True
