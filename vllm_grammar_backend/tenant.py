"""Whose a request is: what the setting `tenant_from` makes of it, one value per request."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any, Final

from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import DEFAULT_TENANT
from vllm_grammar_backend.settings import HEADER, XARGS

ARGUMENT: Final = "grammar_tenant"
"""The key of `vllm_xargs` that is read where `tenant_from` is `xargs`."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_header: ContextVar[str | None] = ContextVar("grammar_tenant", default=None)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def is_name(text: str) -> bool:
    """True of a tenant's name, and of what a tenant may call a constraint: it is no path and no log line of its own."""
    return _NAME.fullmatch(text) is not None


def check_name(name: object, where: str) -> str:
    """A name as in a path or a log: letters, digits, `.`, `_`, `-`, at most 64.

    Raises:
        GrammarError: it is not one; `where` is named, what was sent is not quoted.
    """
    if isinstance(name, str) and is_name(name):
        return name
    reason = "a name has 1 to 64 letters, digits, dots, underscores and hyphens, the first a letter or digit"
    raise GrammarError(ErrorCode.UNSUPPORTED_OPTION, reason, keyword=where)


def tenant_of(source: str, arguments: Mapping[str, Any] | None) -> str:
    """The tenant of the request that is being served.

    Args:
        source: the setting `tenant_from`.
        arguments: the request's `vllm_xargs`, or the `extra_args` of its sampling parameters.

    Raises:
        GrammarError: a malformed name. A request without one belongs to `default`.
    """
    if source == XARGS:
        return check_name((arguments or {}).get(ARGUMENT, DEFAULT_TENANT), ARGUMENT)
    if source.startswith(HEADER) and (name := _header.get()) is not None:
        return check_name(name, source.removeprefix(HEADER))
    return DEFAULT_TENANT


class TenantHeader:
    """ASGI middleware: remembers one header of each request for `tenant_of`, in the request's own context."""

    def __init__(self, app: App, source: str) -> None:
        self._app = app
        self._name = source.removeprefix(HEADER).lower().encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            # A header that comes twice is nobody's name: a gateway that adds its own may not know of the client's.
            values = [value.decode("latin-1") for name, value in scope["headers"] if name == self._name]
            _header.set(",".join(values) if values else None)
        await self._app(scope, receive, send)


def add_middleware(app: Any, source: str) -> None:
    """Where `tenant_from` is a header; `app` is a Starlette application that has no middleware yet.

    What is added first is innermost: middleware of the operator's own may set the header too.
    """
    if source.startswith(HEADER):
        app.add_middleware(TenantHeader, source)
