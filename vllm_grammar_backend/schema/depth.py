"""How deep a library descends into a schema that it compiles by recursion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.schema.node import Document, Node

MAX_DESCENT: Final = 500
"""Schemas one inside another, references followed where they are first met. llguidance overflows 8 MiB of stack, which
ends its process, at some 1,500; the deepest of 2,025 real schemas has 28."""


def check_descent(document: Document) -> None:
    """Raise a `GrammarError` for a schema that would exhaust a library's stack."""
    entered: set[str] = set()
    stack = [(document.root, 1)]
    while stack:
        node, depth = stack.pop()
        if depth > MAX_DESCENT:
            reason = f"its references lead through more than {MAX_DESCENT} schemas one inside another"
            raise GrammarError(ErrorCode.TOO_COSTLY, reason, node.pointer, "$ref" if entered else None)
        below = [(child, depth + 1) for child in _children(node)]
        name = node.get("$ref")
        if name is not None and name not in entered:
            entered.add(name)
            below.append((document.definitions[name], depth + 1))
        stack.extend(reversed(below))


def _children(node: Node) -> Iterator[Node]:
    for value in node.keywords.values():
        if isinstance(value, Node):
            yield value
        elif isinstance(value, tuple):
            yield from (item for item in value if isinstance(item, Node))
        elif isinstance(value, dict):
            yield from (item for item in value.values() if isinstance(item, Node))
