"""Routes under /v1/grammars, as vLLM's endpoint-plugin interface wants them."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Final

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from vllm_grammar_backend import settings
from vllm_grammar_backend.control import PAGE, Control
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.gate import Gate
from vllm_grammar_backend.http.models import Page, SaveAnswer, SavedGrammar, SavedText, Statistics
from vllm_grammar_backend.pin import KEY, Pin

STATE: Final = "grammar_control"
RETRY_AFTER_S: Final = 2
"""About what a compile takes that is worth waiting for."""
PARSED_ON_THE_LOOP: Final = 32_768
"""Bytes of a body; a larger one is parsed on a thread."""


class GrammarRoutes:
    """What `vllm.endpoint_plugins` asks for. vLLM loads it only where VLLM_PLUGINS names it."""

    name: ClassVar[str] = KEY
    required_tasks: ClassVar[tuple[str, ...]] = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        app.include_router(router)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:  # noqa: ARG002 - vLLM's interface
        """Take up the control plane where a backend is pinned and the operator has set a key; else: 404."""
        config = engine_client.vllm_config
        found = Pin.find(config.additional_config)
        key = settings.load(found.file).control.admin_key if found else None
        if found and key:
            gate = Gate(found, config.structured_outputs_config, config.model_config.served_model_name)
            setattr(state, STATE, (Control(gate, engine_client.engine_core), key.get_secret_value()))


class _Refusing(APIRoute):
    """A route whose refusals are answered as OpenAI's errors are, every reason in `reasons`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except GrammarError as error:
                return refusal(error)

        return answer


def refusal(error: GrammarError) -> JSONResponse:
    """Its own status, with Retry-After where another try may succeed."""
    status = HTTPStatus(error.http_status)
    body = {
        "message": str(error),
        "type": status.phrase,
        "param": error.pointer if error.pointer is not None else error.keyword,
        "code": status.value,
        "reasons": [reason.as_data() for reason in error.reasons],
    }
    headers = {"Retry-After": str(RETRY_AFTER_S)} if error.retryable else None
    return JSONResponse({"error": body}, status, headers)


def _control(request: Request, x_admin_key: Annotated[str, Header()] = "") -> Control:
    found: tuple[Control, str] | None = getattr(request.app.state, STATE, None)
    if found is None:
        raise HTTPException(
            404, "The control plane is off: it needs a pinned backend and the setting control.admin_key"
        )
    control, key = found
    if not secrets.compare_digest(x_admin_key.encode(), key.encode()):
        raise HTTPException(401, "The header X-Admin-Key must hold the admin key")
    return control


ControlPlane = Annotated[Control, Depends(_control)]
router = APIRouter(prefix="/v1/grammars", tags=["grammars"], route_class=_Refusing)


async def _constraint(request: Request, most_bytes: int) -> dict[str, Any]:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most_bytes:
            raise GrammarError(ErrorCode.TOO_LARGE, f"the body has more than {most_bytes} bytes")
    try:
        small = len(body) <= PARSED_ON_THE_LOOP
        found = json.loads(body) if small else await asyncio.to_thread(json.loads, body)
    except (ValueError, RecursionError):
        raise GrammarError(ErrorCode.INVALID_GRAMMAR, "the body is not JSON, or nested too deeply") from None
    if not isinstance(found, dict):
        raise GrammarError(ErrorCode.INVALID_GRAMMAR, 'the body must be an object like {"json": SCHEMA}')
    return found


@router.get("/stats")
async def stats(control: ControlPlane) -> Statistics:
    """Counts and sizes of every rank behind this server."""
    return Statistics(ranks=await control.statistics())


@router.get("")
async def page(
    control: ControlPlane,
    tenant: str | None = None,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=PAGE)] = 100,
) -> Page:
    """Saved constraints in order of tenant and name."""
    rows, following = await control.page(tenant, cursor, limit)
    return Page(grammars=[SavedGrammar(**row) for row in rows], next=following)


@router.put("/{tenant}/{name}")
async def save(control: ControlPlane, tenant: str, name: str, request: Request, response: Response) -> SaveAnswer:
    """201 once it is ready in every rank and stands under its name; 200 where the same stood there already."""
    row = await control.save(tenant, name, await _constraint(request, control.most_bytes))
    response.status_code = HTTPStatus.OK if row["change"] == "same" else HTTPStatus.CREATED
    return SaveAnswer(**row)


@router.get("/{tenant}/{name}")
async def find(control: ControlPlane, tenant: str, name: str) -> SavedText:
    """What stands under a name."""
    return SavedText(**_known(await control.find(tenant, name)))


@router.delete("/{tenant}/{name}", status_code=HTTPStatus.NO_CONTENT)
async def forget(control: ControlPlane, tenant: str, name: str) -> None:
    """Take a name away. Requests that run keep their grammar, which stays in the cache like any other."""
    _known(await control.forget(tenant, name) or None)


def _known(found: Any) -> Any:
    if found is None:
        raise HTTPException(404, "There is no such saved grammar")
    return found
