"""Routes under /v1/grammars, as vLLM's endpoint-plugin interface wants them."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request

from vllm_grammar_backend import gate, settings
from vllm_grammar_backend.pin import KEY, Pin

STATE = "grammar_control"


class GrammarRoutes:
    """What `vllm.endpoint_plugins` asks for. vLLM loads it only where VLLM_PLUGINS names it."""

    name: ClassVar[str] = KEY
    required_tasks: ClassVar[tuple[str, ...]] = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        app.include_router(router)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:  # noqa: ARG002 - vLLM's interface
        """Keep the client where a backend is pinned and the operator has set a key; else the routes answer 404."""
        found = Pin.find(engine_client.vllm_config.additional_config)
        key = settings.load(found.file).control.admin_key if found else None
        setattr(state, STATE, (engine_client.engine_core, key.get_secret_value()) if key else None)


def _client(request: Request, x_admin_key: Annotated[str, Header()] = "") -> Any:
    control = getattr(request.app.state, STATE, None)
    if control is None:
        raise HTTPException(
            404, "The control plane is off: it needs a pinned backend and the setting control.admin_key"
        )
    client, key = control
    if not secrets.compare_digest(x_admin_key.encode(), key.encode()):
        raise HTTPException(401, "The header X-Admin-Key must hold the admin key")
    return client


router = APIRouter(prefix="/v1/grammars", tags=["grammars"])


@router.get("/stats")
async def stats(client: Annotated[Any, Depends(_client)]) -> dict[str, list[dict[str, str | int]]]:
    """Counts and sizes of every rank behind this server."""
    return {"ranks": await client.call_utility_all_async(gate.CALL, gate.Verb.STATISTICS)}
