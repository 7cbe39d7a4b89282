"""What vLLM's engine-core client does with a utility call, without its sockets."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import msgspec

from vllm_grammar_backend.desk import CALL, Desk, Verb
from vllm_grammar_backend.service import GrammarService


class Engine:
    """What vLLM's engine-core client does with a utility call: all ranks, arguments as plain data."""

    def __init__(self, *ranks: GrammarService) -> None:
        self.desks = [Desk(rank) for rank in ranks]
        self.asked = 0
        self.told = asyncio.Event()

    async def call_utility_all_async(self, method: str, verb: str, data: Any = None) -> list[Any]:
        assert method == CALL
        self.asked += verb == Verb.ENSURE
        replies = [desk.call(str(verb), plain(data)) for desk in self.desks]
        self.told.set()
        return [plain(await asyncio.wrap_future(reply) if isinstance(reply, Future) else reply) for reply in replies]

    def close(self) -> None:
        for desk in self.desks:
            desk.close()


def plain(data: Any) -> Any:
    """What is left of it on the other side."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(data))
