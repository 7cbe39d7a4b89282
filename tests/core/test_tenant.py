"""Whose a request is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.tenant import ARGUMENT, TenantHeader, add_middleware, check_name, tenant_of

SOURCE = "header:X-Tenant"


def seen(*headers: tuple[bytes, bytes], source: str = SOURCE, inner: str = SOURCE) -> str:
    """What a request with these headers finds behind the middleware, in a task and on a thread of its own."""
    found: list[str] = []

    async def app(*_: Any) -> None:
        found.append(tenant_of(inner, None))
        found.append(await asyncio.create_task(asyncio.to_thread(tenant_of, inner, None)))

    async def serve() -> None:
        scope = {"type": "http", "headers": list(headers)}
        await TenantHeader(app, source)(scope, None, None)  # type: ignore[arg-type]

    asyncio.run(serve())
    assert found[0] == found[1]
    return found[0]


def test_the_header_names_it() -> None:
    assert seen((b"x-tenant", b"acme")) == "acme"
    assert seen((b"x-other", b"acme")) == "default"
    assert seen() == "default"
    assert seen((b"x-tenant", b"acme"), inner="none") == "default"


@pytest.mark.parametrize("value", [b"", b"../x", b"a b", b"-a", b"a" * 65, "é".encode(), b"a\nb", b"a\n"])
def test_a_malformed_name_is_refused_and_not_quoted(value: bytes) -> None:
    with pytest.raises(GrammarError) as caught:
        seen((b"x-tenant", value))
    assert (caught.value.code, caught.value.keyword) == (ErrorCode.UNSUPPORTED_OPTION, "X-Tenant")


def test_a_header_that_comes_twice_is_refused() -> None:
    with pytest.raises(GrammarError):
        seen((b"x-tenant", b"gateway"), (b"x-tenant", b"client"))


def test_one_request_does_not_see_the_header_of_another() -> None:
    both = asyncio.Barrier(2)

    async def app(scope: Any, *_: Any) -> None:
        async with both:
            scope["found"] = tenant_of(SOURCE, None)

    async def serve() -> list[str]:
        scopes: list[Any] = [{"type": "http", "headers": [(b"x-tenant", name)]} for name in (b"one", b"two")]
        middleware = TenantHeader(app, SOURCE)
        await asyncio.gather(*(middleware(scope, None, None) for scope in scopes))  # type: ignore[arg-type]
        return [scope["found"] for scope in scopes]

    assert asyncio.run(serve()) == ["one", "two"]


def test_the_request_names_it() -> None:
    assert tenant_of("xargs", {ARGUMENT: "acme"}) == "acme"
    assert tenant_of("xargs", {}) == tenant_of("xargs", None) == "default"
    assert tenant_of("none", {ARGUMENT: "acme"}) == "default"
    for bad in (7, "", ["acme"]):
        with pytest.raises(GrammarError) as caught:
            tenant_of("xargs", {ARGUMENT: bad})
        assert caught.value.keyword == ARGUMENT


def test_names() -> None:
    for good in ("a", "9", "a.b-c_D", "a" * 64):
        assert check_name(good, "here") == good


class App:
    """Of a Starlette application, what is asked of it here."""

    def __init__(self) -> None:
        self.added: list[Any] = []

    def add_middleware(self, middleware: Any, *arguments: Any) -> None:
        self.added.append((middleware, arguments))


@pytest.mark.parametrize(("source", "added"), [("none", 0), ("xargs", 0), (SOURCE, 1)])
def test_the_middleware_is_there_where_it_is_needed(source: str, added: int) -> None:
    app = App()
    add_middleware(app, source)
    assert len(app.added) == added
