"""GrammarService: one verb, `ensure`. The composition root; knows nothing of vLLM."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Final, Self

from cachetools import TTLCache

from vllm_grammar_backend import __version__, engines
from vllm_grammar_backend.cache.memory import GrammarCache
from vllm_grammar_backend.compile.pool import ThreadPool
from vllm_grammar_backend.engines.base import CompiledGrammar, Engine
from vllm_grammar_backend.engines.vocabulary import Vocabulary
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import GrammarKey, GrammarSpec
from vllm_grammar_backend.settings import Settings

logger = logging.getLogger(__name__)

REFUSALS_KEPT: Final = 4096
REFUSAL_TTL_S: Final = 60.0
"""A refusal is remembered this long, so that a client's retries cost nothing, and no longer."""


@dataclass(slots=True)
class Counts:
    """Since start. A request for a grammar is one of the first four."""

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
        self._lock = threading.Lock()
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
        key = self.key(spec)
        compiled = self._cache.get(key)
        with self._lock:
            refusal = self._refusals.get(key)
            self._counts.hits += compiled is not None
            self._counts.refused_again += refusal is not None
        return Ready(key, compiled) if compiled is not None else refusal

    def ensure(self, spec: GrammarSpec) -> Future[Outcome]:
        """Have the grammar ready, or know why not. One build per key, however many ask.

        Returns:
            a future that always succeeds. It may be shared: do not cancel it.
        """
        known = self.lookup(spec)
        if known is not None:
            return _done(known)
        key = self.key(spec)
        with self._lock:
            joined = self._in_flight.get(key)
            if joined is not None:
                self._counts.joined += 1
                return joined
            outcome: Future[Outcome] = Future()
            self._in_flight[key] = outcome
            self._counts.builds += 1
        try:
            self._pool.submit(spec).add_done_callback(lambda job: self._settle(key, job, outcome))
        except RuntimeError:
            self._finish(key, GrammarError(ErrorCode.UNAVAILABLE, "the server is shutting down"), outcome)
        return outcome

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

    def _settle(self, key: GrammarKey, job: Future[CompiledGrammar], outcome: Future[Outcome]) -> None:
        result: Outcome
        if job.cancelled():
            result = GrammarError(ErrorCode.UNAVAILABLE, "the server is shutting down")
        elif (error := job.exception()) is None:
            self._cache.put(key, job.result())
            result = Ready(key, job.result())
        elif isinstance(error, GrammarError):
            with self._lock:
                self._refusals[key] = error
                self._counts.refusals += 1
            logger.info("Grammar %s refused by %s: %s", key.digest[:16], key.backend, error.code)
            result = error
        else:
            self._counts.faults += 1
            # The exception's own text may quote the schema, which is private.
            logger.error("Grammar %s: the compile job failed with %s", key.digest[:16], type(error).__name__)
            result = GrammarError(ErrorCode.UNAVAILABLE, "the grammar could not be built; this is the server's fault")
        self._finish(key, result, outcome)

    def _finish(self, key: GrammarKey, result: Outcome, outcome: Future[Outcome]) -> None:
        with self._lock:
            self._in_flight.pop(key, None)
        outcome.set_result(result)


def _done(outcome: Outcome) -> Future[Outcome]:
    future: Future[Outcome] = Future()
    future.set_result(outcome)
    return future
