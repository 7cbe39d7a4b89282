"""The engine's side of what front ends ask: one method of vLLM's EngineCore, answers as plain data.

Each verb returns at once or returns a future: a utility call that fails loses its type on the way, and one that blocks
stops decoding.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from vllm_grammar_backend import preload, ticket
from vllm_grammar_backend.cache.names import Names, NamesInMemory, NamesOnDisk, Saved, page
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import GrammarOptions, GrammarSpec
from vllm_grammar_backend.masks.steps import StepTimes
from vllm_grammar_backend.service import GrammarService, Waiter
from vllm_grammar_backend.settings import ColdRequests, Settings

CALL: Final = "grammar_call"
"""The EngineCore method behind which `Desk.call` is; its first argument is a `Verb`."""
WAITER: Final = "waiter"
"""Beside a ticket's fields: a name for the one who asks."""
COLD: Final = "cold"
"""Beside them: what becomes of it where the grammar is not ready."""
FOUND: Final = "found"
ERROR: Final = "error"
"""The fields of an answer: how the grammar was found, and a refusal as data, or None."""
NAME: Final = "name"
SAVED_AT: Final = "saved_at"
"""Beside a ticket's fields: what its tenant calls it, and since when (seconds since the epoch, as text)."""
ROWS: Final = "rows"

_COLD: Final = GrammarError(ErrorCode.UNAVAILABLE, "it is being compiled", hint="Try again in a moment.")


class Verb(StrEnum):
    """What a front end may ask of an engine: the methods of `Desk`."""

    ENSURE = "ensure"
    RELEASE = "release"
    STATISTICS = "statistics"
    OBSERVE = "observe"
    SAVE = "save"
    FORGET = "forget"
    LIST = "list"


class Desk:
    """One waiter per call of `ensure`, who may leave before it has its answer; one thread for saved names."""

    def __init__(self, service: GrammarService, rank: int = 0) -> None:
        self.service = service
        self.rank = rank
        self.steps = StepTimes()
        self._waiting: dict[str, tuple[GrammarSpec, Waiter]] = {}
        self._names = open_names(service.settings)
        self._clerk = ThreadPoolExecutor(1, "grammar-names")

    def call(self, verb: str, data: Any = None) -> Any:
        """One of the methods below by its name, with plain data for its argument. Raises ValueError for any other."""
        method = getattr(self, Verb(verb))
        return method() if data is None else method(data)

    def open(self, defaults: GrammarOptions) -> None:
        """Have the fixed schemas ready; then, in the background, what was saved before the last start.

        Raises:
            StartupError: a fixed schema cannot be read, or is declined.
        """
        preload.preload(self.service, defaults)
        if self._names.kept:
            work = threading.Thread(target=preload.warm_up, args=(self.service, self._names), daemon=True)
            work.start()

    def close(self) -> None:
        self._clerk.shutdown()
        self.service.close()

    def statistics(self) -> dict[str, str | int]:
        return self.service.statistics()

    def observe(self) -> dict[str, Any]:
        """The facts that `Metrics.engine` takes; what was observed is told once."""
        return {
            **self.service.statistics(),
            "engine": self.rank,
            "compiled": self.service.drain_compiled(),
            "steps": self.steps.drain(),
            "unmasked": self.steps.unmasked,
        }

    def ensure(self, data: Mapping[str, str]) -> Future[dict[str, Any]]:
        """How the grammar was found, and why it is not ready, if it is not."""
        name, asked = data[WAITER], ticket.read(data)
        reply: Future[dict[str, Any]] = Future()
        waiter = self.service.ensure(asked.spec, asked.tenant)

        def settle(_: Future[Any]) -> None:
            self._waiting.pop(name, None)
            outcome = waiter.result()
            refusal = outcome.as_data() if isinstance(outcome, GrammarError) else None
            reply.set_result({FOUND: waiter.found.value, ERROR: refusal})

        if data.get(COLD) == ColdRequests.REJECT and not waiter.done():
            # It goes on: whoever asks next may find it ready.
            reply.set_result({FOUND: waiter.found.value, ERROR: _COLD.as_data()})
            return reply
        self._waiting[name] = asked.spec, waiter
        waiter.add_done_callback(settle)
        return reply

    def release(self, name: str) -> None:
        """The client of that waiter has left."""
        spec, waiter = self._waiting.pop(name, (None, None))
        if spec is not None and waiter is not None:
            self.service.release(spec, waiter)

    def save(self, data: Mapping[str, str]) -> Future[dict[str, Any]]:
        """Put a ticket's constraint over what its tenant's name stood for; `change` says what that did."""
        asked = ticket.read(data)
        saved = Saved(asked.tenant, data[NAME], asked.spec, float(data[SAVED_AT]))

        def work() -> dict[str, Any]:
            told = {"change": self._names.save(saved), ROWS: [self._row(saved)]}
            return {**told, "backend": self.service.engine.name, "version": self.service.version}

        return self._clerk.submit(_answered, work)

    def forget(self, data: tuple[str, str]) -> Future[dict[str, Any]]:
        """`known` says whether tenant and name were there."""
        tenant, name = data
        return self._clerk.submit(_answered, lambda: {"known": self._names.forget((tenant, name))})

    def list(self, data: Mapping[str, Any]) -> Future[dict[str, Any]]:
        """One saved name with its text (`name` given), or up to `limit` of a `tenant` or of all, `after` a place."""

        def work() -> dict[str, Any]:
            if data.get(NAME) is not None:
                saved = self._names.find((data["tenant"], data[NAME]))
                return {ROWS: [{**self._row(saved), "text": saved.spec.text}] if saved else []}
            after = tuple(data["after"]) if data.get("after") else None
            found = page(self._names, data.get("tenant"), after, data["limit"])
            return {ROWS: [self._row(saved) for saved in found]}

        return self._clerk.submit(_answered, work)

    def _row(self, saved: Saved) -> dict[str, Any]:
        return {
            "tenant": saved.tenant,
            "name": saved.name,
            "kind": saved.spec.kind.value,
            "digest": saved.spec.digest,
            "saved_at": saved.saved_at,
            "kept": self._names.kept,
            "rank": {"engine": self.rank, **self.service.facts(saved.spec)},
        }


def open_names(settings: Settings) -> Names:
    """Below the store's directory, where there is one."""
    if settings.store.path is None:
        return NamesInMemory()
    return NamesOnDisk(Path(settings.store.path, "names"), settings.limits)


def call_desk(core: Any, verb: str, data: Any = None) -> Any:
    """`CALL` as a method of vLLM's EngineCore, which takes no `*args` there."""
    return core.structured_output_manager.backend.desk.call(verb, data)


def _answered(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a front end reads: with a refusal as data, or None."""
    try:
        return {ERROR: None, **work()}
    except GrammarError as error:
        return {ERROR: error.as_data()}
