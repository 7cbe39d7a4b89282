"""What vLLM's own messages and logs may say of a constraint. Each function stands in for one of vLLM's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from vllm_grammar_backend.errors import ErrorCode

_CODES: Final = tuple(f"{code}: " for code in ErrorCode)
QUOTABLE: Final = 40
"""Characters of a bad value that may be quoted; anything longer may be a schema."""


def name_kinds(_original: object, params: Any) -> str:
    """For logs: which kinds of constraint are there, not their text."""
    kinds = [name for name, value in vars(params).items() if value is not None and not name.startswith("_")]
    return f"StructuredOutputsParams({', '.join(kinds)})"


def tell_size(original: Callable[[object], object], value: object) -> object:
    """For messages: how long a bad value is, where it is long."""
    long = isinstance(value, str) and len(value) > QUOTABLE
    return f"<str of {len(value)} characters>" if long else original(value)  # type: ignore[arg-type]


def keep_pointers(original: Callable[[str], str], message: str) -> str:
    """For messages of ours, whose JSON pointers look like paths."""
    return message if message.startswith(_CODES) else str(original(message))
