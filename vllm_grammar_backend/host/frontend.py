"""The request path: a constraint is admitted and vouched for before its request is scheduled or its response starts."""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm.sampling_params import SamplingParams

from vllm_grammar_backend import messages, pin, settings, tenant, ticket
from vllm_grammar_backend.errors import GrammarError
from vllm_grammar_backend.gate import Gate, check_companions
from vllm_grammar_backend.host.seams import Function, Seam
from vllm_grammar_backend.ticket import Ticket


class RefusedError(VLLMValidationError):
    """A 400 whose `param` is the JSON pointer, or the option's name."""

    def __init__(self, error: GrammarError) -> None:
        super().__init__(str(error), parameter=error.pointer if error.pointer is not None else error.keyword)

    def __str__(self) -> str:
        return str(self.args[0])


@contextmanager
def vllm_errors() -> Iterator[None]:
    """Turn a GrammarError into vLLM's exception for the same HTTP status."""
    try:
        yield
    except GrammarError as error:
        if error.http_status == HTTPStatus.BAD_REQUEST:
            raise RefusedError(error) from None
        raise GracefulHTTPError(str(error), HTTPStatus(error.http_status)) from None


_gates: weakref.WeakKeyDictionary[Any, Gate | None] = weakref.WeakKeyDictionary()


def gate_of(engine: Any) -> Gate | None:
    """The gate of an AsyncLLM or LLMEngine; None where no backend is pinned."""
    if engine not in _gates:
        config = engine.vllm_config
        found = pin.Pin.find(config.additional_config)
        name = config.model_config.served_model_name
        _gates[engine] = Gate(found, config.structured_outputs_config, name) if found else None
    return _gates[engine]


def _admit_after(original: Function) -> Function:
    """Rendering is the last awaited step before vLLM makes sampling parameters and starts the response."""

    async def render(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        rendered = await original(self, request, *args, **kwargs)
        gate = gate_of(self.engine_client)
        if gate is not None and not isinstance(rendered, ErrorResponse):
            with vllm_errors():
                await gate.admit_request(request, self.renderer.tokenizer, self.engine_client.engine_core)
        return rendered

    return render


def _learn_tenant(original: Function) -> Function:
    def init_entrypoints_middleware(args: Any, app: Any, *rest: Any, **named: Any) -> None:
        found = pin.Pin.find(args.additional_config)
        if found:
            tenant.add_middleware(app, settings.load(found.file).tenant_from)
        original(args, app, *rest, **named)

    return init_entrypoints_middleware


def _watch_from_start(original: Function) -> Function:
    async def init_app_state(engine_client: Any, *args: Any, **kwargs: Any) -> Any:
        done = await original(engine_client, *args, **kwargs)
        gate = gate_of(engine_client)
        if gate is not None:
            gate.start_watching(engine_client.engine_core)
        return done

    return init_app_state


class _Call:
    """One call of `add_request`. The parameters are the caller's, who may send them again: a ticket goes in a copy."""

    def __init__(self, signature: inspect.Signature, *args: Any, **kwargs: Any) -> None:
        self.bound = signature.bind(*args, **kwargs)
        self.params = self.bound.arguments["params"]

    def constrained(self) -> bool:
        return isinstance(self.params, SamplingParams) and self.params.structured_outputs is not None

    def carry(self, admitted: Ticket) -> None:
        self.bound.arguments["params"] = carrier = copy.copy(self.params)
        carrier.extra_args = {**(self.params.extra_args or {}), pin.KEY: admitted}


def _admit_before_async(original: Function) -> Function:
    signature = inspect.signature(original)

    async def add_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        gate, call = gate_of(self), _Call(signature, self, *args, **kwargs)
        if gate is not None and call.constrained():
            with vllm_errors():
                call.carry(await gate.admit_params(call.params, self.engine_core))
        return await original(*call.bound.args, **call.bound.kwargs)

    return add_request


def _admit_before(original: Function) -> Function:
    signature = inspect.signature(original)

    def add_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        gate, call = gate_of(self), _Call(signature, self, *args, **kwargs)
        if gate is not None and call.constrained():
            with vllm_errors():
                call.carry(gate.admit_params_blocking(call.params, self.engine_core))
        return original(*call.bound.args, **call.bound.kwargs)

    return add_request


def _while_pinned(replacement: Function) -> Callable[[Function], Function]:
    """A wrap that calls `replacement(original, ...)` where a backend is pinned and `original(...)` where none is."""

    def wrap(original: Function) -> Function:
        def either(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **kwargs) if pin.active() is None else replacement(original, *args, **kwargs)

        return either

    return wrap


def _check_ticket(_original: Function, params: SamplingParams, *args: Any, **kwargs: Any) -> None:
    if params.structured_outputs is not None:
        with vllm_errors():
            Ticket.of(params.extra_args)
            check_companions(params, kwargs.get("tokenizer", args[-1] if args else None))


def _check_kinds(_original: Function, params: Any) -> None:
    with vllm_errors():
        ticket.constraint(params)


def _refuse_beam_search(_original: Function, *_args: Any, **_kwargs: Any) -> None:
    with vllm_errors():
        check_companions(None, beam_search=True)


_SERVER: Final = "vllm.entrypoints.launchers.api_server.entry"
_SERVING: Final = "vllm.entrypoints.openai"
_ERRORS: Final = "vllm.entrypoints.serve.exception_handling"
_BEAMS: Final = "vllm.entrypoints.generate.beam_search.offline:BeamSearchOfflineMixin"
_STATUS: Final = "a refusal needs its own HTTP status, streaming or not, so it must come before the response starts"
_LOOP: Final = "it runs a grammar library on the event loop, and not always the pinned one"
_QUOTED: Final = "vLLM's messages and logs do not quote constraints"

_RENDER: Final = (
    f"{_SERVING}.chat_completion.serving:OpenAIServingChat.render_chat_request",
    f"{_SERVING}.completion.serving:OpenAIServingCompletion.render_completion_request",
    f"{_SERVING}.responses.serving:OpenAIServingResponses._render_resolved_response_inputs",
)

SEAMS: Final = (
    *(Seam(target, "request", _admit_after, _STATUS) for target in _RENDER),
    Seam(
        "vllm.entrypoints.launchers.app:init_entrypoints_middleware",
        "args app",
        _learn_tenant,
        "a request's headers do not reach the functions that see its constraint",
        "vLLM tells plugins whose a request is",
    ),
    Seam(
        f"{_SERVER}:init_app_state",
        "engine_client",
        _watch_from_start,
        "an API server's /metrics shows what is registered in it, and vLLM's engines export nothing",
        "vLLM asks plugins for metrics of an engine",
    ),
    Seam(
        "vllm.v1.engine.async_llm:AsyncLLM.add_request",
        "params",
        _admit_before_async,
        "every other front end (token-level, batch, speech, embedding code) reaches the engine here",
    ),
    Seam("vllm.v1.engine.llm_engine:LLMEngine.add_request", "params", _admit_before, "offline LLM comes in here"),
    Seam(
        "vllm.sampling_params:SamplingParams._validate_structured_outputs", "self", _while_pinned(_check_ticket), _LOOP
    ),
    Seam(
        "vllm.entrypoints.generate.base.protocol:validate_structural_tag_payload",
        "payload parameter",
        _while_pinned(lambda _original, payload, *, parameter: None),  # noqa: ARG005 - vLLM's signature
        _LOOP,
    ),
    Seam(
        "vllm.parser.abstract_parser:_xgrammar_supports",
        "structured_outputs",
        _while_pinned(lambda *_: True),
        _LOOP + "; where it says no, the tools' constraint is dropped",
    ),
    Seam(
        f"{_BEAMS}._init_beam_search_structured_output",
        "structured_outputs",
        _while_pinned(_refuse_beam_search),
        "offline beam search builds a backend of vLLM's own choice",
    ),
    Seam(
        f"{_ERRORS}.error_response:sanitize_message",
        "message",
        _while_pinned(messages.keep_pointers),
        "it takes JSON pointers for file paths and rewrites them",
        "vLLM's clean-up leaves JSON pointers alone",
    ),
    Seam(
        "vllm.sampling_params:StructuredOutputsParams.__post_init__",
        "self",
        _while_pinned(_check_kinds),
        "where several kinds are given, vLLM's message quotes all of them",
        _QUOTED,
    ),
    Seam(
        f"{_ERRORS}.handlers.validation:_summarize_error_input",
        "value",
        _while_pinned(messages.tell_size),
        "a schema sent as text where an object belongs is quoted in the message",
        _QUOTED,
    ),
    Seam(
        "vllm.sampling_params:StructuredOutputsParams.__repr__",
        "self",
        _while_pinned(messages.name_kinds),
        "with --enable-log-requests vLLM logs the schema's text",
        _QUOTED,
    ),
)
