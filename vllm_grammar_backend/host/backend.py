"""The engine's side: vLLM's two structured-output ABCs over our matchers, and the service behind them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from copy import copy
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.structured_output.backend_types import StructuredOutputBackend, StructuredOutputGrammar

from vllm_grammar_backend import admission, pin, ticket
from vllm_grammar_backend.desk import CALL, Desk, call_desk
from vllm_grammar_backend.engines import vocabulary
from vllm_grammar_backend.engines.base import Matcher
from vllm_grammar_backend.errors import GrammarError
from vllm_grammar_backend.grammar import GrammarKind
from vllm_grammar_backend.host import capabilities, flags
from vllm_grammar_backend.host.seams import Function, Seam
from vllm_grammar_backend.service import GrammarService, Ready, failed

logger = logging.getLogger("vllm.grammar_backend")


class PinnedGrammar(StructuredOutputGrammar):
    """One request's matcher as vLLM sees it.

    Never calls itself terminated: vLLM would then allow every token. The matcher keeps its last row closed instead.
    """

    def __init__(self, matcher: Matcher, backend: PinnedBackend) -> None:
        self._matcher = matcher
        self._backend = backend
        self._filled = False

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:  # noqa: ARG002 - vLLM's signature
        began = perf_counter()
        accepted = self._matcher.accept(tokens)
        self._backend.desk.steps.accepted(perf_counter() - began, first=not self._filled)
        self._filled = True
        return accepted

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return tokens[: self._matcher.validate(tokens)]

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        began = perf_counter()
        self._matcher.fill(self._backend.rows(bitmask)[batch_index])
        self._backend.desk.steps.filled(batch_index, perf_counter() - began)
        self._filled = True

    def is_terminated(self) -> bool:
        return False

    def reset(self) -> None:
        self._matcher.reset()


class PinnedBackend(StructuredOutputBackend):
    """One per engine. vLLM's manager allocates its bitmask here; grammars come from the service."""

    def __init__(self, vllm_config: Any, tokenizer: Any, service: GrammarService) -> None:
        super().__init__(vllm_config, tokenizer, service.engine.vocabulary.size)
        self.service = service
        self.desk = Desk(service, vllm_config.parallel_config.data_parallel_index)
        self.defaults = pin.options_of(service.settings, vllm_config.structured_outputs_config)
        self._max_rollback = int(getattr(vllm_config, "num_speculative_tokens", 0)) + 1
        self._seen: tuple[torch.Tensor, NDArray[np.int32]] | None = None

    def grammar(self, ready: Ready, stop_token_ids: Iterable[int]) -> PinnedGrammar:
        stops = set(stop_token_ids) or self.service.engine.vocabulary.eos_ids
        return PinnedGrammar(ready.compiled.matcher(stops, max_rollback=self._max_rollback), self)

    def rows(self, bitmask: torch.Tensor) -> NDArray[np.int32]:
        """The bitmask as a numpy view, made once per tensor."""
        if self._seen is None or self._seen[0] is not bitmask:
            self._seen = (bitmask, bitmask.numpy())
        return self._seen[1]

    def compile_grammar(
        self, request_type: Any, grammar_spec: str, stop_token_ids: set[int] | None = None
    ) -> StructuredOutputGrammar:
        """For callers that hold no request; waits for the build."""
        spec = admission.admit(
            GrammarKind(request_type.name.lower()), grammar_spec, self.defaults, self.service.settings.limits
        )
        outcome = self.service.ensure(spec).result()
        if isinstance(outcome, GrammarError):
            raise outcome.anew()
        return self.grammar(outcome, stop_token_ids or ())

    def allocate_token_bitmask(self, max_num_seqs: int) -> torch.Tensor:
        return torch.full((max_num_seqs, self.service.engine.vocabulary.row_width), -1, dtype=torch.int32)

    def destroy(self) -> None:
        self.desk.close()


def start_backend(vllm_config: Any, tokenizer: Any, found: pin.Pin) -> PinnedBackend:
    """Check, load the pinned library with the model's vocabulary, and log the one start-up line.

    Raises:
        StartupError: one sentence that says what to do.
    """
    settings = flags.check(found, vllm_config.structured_outputs_config)
    model = vllm_config.model_config
    pin.check_model(model)
    ends = vocabulary.end_ids(model.try_get_generation_config(), vars(model.hf_config))
    known = vocabulary.from_tokenizer(tokenizer, model.get_vocab_size(), ends)
    service = GrammarService.start(found.backend, known, settings)
    backend = PinnedBackend(vllm_config, tokenizer, service)
    backend.desk.open(backend.defaults)
    if not vllm_config.parallel_config.data_parallel_rank:
        routes = "on" if capabilities.routes_on() else f"off (set VLLM_PLUGINS={capabilities.plugins_value()})"
        logger.info("%s, %d engine seams, HTTP routes %s", service, len(SEAMS), routes)
    return backend


def _start_with_engine(original: Function) -> Function:
    def init(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        from vllm.v1.engine.core import EngineCore

        original(self, vllm_config, *args, **kwargs)
        if (found := pin.Pin.find(vllm_config.additional_config)) is not None:
            self.backend = start_backend(vllm_config, self.tokenizer, found)
            # Utility calls look up methods of EngineCore by name; vLLM has no registry for them.
            setattr(EngineCore, CALL, call_desk)

    return init


def _init_grammar(original: Function) -> Function:
    def grammar_init(self: Any, request: Any) -> None:
        wanted = request.structured_output_request
        if wanted is None or not isinstance(self.backend, PinnedBackend):
            original(self, request)
            return
        params = request.sampling_params = copy(request.sampling_params)  # in one process, the `n` answers share it
        backend, stops = self.backend, params.all_stop_token_ids
        try:
            asked = ticket.ticket_of(params, backend.defaults, backend.service.settings.limits)
        except GrammarError as error:
            wanted.grammar = failed(error)
            return
        # The text is not needed any more; vLLM would send it to every worker, and log it when an engine dies.
        params.structured_outputs = StructuredOutputsParams(json_object=True)
        params.extra_args = {**(params.extra_args or {}), pin.KEY: asked.spec.digest}
        wanted.grammar = backend.service.deliver(
            asked.spec,
            lambda ready: backend.grammar(ready, stops),
            wait=not self._use_async_grammar_compilation,
            tenant=asked.tenant,
        )

    return grammar_init


SEAMS: Final = (
    Seam(
        "vllm.v1.structured_output:StructuredOutputManager.__init__",
        "self vllm_config",
        _start_with_engine,
        "the pinned backend is loaded, and refused, at start and not at the first request",
    ),
    Seam(
        "vllm.v1.structured_output:StructuredOutputManager.grammar_init",
        "self request",
        _init_grammar,
        "a hit is set at once and a miss is a future of ours, so that no hit queues behind a compile",
    ),
)
