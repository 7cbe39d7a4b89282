"""GrammarService: one verb, `ensure`. The composition root; knows nothing of vLLM."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any, Final, Self, TypeVar

from cachetools import TTLCache

from vllm_grammar_backend import __version__, engines
from vllm_grammar_backend.cache.memory import GrammarCache
from vllm_grammar_backend.compile.pool import ThreadPool
from vllm_grammar_backend.engines.base import CompiledGrammar, Engine
from vllm_grammar_backend.engines.vocabulary import Vocabulary
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import GrammarKey, GrammarSpec
from vllm_grammar_backend.settings import Settings

logger = logging.getLogger("vllm.grammar_backend")
"""Below vLLM's own logger, whose handlers and level the operator has set."""

REFUSALS_KEPT: Final = 4096
REFUSAL_TTL_S: Final = 60.0
"""A refusal is remembered this long, so that a client's retries cost nothing, and no longer."""


@dataclass(slots=True)
class Counts:
    """Since start. Every call of `ensure` is one of the first four."""

    hits: int = 0
    builds: int = 0
    joined: int = 0
    """Waited for a build that another request had started."""
    refused_again: int = 0
    """Answered from the memory of refusals."""
    refusals: int = 0
    faults: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    """A grammar that can serve now."""

    key: GrammarKey
    compiled: CompiledGrammar


Outcome = Ready | GrammarError
T = TypeVar("T")


class GrammarService:
    """Thread-safe. Never raises for a constraint: refusals are values."""

    def __init__(self, engine: Engine, version: str, settings: Settings) -> None:
        self.engine = engine
        self.version = version
        self.settings = settings
        self._pool = ThreadPool(engine, settings.compile.workers)
        self._cache = GrammarCache(settings.cache.bytes)
        self._refusals: TTLCache[GrammarKey, GrammarError] = TTLCache(REFUSALS_KEPT, REFUSAL_TTL_S)
        self._in_flight: dict[GrammarKey, Future[Outcome]] = {}
        self._lock = threading.RLock()
        self._counts = Counts()

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

    def ensure(self, spec: GrammarSpec) -> Future[Outcome]:
        """Have the grammar ready, or know why not. One build per key, however many ask.

        Returns:
            a future that always succeeds. It may be shared: do not cancel it.
        """
        key = self.key(spec)
        with self._lock:
            known = self._known(key)
            if known is not None:
                self._counts.hits += isinstance(known, Ready)
                self._counts.refused_again += isinstance(known, GrammarError)
                return _done(known)
            joined = self._in_flight.get(key)
            if joined is not None:
                self._counts.joined += 1
                return joined
            outcome: Future[Outcome] = Future()
            self._in_flight[key] = outcome
            self._counts.builds += 1
        try:
            self._pool.submit(spec).add_done_callback(lambda job: self._settle(key, job, outcome))
        except RuntimeError as error:
            # Shutting down, or no thread to be had.
            logger.warning("Grammar %s cannot be worked on now: %s", spec.digest[:16], error)
            self._finish(key, GrammarError(ErrorCode.UNAVAILABLE, "it cannot be worked on now"), outcome)
        return outcome

    def deliver(self, spec: GrammarSpec, make: Callable[[Ready], T], *, wait: bool) -> T | Future[T]:
        """What `make` makes of the ready grammar: at once on a hit, else a future, which fails with the refusal.

        Args:
            spec: the constraint.
            make: called once, on a thread of this service on a miss.
            wait: do not return before it is settled.
        """
        job = self.ensure(spec)
        if (wait or job.done()) and isinstance(outcome := job.result(), Ready):
            return make(outcome)
        promise: Future[T] = Future()

        def settle(done: Future[Outcome]) -> None:
            try:
                outcome = done.result()
                if isinstance(outcome, GrammarError):
                    raise outcome
                promise.set_result(make(outcome))
            except Exception as error:  # noqa: BLE001 - left open, the promise would be waited for for ever
                promise.set_exception(error)

        job.add_done_callback(settle)
        return promise

    def statistics(self) -> dict[str, str | int]:
        """Counts since start, and what is held now; digests and schemas are not in it."""
        with self._lock:
            counts = {**asdict(self._counts), "in_flight": len(self._in_flight)}
        return {
            "backend": self.engine.name,
            "version": self.version,
            "settings": self.settings.digest,
            "vocabulary": self.engine.vocabulary.digest,
            "cache_entries": len(self._cache),
            "cache_bytes": self._cache.bytes,
            **counts,
        }

    def close(self) -> None:
        self._pool.close()

    def _known(self, key: GrammarKey) -> Outcome | None:
        compiled = self._cache.get(key)
        if compiled is not None:
            return Ready(key, compiled)
        with self._lock:
            return self._refusals.get(key)

    def _settle(self, key: GrammarKey, job: Future[CompiledGrammar], outcome: Future[Outcome]) -> None:
        result: Outcome = GrammarError(ErrorCode.UNAVAILABLE, "the grammar could not be built")
        try:
            result = self._judge(key, job)
        finally:
            # Whatever happens, those who wait are told: a future left open would be joined for ever.
            self._finish(key, result, outcome)

    def _judge(self, key: GrammarKey, job: Future[CompiledGrammar]) -> Outcome:
        if job.cancelled():
            return GrammarError(ErrorCode.UNAVAILABLE, "the server is shutting down")
        error = job.exception()
        if error is None:
            compiled = job.result()
            if self._cache.put(key, compiled):
                return Ready(key, compiled)
            most = self.settings.cache.bytes
            reason = f"its compiled form has {compiled.nbytes} bytes"
            error = GrammarError(ErrorCode.TOO_LARGE, reason, hint=f"The setting cache.bytes is {most}.")
        if isinstance(error, GrammarError):
            logger.info("Grammar %s refused by %s: %s", key.digest[:16], key.backend, error.code)
            with self._lock:
                self._refusals[key] = error
                self._counts.refusals += 1
            return error
        # The exception's own text may quote the schema, which is private.
        logger.error("Grammar %s: the compile job failed with %s", key.digest[:16], type(error).__name__)
        with self._lock:
            self._counts.faults += 1
        return GrammarError(ErrorCode.UNAVAILABLE, "the grammar could not be built; this is the server's fault")

    def _finish(self, key: GrammarKey, result: Outcome, outcome: Future[Outcome]) -> None:
        with self._lock:
            self._in_flight.pop(key, None)
        outcome.set_result(result)


def failed(error: GrammarError) -> Future[Any]:
    """A future that failed already."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def _done(outcome: Outcome) -> Future[Outcome]:
    future: Future[Outcome] = Future()
    future.set_result(outcome)
    return future
