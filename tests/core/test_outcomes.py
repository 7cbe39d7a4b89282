"""Many constraints ahead of any request: in order, and none turned away by the queue that protects requests."""

from __future__ import annotations

from contextlib import closing

import pytest

from vllm_grammar_backend.engines.vocabulary import byte_vocabulary
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import GrammarKind, GrammarOptions
from vllm_grammar_backend.preload import Wanted, admitted, outcomes
from vllm_grammar_backend.service import GrammarService, Ready
from vllm_grammar_backend.settings import Compile, Settings


@pytest.mark.parametrize(("queue", "workers"), [(1, 2), (4, 2), (8, 4), (256, 1)])
def test_a_short_queue_turns_none_away(queue: int, workers: int) -> None:
    settings = Settings(compile=Compile(queue=queue, workers=workers))
    values = [{"const": 0}, {"const": 1}, "{", {"type": "integer", "minimum": 2, "maximum": 1}, {"const": 0}]
    values += [{"const": number} for number in range(2, 10)]
    wanted: list[Wanted] = [
        (str(number), admitted(GrammarKind.JSON, value, GrammarOptions(), settings.limits))
        for number, value in enumerate(values)
    ]
    with closing(GrammarService.start("guidance", byte_vocabulary(), settings)) as service:
        found = list(outcomes(service, wanted))
    assert [name for name, _, _ in found] == [name for name, _ in wanted]
    refused = {name: outcome.code for name, _, outcome in found if isinstance(outcome, GrammarError)}
    assert refused == {"2": ErrorCode.INVALID_SCHEMA, "3": ErrorCode.UNSATISFIABLE}
    assert all((spec is None) == (name == "2") for name, spec, _ in found)
    assert sum(isinstance(outcome, Ready) for _, _, outcome in found) == len(values) - 2
