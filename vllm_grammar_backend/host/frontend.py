"""The request path: a constraint is admitted and vouched for before its request is scheduled or its response starts."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm.sampling_params import SamplingParams

from vllm_grammar_backend import pin, ticket
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.gate import Gate, check_companions
from vllm_grammar_backend.host.seams import Function, Seam
from vllm_grammar_backend.ticket import Ticket

_CODES: Final = tuple(f"{code}: " for code in ErrorCode)


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
        found = pin.Pin.find(engine.vllm_config.additional_config)
        _gates[engine] = Gate(found, engine.vllm_config.structured_outputs_config) if found else None
    return _gates[engine]


def _admit_after(original: Function) -> Function:
    """Rendering is the last awaited step before vLLM makes sampling parameters and starts the response."""

    async def render(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        rendered = await original(self, request, *args, **kwargs)
        gate = gate_of(self.engine_client)
        if gate is not None:
            with vllm_errors():
                await _admit_request(gate, request, self.engine_client.engine_core)
        return rendered

    return render


async def _admit_request(gate: Gate, request: Any, client: Any) -> None:
    Ticket.of(request.vllm_xargs)
    params = request.extract_structured_outputs()
    if params is None:
        return
    check_companions(request)
    admitted = await gate.issue_async(params)
    await gate.vouch(admitted, client)
    request.vllm_xargs = {**(request.vllm_xargs or {}), pin.KEY: admitted}


def _parameters(signature: inspect.Signature, *args: Any, **kwargs: Any) -> SamplingParams | None:
    params = signature.bind(*args, **kwargs).arguments["params"]
    return params if isinstance(params, SamplingParams) and params.structured_outputs is not None else None


def _held(params: SamplingParams) -> Ticket | None:
    """The ticket the request already carries, unless the parameters were changed since it was made."""
    admitted = Ticket.of(params.extra_args)
    if admitted is not None and admitted.fits(params.structured_outputs):
        return admitted
    check_companions(params)
    return None


def _attach(params: SamplingParams, admitted: Ticket) -> None:
    params.extra_args = {**(params.extra_args or {}), pin.KEY: admitted}


def _admit_before_async(original: Function) -> Function:
    signature = inspect.signature(original)

    async def add_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        gate = gate_of(self)
        if gate is not None and (params := _parameters(signature, self, *args, **kwargs)):
            with vllm_errors():
                if _held(params) is None:
                    admitted = await gate.issue_async(params.structured_outputs)
                    await gate.vouch(admitted, self.engine_core)
                    _attach(params, admitted)
        return await original(self, *args, **kwargs)

    return add_request


def _admit_before(original: Function) -> Function:
    signature = inspect.signature(original)

    def add_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        gate = gate_of(self)
        if gate is not None and (params := _parameters(signature, self, *args, **kwargs)):
            with vllm_errors():
                admitted = _held(params) or gate.issue(params.structured_outputs)
                gate.vouch_blocking(admitted, self.engine_core)
                _attach(params, admitted)
        return original(self, *args, **kwargs)

    return add_request


def _only_ours(original: Function) -> Function:
    def validate(self: Any, *args: Any, **kwargs: Any) -> None:
        if pin.active() is None:
            original(self, *args, **kwargs)
        elif self.structured_outputs is not None:
            with vllm_errors():
                _held(self)

    return validate


def _left_to_admission(original: Function) -> Function:
    def validate_payload(payload: Any, *, parameter: str) -> None:
        if pin.active() is None:
            original(payload, parameter=parameter)

    return validate_payload


def _one_kind(original: Function) -> Function:
    def __post_init__(self: Any) -> None:
        if pin.active() is None:
            original(self)
        else:
            with vllm_errors():
                ticket.constraint(self)

    return __post_init__


def _size_only(original: Function) -> Function:
    def summarize(value: object) -> object:
        if pin.active() is not None and isinstance(value, str):
            return f"<str of {len(value)} characters>"
        return original(value)

    return summarize


def _trusting(original: Function) -> Function:
    def supports(structured_outputs: Any) -> bool:
        return pin.active() is not None or bool(original(structured_outputs))

    return supports


def _refuse_beam_search(original: Function) -> Function:
    def init_structured_output(self: Any, *args: Any, **kwargs: Any) -> Any:
        if gate_of(self.llm_engine) is not None:
            with vllm_errors():
                check_companions(None, beam_search=True)
        return original(self, *args, **kwargs)

    return init_structured_output


def _keep_pointers(original: Function) -> Function:
    def sanitize(message: str) -> str:
        return message if message.startswith(_CODES) else str(original(message))

    return sanitize


def _kinds_only(original: Function) -> Function:
    def represent(self: Any) -> str:
        if pin.active() is None:
            return str(original(self))
        kinds = [name for name, value in vars(self).items() if value is not None and not name.startswith("_")]
        return f"StructuredOutputsParams({', '.join(kinds)})"

    return represent


_SERVING: Final = "vllm.entrypoints.openai"
_STATUS: Final = "a refusal needs its own HTTP status, streaming or not, so it must come before the response starts"
_LOOP: Final = "it runs a grammar library on the event loop, and not always the pinned one"

SEAMS: Final = (
    Seam(f"{_SERVING}.chat_completion.serving:OpenAIServingChat.render_chat_request", "request", _admit_after, _STATUS),
    Seam(
        f"{_SERVING}.completion.serving:OpenAIServingCompletion.render_completion_request",
        "request",
        _admit_after,
        _STATUS,
    ),
    Seam(
        f"{_SERVING}.responses.serving:OpenAIServingResponses._render_resolved_response_inputs",
        "request",
        _admit_after,
        _STATUS,
    ),
    Seam(
        "vllm.v1.engine.async_llm:AsyncLLM.add_request",
        "params",
        _admit_before_async,
        "every other front end (token-level, batch, speech, embedding code) reaches the engine here",
    ),
    Seam("vllm.v1.engine.llm_engine:LLMEngine.add_request", "params", _admit_before, "offline LLM comes in here"),
    Seam("vllm.sampling_params:SamplingParams._validate_structured_outputs", "self", _only_ours, _LOOP),
    Seam(
        "vllm.entrypoints.generate.base.protocol:validate_structural_tag_payload",
        "payload parameter",
        _left_to_admission,
        _LOOP,
    ),
    Seam(
        "vllm.parser.abstract_parser:_xgrammar_supports",
        "structured_outputs",
        _trusting,
        _LOOP + "; where it says no, the tools' constraint is dropped",
    ),
    Seam(
        "vllm.entrypoints.generate.beam_search.offline:BeamSearchOfflineMixin._init_beam_search_structured_output",
        "structured_outputs",
        _refuse_beam_search,
        "offline beam search builds a backend of vLLM's own choice",
    ),
    Seam(
        "vllm.entrypoints.serve.exception_handling.error_response:sanitize_message",
        "message",
        _keep_pointers,
        "it takes JSON pointers for file paths and rewrites them",
        "vLLM's clean-up leaves JSON pointers alone",
    ),
    Seam(
        "vllm.sampling_params:StructuredOutputsParams.__post_init__",
        "self",
        _one_kind,
        "where several kinds are given, vLLM's message quotes all of them",
        "vLLM's message names the kinds only",
    ),
    Seam(
        "vllm.entrypoints.serve.exception_handling.handlers.validation:_summarize_error_input",
        "value",
        _size_only,
        "a schema sent as text where an object belongs is quoted in the message",
        "vLLM does not quote a request's values",
    ),
    Seam(
        "vllm.sampling_params:StructuredOutputsParams.__repr__",
        "self",
        _kinds_only,
        "with --enable-log-requests vLLM logs the schema's text",
        "vLLM leaves constraints out of its request log",
    ),
)
