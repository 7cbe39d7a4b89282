"""GrammarService: one verb, `ensure`. The composition root; knows nothing of vLLM."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, Self, TypeVar

from cachetools import TTLCache

from vllm_grammar_backend import __version__, engines
from vllm_grammar_backend.cache.memory import Entry, GrammarCache
from vllm_grammar_backend.compile.fair import Job, Lane
from vllm_grammar_backend.compile.supply import Supply
from vllm_grammar_backend.engines.base import CompiledGrammar, Engine
from vllm_grammar_backend.engines.vocabulary import Vocabulary
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import DEFAULT_TENANT, GrammarKey, GrammarSpec
from vllm_grammar_backend.settings import Settings

logger = logging.getLogger("vllm.grammar_backend")
"""Below vLLM's own logger, whose handlers and level the operator has set."""

OBSERVATIONS_KEPT: Final = 4096
REFUSALS_KEPT: Final = 4096
REFUSAL_TTL_S: Final = 60.0
"""A refusal is remembered this long, so that a client's retries cost nothing, and no longer."""


@dataclass(slots=True)
class Counts:
    """Since start."""

    hits: int = 0
    builds: int = 0
    joined: int = 0
    """Waited for a build that another request had started."""
    refused_again: int = 0
    """Answered from the memory of refusals."""
    refusals: int = 0
    faults: int = 0
    turned_away: int = 0
    """Asked to come again: the queue, or a tenant's part of it, was full, or a worker was lost."""
    abandoned: int = 0
    """Builds that nobody waited for any more."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A grammar that can serve now."""

    key: GrammarKey
    compiled: CompiledGrammar


Outcome = Ready | GrammarError


class Found(StrEnum):
    """How a call of `ensure` was met, from the cheapest to the dearest."""

    HIT = "hit"
    """Known in memory, a refusal as well."""
    JOIN = "join"
    """Somebody else had asked for it."""
    MISS = "miss"


class Waiter(Future[Outcome]):
    """One caller's own: it always succeeds, and `release` gives its place up."""

    def __init__(self, found: Found = Found.MISS) -> None:
        super().__init__()
        self.found = found


T = TypeVar("T")
_GIVEN_UP: Final = GrammarError(ErrorCode.UNAVAILABLE, "it was given up before it was compiled")


@dataclass(eq=False, slots=True)
class _Build:
    """One key's job and those who wait for it."""

    key: GrammarKey
    job: Job
    waiters: set[Waiter]
    pinned: bool


class GrammarService:
    """Thread-safe. Never raises for a constraint: refusals are values."""

    def __init__(self, engine: Engine, version: str, settings: Settings) -> None:
        self.engine = engine
        self.version = version
        self.settings = settings
        self.closed = False
        self._supply = Supply(engine, settings)
        keep = settings.cache
        self._cache = GrammarCache(keep.bytes, tenant_share=keep.tenant_share, ttl_s=keep.ttl)
        self._refusals: TTLCache[GrammarKey, GrammarError] = TTLCache(REFUSALS_KEPT, REFUSAL_TTL_S)
        self._in_flight: dict[GrammarKey, _Build] = {}
        self._lock = threading.RLock()
        self._counts = Counts()
        self._compiled: deque[tuple[str, float]] = deque(maxlen=OBSERVATIONS_KEPT)

    @classmethod
    def start(cls, backend: str, vocabulary: Vocabulary, settings: Settings) -> Self:
        """Load the pinned backend.

        Raises:
            StartupError: the library is missing, or refuses the vocabulary.
        """
        return cls(engines.load(backend, vocabulary), engines.require(backend), settings)

    def __str__(self) -> str:
        """The plugin's version, the pinned backend and its own: the start-up line begins with it."""
        return (
            f"vllm-grammar-backend {__version__}: backend {self.engine.name} ({self.engine.distribution} "
            f"{self.version}), settings {self.settings.digest[:12]}, vocabulary {self.engine.vocabulary.size} tokens"
        )

    def key(self, spec: GrammarSpec) -> GrammarKey:
        return GrammarKey(spec.digest, self.engine.name, self.version, self.engine.vocabulary.digest)

    def lookup(self, spec: GrammarSpec) -> Outcome | None:
        """What is known in memory: never waits, never computes."""
        return self._known(self.key(spec))

    def ensure(
        self,
        spec: GrammarSpec,
        tenant: str = DEFAULT_TENANT,
        lane: Lane = Lane.REQUEST,
        *,
        pinned: bool = False,
    ) -> Waiter:
        """Have the grammar ready, or know why not. One build per key, however many ask.

        Args:
            spec: the constraint.
            tenant: on whose account it waits, where it has to.
            lane: whether a request waits for it.
            pinned: once ready, it is kept until the end.

        Returns:
            a future of the caller's own that always succeeds; `release` it when nobody waits for it any more.
        """
        key = self.key(spec)
        with self._lock:
            known = self._known(key)
            if known is not None:
                self._counts.hits += isinstance(known, Ready)
                self._counts.refused_again += isinstance(known, GrammarError)
                if pinned:
                    self._cache.pin(key)
                waiter = Waiter(Found.HIT)
                waiter.set_result(known)
                return waiter
            build = self._in_flight.get(key)
            if build is not None:
                self._counts.joined += 1
                waiter = Waiter(Found.JOIN)
                build.waiters.add(waiter)
                build.pinned |= pinned
                self._supply.pool.rejoin(build.job)
                return waiter
            waiter = Waiter()
            try:
                job = self._supply.obtain(key, spec, tenant, lane)
            except GrammarError as error:
                self._counts.turned_away += 1
                waiter.set_result(error)
                return waiter
            build = self._in_flight[key] = _Build(key, job, {waiter}, pinned)
            self._counts.builds += 1
        job.done.add_done_callback(lambda _: self._settle(build))
        return waiter

    def release(self, spec: GrammarSpec, waiter: Waiter) -> None:
        """Give up a place, whose future is told so; the last one to do so cancels the job."""
        with self._lock:
            build = self._in_flight.get(self.key(spec))
            if build is None or waiter not in build.waiters:
                return
            build.waiters.remove(waiter)
            if not build.waiters:
                self._counts.abandoned += 1
                self._supply.pool.abandon(build.job)
        waiter.set_result(_GIVEN_UP)

    def deliver(
        self, spec: GrammarSpec, make: Callable[[Ready], T], *, wait: bool, tenant: str = DEFAULT_TENANT
    ) -> T | Future[T]:
        """What `make` makes of the ready grammar: at once on a hit, else a future, which fails with the refusal.

        Args:
            spec: the constraint.
            make: called once, on a thread of this service on a miss.
            wait: do not return before it is settled.
            tenant: as for `ensure`.
        """
        job = self.ensure(spec, tenant)
        if (wait or job.done()) and isinstance(outcome := job.result(), Ready):
            return make(outcome)
        promise: Future[T] = Future()

        def settle(done: Future[Outcome]) -> None:
            try:
                outcome = done.result()
                if isinstance(outcome, GrammarError):
                    raise outcome.anew()
                promise.set_result(make(outcome))
            except Exception as error:  # noqa: BLE001 - left open, the promise would be waited for for ever
                promise.set_exception(error)

        job.add_done_callback(settle)
        return promise

    def facts(self, spec: GrammarSpec) -> dict[str, Any]:
        """What is known of one constraint, as plain data. Asking is no use of it.

        Returns:
            `state`: `ready`, `compiling`, `declined`, or `cold` where it is built again when it is asked for; and of
            one that is ready `bytes`, `compile_ms` (0 from the store), `hits` and `idle_s` since its last use.
        """
        key = self.key(spec)
        entry = self._cache.entry(key)
        if entry is not None:
            known = {"bytes": entry.nbytes, "compile_ms": entry.compile_ms, "hits": entry.hits, "idle_s": entry.idle_s}
            return {"state": "ready", **known}
        with self._lock:
            if key in self._in_flight:
                return {"state": "compiling"}
            return {"state": "declined" if key in self._refusals else "cold"}

    def entries(self) -> list[Entry]:
        """What is held in memory, longest unused first."""
        return self._cache.entries()

    def statistics(self) -> dict[str, str | int]:
        """Counts since start, and what is held now; digests and schemas are not in it."""
        with self._lock:
            counts = {**asdict(self._counts), "in_flight": len(self._in_flight)}
            costly = sum(error.code is ErrorCode.TOO_COSTLY for error in self._refusals.values())
        pool, store = self._supply.pool, self._supply.store
        stored = {f"store_{name}": getattr(store, name, 0) for name in ("hits", "rejects", "faults")}
        return {
            "backend": self.engine.name,
            "version": self.version,
            "settings": self.settings.digest,
            "vocabulary": self.engine.vocabulary.digest,
            "cache_entries": len(self._cache),
            "cache_bytes": self._cache.bytes,
            "cache_live_bytes": self._cache.live_bytes,
            "cache_evictions": self._cache.evictions,
            "waiting": pool.waiting,
            "workers": len(pool.pids),
            "worker_restarts": pool.restarts,
            "quarantined": costly,
            **stored,
            **counts,
        }

    def drain_compiled(self) -> list[tuple[str, float]]:
        """Outcome (`ready`, `refused`, `failed`) and seconds in a worker of each job since the last call."""
        return [self._compiled.popleft() for _ in range(len(self._compiled))]

    def close(self) -> None:
        self.closed = True
        self._supply.close()

    def _known(self, key: GrammarKey) -> Outcome | None:
        compiled = self._cache.get(key)
        if compiled is not None:
            return Ready(key, compiled)
        with self._lock:
            return self._refusals.get(key)

    def _settle(self, build: _Build) -> None:
        result: Outcome = GrammarError(ErrorCode.UNAVAILABLE, "the grammar could not be built")
        try:
            result = self._judge(build)
        finally:
            # Whatever happens, those who wait are told: a build left in flight would be joined for ever.
            with self._lock:
                self._in_flight.pop(build.key, None)
            for waiter in build.waiters:
                if not waiter.done():
                    waiter.set_result(result)
            if build.job.seconds:
                self._compiled.append((_outcome(result), build.job.seconds))

    def _judge(self, build: _Build) -> Outcome:
        key, done = build.key, build.job.done
        if done.cancelled():
            return _GIVEN_UP
        error = done.exception()
        if error is None:
            compiled = done.result()
            if self._cache.put(
                key, compiled, build.job.tenant, pinned=build.pinned, compile_ms=build.job.seconds * 1000
            ):
                return Ready(key, compiled)
            most = self.settings.cache.bytes
            reason = f"its compiled form has {compiled.nbytes} bytes"
            error = GrammarError(ErrorCode.TOO_LARGE, reason, hint=f"The setting cache.bytes is {most}.")
        if isinstance(error, GrammarError) and not error.retryable:
            logger.info("Grammar %s refused by %s: %s", key.digest[:16], key.backend, error.code)
            with self._lock:
                self._refusals[key] = error
                self._counts.refusals += 1
            return error
        if isinstance(error, GrammarError):
            with self._lock:
                self._counts.turned_away += 1
            return error
        with self._lock:
            self._counts.faults += 1
        # The exception's own text may quote the schema, which is private.
        logger.error("Grammar %s: the compile job failed with %s", key.digest[:16], type(error).__name__)
        return GrammarError(ErrorCode.UNAVAILABLE, "the grammar could not be built; this is the server's fault")


def _outcome(result: Outcome) -> str:
    if isinstance(result, Ready):
        return "ready"
    return "failed" if result.retryable else "refused"


def failed(error: GrammarError) -> Future[Any]:
    """A future that failed already."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future
