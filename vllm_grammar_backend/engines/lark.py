"""Lark text for llguidance: every kind of constraint ends up as one grammar in its Lark dialect."""

from __future__ import annotations

import json
from typing import Any, Final

from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import Whitespace

HEADER: Final = '%llguidance {"no_forcing": true}\n'
"""Without this the library lets only one tokenization of forced text through, and not always the tokenizer's own."""

ANY_TEXT: Final = "/(?s:.*)/"

_WHITESPACE: Final[dict[Whitespace, dict[str, Any]]] = {
    # The bound itself is kept by `whitespace.WhitespaceRows`: the library repeats its whitespace pattern at will.
    Whitespace.BOUNDED: {"whitespace_flexible": True},
    Whitespace.FLEXIBLE: {"whitespace_flexible": True},
    Whitespace.COMPACT: {"whitespace_flexible": False},
}


def check_encodable(text: str) -> None:
    """Raise a `GrammarError` for a lone surrogate, which no UTF-8 text can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise GrammarError(ErrorCode.INVALID_GRAMMAR, "it holds a lone surrogate") from None


def refuse_inline_schema(text: str) -> None:
    """Raise a `GrammarError` for a JSON Schema inside of a Lark grammar: nobody has vetted it, so a library would drop
    what it does not know of it, obey options in it that switch checks off, or die of it.
    """
    if "%json" in text:
        raise GrammarError(
            ErrorCode.UNSUPPORTED_KIND,
            "a JSON Schema inside of a grammar is not served",
            keyword="grammar",
            hint="A structural tag holds text and schemas.",
        )


def literal(text: str) -> str:
    """A Lark string literal. ASCII only, since the library's lexer stumbles over some characters.

    Raises:
        GrammarError: `text` has a lone surrogate.
    """
    check_encodable(text)
    return json.dumps(text)


def regex(pattern: str, escape: Any) -> str:
    """A Lark regex literal of a Rust-style pattern; `escape` is llguidance's `regex_to_lark`.

    Raises:
        GrammarError: the pattern ends in a lone backslash, which the library would drop.
    """
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise GrammarError(ErrorCode.INVALID_GRAMMAR, "the regex ends in a lone backslash", keyword="regex")
    return f"/{escape(pattern, '') or '(?:)'}/"


def json_schema(schema: object, options: dict[str, Any]) -> str:
    """A Lark expression for the JSON documents of a schema, with the library's own options for this one schema."""
    body = {} if schema is True else schema
    if not isinstance(body, dict):
        raise GrammarError(ErrorCode.UNSATISFIABLE, "the schema is false: no document satisfies it", pointer="")
    return "%json " + json.dumps({**body, "x-guidance": options})


def json_document(schema: object, whitespace: Whitespace) -> str:
    """A whole grammar whose text is one JSON document."""
    return f"{HEADER}start: {json_schema(schema, _WHITESPACE[whitespace])}\n"


def choices(found: object) -> list[str]:
    """A choice's strings, each once.

    Raises:
        GrammarError: not a list of strings, or an empty one.
    """
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise GrammarError(ErrorCode.INVALID_GRAMMAR, "a choice is a list of strings", keyword="choice")
    if not found:
        raise GrammarError(ErrorCode.INVALID_GRAMMAR, "a choice needs at least one string", keyword="choice")
    return list(dict.fromkeys(found))


def one_terminal(*alternatives: str) -> str:
    """A whole grammar of one terminal: the library then reads it as a single regular expression, exactly."""
    return f"{HEADER}start: TEXT\nTEXT: {' | '.join(alternatives)}\n"


def choice(strings: object) -> str:
    """A whole grammar of literal alternatives.

    Raises:
        GrammarError: as `choices`.
    """
    return one_terminal(*(literal(string) for string in choices(strings)))


def verbatim(text: str) -> str:
    """A client's own Lark grammar. Our options come last, where they win over options in the text."""
    return f"%llguidance {{}}\n{text}\n{HEADER}"
