"""What is left of a constraint in the engine's request, on vLLM's own classes in this process."""

from __future__ import annotations

import json
import warnings
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_grammar_backend.admission import admit
from vllm_grammar_backend.engines.vocabulary import byte_vocabulary
from vllm_grammar_backend.grammar import GrammarKind, GrammarOptions
from vllm_grammar_backend.pin import KEY
from vllm_grammar_backend.service import GrammarService
from vllm_grammar_backend.settings import Settings
from vllm_grammar_backend.ticket import Ticket

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own imports warn of things that are not ours
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams

    from vllm_grammar_backend.host.backend import SEAMS, PinnedBackend, PinnedGrammar

SECRET = {"const": "top-secret-text"}


@pytest.fixture(scope="module")
def backend() -> PinnedBackend:
    service = GrammarService.start("guidance", byte_vocabulary(), Settings())
    ranks = SimpleNamespace(data_parallel_index=0)
    return PinnedBackend(SimpleNamespace(structured_outputs_config=None, parallel_config=ranks), None, service)


def grammar_init(backend: Any, params: Any, *, asynchronous: bool = True) -> Any:
    return started(backend, params, asynchronous=asynchronous).structured_output_request.grammar


def started(backend: Any, params: Any, *, asynchronous: bool = True) -> Any:
    """The engine's request."""

    def stock(*_: object) -> None:
        pytest.fail("vLLM's own grammar_init was called")

    manager = SimpleNamespace(backend=backend, _use_async_grammar_compilation=asynchronous)
    request = SimpleNamespace(structured_output_request=SimpleNamespace(grammar=None), sampling_params=params)
    SEAMS[1].wrap(stock)(manager, request)
    return request


def params_of(*, with_ticket: bool) -> Any:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(json=SECRET))
    if with_ticket:
        spec = admit(GrammarKind.JSON, SECRET, GrammarOptions(), Settings().limits)
        params.extra_args = {"other": 1, KEY: json.loads(json.dumps(Ticket(spec)))}
    return params


@pytest.mark.parametrize("with_ticket", [True, False])
def test_the_text_is_gone_once_the_grammar_is_asked_for(backend: PinnedBackend, *, with_ticket: bool) -> None:
    params = params_of(with_ticket=with_ticket)
    request = started(backend, params)
    grammar, before, params = request.structured_output_request.grammar, params, request.sampling_params
    made = grammar.result(60) if isinstance(grammar, Future) else grammar
    assert isinstance(made, PinnedGrammar)
    assert "top-secret-text" not in repr(params)
    assert "top-secret-text" not in json.dumps(params.extra_args)
    assert params.structured_outputs is not None, "vLLM takes the request for an unconstrained one"
    assert before == params_of(with_ticket=with_ticket), "the answers of one request share it"


def test_compiled_in_place_where_vllm_wants_it(backend: PinnedBackend) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(json={"const": "in place"}))
    assert isinstance(grammar_init(backend, params, asynchronous=False), PinnedGrammar)


def test_a_hit_is_no_future_and_a_refusal_fails_one(backend: PinnedBackend) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="hit"))
    assert isinstance(grammar_init(backend, params).result(60), PinnedGrammar)
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="hit"))
    assert isinstance(grammar_init(backend, params), PinnedGrammar)
    bad = SamplingParams(structured_outputs=StructuredOutputsParams(json="{"))
    assert "invalid_schema" in str(grammar_init(backend, bad).exception(60))
