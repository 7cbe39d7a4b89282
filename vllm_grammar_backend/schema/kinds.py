"""The kinds of constraint that are no schema: regex, choice, grammar."""

from __future__ import annotations

import json
import re
from typing import Final

from vllm_grammar_backend.errors import ErrorCode, GrammarError, pointer
from vllm_grammar_backend.schema.document import parse
from vllm_grammar_backend.schema.ecma import PLAIN
from vllm_grammar_backend.schema.patterns import MAX_POSITIONS, whole
from vllm_grammar_backend.schema.regex_tree import render, size

_POSITIONS: Final = {"xgrammar": 2_000}
"""Where a backend takes fewer than `MAX_POSITIONS`: xgrammar's automaton takes 0.5 s for 1,000 and 14 s for 5,000."""


MAX_RULES: Final = 1_000
"""Of one grammar. Rules that refer to one another in a row cost llguidance stack: 3,000 end its process."""
_RULE: Final = re.compile(r"::=|^[ \t]*[?!]?\w+(?:\.-?\d+)?(?:\[[^\]\n]*\])?(?:\{[^}\n]*\})?[ \t]*:(?!:)", re.MULTILINE)


def regex(source: str, backend: str, place: str | None = None) -> str:
    r"""A regular expression that must match the whole text, in the syntax that all backends read alike.

    `^` and `$` at the ends change nothing; `.` is anything but a newline; `\d`, `\w` and `\s` are ASCII.
    """
    tree = whole(source, PLAIN, search=False, place=place, keyword="regex", invalid=ErrorCode.INVALID_GRAMMAR)
    limit = _POSITIONS.get(backend, MAX_POSITIONS)
    if size(tree) > limit:
        reason = f"a regular expression of more than {limit} positions once its repetitions are written out"
        raise GrammarError(ErrorCode.TOO_COSTLY, reason, place, "regex", f"This is the limit for {backend}.")
    return render(tree)


def choice(text: str) -> str:
    """The JSON text of a list of different strings."""
    found = parse(text, ErrorCode.INVALID_GRAMMAR)
    if not isinstance(found, list) or not found:
        raise GrammarError(ErrorCode.INVALID_GRAMMAR, "a choice is a list of at least one string", "", "choice")
    for index, item in enumerate(found):
        if not isinstance(item, str):
            raise GrammarError(ErrorCode.INVALID_GRAMMAR, "a choice must be a string", pointer(index), "choice")
    return json.dumps(list(dict.fromkeys(found)), ensure_ascii=False, separators=(",", ":"))


def grammar(text: str) -> str:
    """A grammar, unchanged: the engines parse it in full."""
    if not text.strip():
        raise GrammarError(ErrorCode.INVALID_GRAMMAR, "an empty grammar", None, "grammar")
    if "\0" in text:
        raise GrammarError(ErrorCode.INVALID_GRAMMAR, "a grammar with a NUL character", None, "grammar")
    if (rules := len(_RULE.findall(text))) > MAX_RULES:
        reason = f"a grammar of {rules} rules, more than {MAX_RULES}"
        raise GrammarError(ErrorCode.TOO_LARGE, reason, None, "grammar")
    return text
