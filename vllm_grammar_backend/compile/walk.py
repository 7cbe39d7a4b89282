"""A walk of seeded random masks: what is cheap to compile and dear to mask would hold a whole batch up."""

from __future__ import annotations

import random
from time import thread_time
from typing import Final

import numpy as np

from vllm_grammar_backend.engines.base import CompiledGrammar, Matcher, Row
from vllm_grammar_backend.engines.vocabulary import Vocabulary
from vllm_grammar_backend.engines.whitespace import JSON_KINDS
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import GrammarSpec

STEPS: Final = 96
"""Tokens in all; a document that ends before begins again."""
TOTAL_BUDGETS: Final = 20
"""The walk ends early when so many single budgets are spent."""


def walk(grammar: CompiledGrammar, spec: GrammarSpec, vocabulary: Vocabulary, budget_ms: float) -> None:
    """Fill the masks along random beginnings of documents. CPU time counts, since the machine may be busy.

    Half of the steps prefer punctuation: of the thousands of tokens that a string allows, few end it.

    Raises:
        GrammarError: no text at all satisfies the grammar, or one mask passed `budget_ms`.
    """
    picks = random.Random(spec.digest)  # noqa: S311 - the same walk each time
    ends = vocabulary.eos_ids
    matcher = grammar.matcher(ends)
    row = np.empty(vocabulary.row_width, dtype=np.int32)
    tokens: list[int] = []
    spent = _fill_ms(matcher, row)
    if matcher.dead_ends:
        raise GrammarError(ErrorCode.UNSATISFIABLE, "no text satisfies it", keyword=spec.kind.value)
    taken = spent
    for _ in range(STEPS):
        if taken > budget_ms and (taken := min(taken, _again_ms(grammar, vocabulary, tokens))) > budget_ms:
            raise too_costly(
                spec, f"one token mask took {taken:.0f} ms", f"The setting masks.budget_ms is {budget_ms:g}."
            )
        token = _pick(picks, row, vocabulary)
        if token in ends:
            matcher.reset()
            tokens = []
        elif spent > TOTAL_BUDGETS * budget_ms or not matcher.accept([token]):
            return
        else:
            tokens.append(token)
        taken = _fill_ms(matcher, row)
        spent += taken


def too_costly(spec: GrammarSpec, reason: str, hint: str) -> GrammarError:
    """A reached budget; nobody can say which part of a schema is to blame, but of a regex the whole is."""
    keyword = None if spec.kind in JSON_KINDS else spec.kind.value
    return GrammarError(ErrorCode.TOO_COSTLY, reason, keyword=keyword, hint=hint)


def _fill_ms(matcher: Matcher, row: Row) -> float:
    before = thread_time()
    matcher.fill(row)
    return (thread_time() - before) * 1000


def _again_ms(grammar: CompiledGrammar, vocabulary: Vocabulary, tokens: list[int]) -> float:
    """The same mask in a matcher of its own, since a busy machine makes even CPU time vary."""
    matcher = grammar.matcher(vocabulary.eos_ids)
    matcher.accept(tokens)
    return _fill_ms(matcher, np.empty(vocabulary.row_width, dtype=np.int32))


def _pick(picks: random.Random, row: Row, vocabulary: Vocabulary) -> int:
    marks = row & vocabulary.punctuation_row
    return picks.choice(vocabulary.ids(marks if marks.any() and picks.random() < 0.5 else row))
