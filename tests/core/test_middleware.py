"""A header reaches the place that needs it through a real application, whatever middleware is around."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse

from vllm_grammar_backend.errors import GrammarError
from vllm_grammar_backend.tenant import add_middleware, tenant_of

SOURCE = "header:X-Tenant"
Next = Callable[[Request], Awaitable[Response]]


def application(source: str) -> FastAPI:
    app = FastAPI()
    add_middleware(app, source)

    @app.middleware("http")
    async def gateway(request: Request, call_next: Next) -> Response:
        """As an operator's `--middleware` might: it runs the application in a task of its own."""
        key = request.headers.get("authorization")
        if key is not None:
            request.scope["headers"] = [(b"x-tenant", key.encode())]
        return await call_next(request)

    @app.get("/whole")
    async def whole() -> PlainTextResponse:
        await asyncio.sleep(0)  # others have their turn
        return PlainTextResponse(told())

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            for _ in range(2):
                await asyncio.sleep(0)
                yield told()

        return StreamingResponse(parts())

    def told() -> str:
        try:
            return tenant_of(source, None)
        except GrammarError as error:
            return str(error.keyword)

    return app


def ask(source: str, path: str, *requests: dict[str, str]) -> list[str]:
    """What requests with these headers are told that are under way at the same time."""

    async def send() -> list[str]:
        transport = httpx.ASGITransport(app=application(source))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return [each.text for each in await asyncio.gather(*(client.get(path, headers=h) for h in requests))]

    return asyncio.run(send())


@pytest.mark.parametrize(("path", "times"), [("/whole", 1), ("/stream", 2)])
def test_each_request_has_its_own(path: str, times: int) -> None:
    sent = [{"X-Tenant": f"t{number}"} for number in range(20)] + [{}, {"x-tenant": "not a name"}]
    expected = [f"t{number}" for number in range(20)] + ["default", "X-Tenant"]
    assert ask(SOURCE, path, *sent) == [name * times for name in expected]


def test_middleware_of_the_operators_own_may_say_it() -> None:
    assert ask(SOURCE, "/whole", {"Authorization": "acme", "X-Tenant": "zeta"}) == ["acme"]


@pytest.mark.parametrize("source", ["none", "xargs"])
def test_nothing_is_added_where_it_is_no_header(source: str) -> None:
    assert len(application(source).user_middleware) == 1
    assert ask(source, "/whole", {"X-Tenant": "acme"}) == ["default"]
