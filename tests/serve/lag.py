"""A probe inside the live server: how late its event loop runs a task that wants to run every millisecond."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

INTERVAL_S: Final = 0.001

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class LagProbe:
    """ASGI middleware for `vllm serve --middleware`. `GET /lag` answers the lags in ms since the last `GET /lag`.

    The probe task starts with the first such request: before it, the server runs as without the middleware.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._lags: list[float] = []
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/lag":
            await self._app(scope, receive, send)
            return
        lags, self._lags = self._lags, []
        if self._task is None:
            self._task = asyncio.create_task(self._probe())
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(lags).encode()})

    async def _probe(self) -> None:
        while True:
            started = time.perf_counter()
            await asyncio.sleep(INTERVAL_S)
            self._lags.append((time.perf_counter() - started - INTERVAL_S) * 1000)


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of them lie, by rank."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]
