"""`pattern` and the names in `patternProperties`: from ECMA-262 source to a tree that must match the whole string."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.schema.ecma import ECMA, Dialect, InvalidRegexError, parse
from vllm_grammar_backend.schema.regex_tree import NOTHING, Tree, UnsupportedRegexError, anchored, simplified, size

MAX_POSITIONS: Final = 20_000
"""Positions of one expression after counted repetitions are written out; a position costs a backend up to 1 KB."""


def pattern_tree(source: str, pointer: str, keyword: str = "pattern") -> Tree:
    """The whole-string tree of an unanchored ECMA-262 pattern.

    Args:
        pointer: of the schema that holds `keyword`.

    Raises:
        GrammarError: not a regular expression, one with a construct that no backend matches, or one too large.
    """
    place = pointer + "/" + keyword
    return whole(source, ECMA, search=True, place=place, keyword=keyword, invalid=ErrorCode.INVALID_SCHEMA)


@lru_cache(maxsize=4096)
def whole(
    source: str, dialect: Dialect, *, search: bool, place: str | None, keyword: str | None, invalid: ErrorCode
) -> Tree:
    """Parse, resolve anchors, simplify and bound. `search`: the text need only contain a match."""
    unsupported = ErrorCode.UNSUPPORTED_SCHEMA
    try:
        tree = simplified(anchored(parse(source, dialect), search=search))
    except InvalidRegexError as e:
        raise GrammarError(invalid, f"not a regular expression: {e}", place, keyword) from None
    except UnsupportedRegexError as e:
        raise GrammarError(unsupported, f"a regular expression with {e} cannot be enforced", place, keyword) from None
    if size(tree) > MAX_POSITIONS:
        reason = f"a regular expression of more than {MAX_POSITIONS} positions once its repetitions are written out"
        raise GrammarError(ErrorCode.TOO_LARGE, reason, place, keyword)
    if tree == NOTHING:
        raise GrammarError(ErrorCode.UNSATISFIABLE, "a regular expression that matches nothing", place, keyword)
    return tree
