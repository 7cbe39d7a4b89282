"""Where a grammar that is not in memory comes from: the store, another process that compiles it, or a worker.

Whatever touches the disk runs on one thread of its own, so that neither the engine nor the pool ever waits for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final

from vllm_grammar_backend.cache.store import ArtefactStore, Claim
from vllm_grammar_backend.compile.fair import Job, Lane
from vllm_grammar_backend.compile.pool import QUEUE_DEADLINES, WorkerPool
from vllm_grammar_backend.compile.wire import step_back
from vllm_grammar_backend.engines.base import Engine
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import GrammarKey, GrammarSpec
from vllm_grammar_backend.settings import Settings

logger = logging.getLogger("vllm.grammar_backend")

LOOK_AGAIN_S: Final = 0.05
"""How often the file is looked for that another process is about to write."""


@dataclass(eq=False, slots=True)
class _Want:
    """A job and what it is called in the store."""

    key: GrammarKey
    job: Job
    claim: Claim | None = None


class Supply:
    """Thread-safe. Without a store, a thin cover over the pool."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._limits = settings.compile
        self.pool = WorkerPool(engine, settings)
        self.store: ArtefactStore | None = None
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._elsewhere: list[_Want] = []
        """What another process compiles."""
        if settings.store.path is not None:
            self.store = ArtefactStore(settings.store.path, settings.store.bytes)
            self._loaders = ThreadPoolExecutor(self._limits.workers, "grammar-read", initializer=step_back)
            self._thread = threading.Thread(target=self._run, args=(self.store,), name="grammar-store", daemon=True)
            self._thread.start()

    def obtain(self, key: GrammarKey, spec: GrammarSpec, tenant: str, lane: Lane) -> Job:
        """Begin to get a grammar.

        Raises:
            GrammarError: the queue or the tenant's part of it is full; with a store, the job fails with it instead.
        """
        job = Job(spec, tenant, lane)
        if self.store is None:
            self.pool.enqueue(job)
        else:
            self._tasks.put(partial(self._find, self.store, _Want(key, job)))
        return job

    def close(self) -> None:
        """End the workers and the thread. Jobs that are not done fail as retryable."""
        self.pool.close()
        if self.store is not None:
            self._tasks.put(None)
            self._thread.join()
            self._loaders.shutdown()
            while not self._tasks.empty():  # what came last is written, or told that there is nobody any more
                task = self._tasks.get()
                if task is not None:
                    task()

    def _run(self, store: ArtefactStore) -> None:
        looked = monotonic()
        while True:
            task: Callable[[], None] | None = _nothing
            with suppress(Empty):
                task = self._tasks.get(timeout=LOOK_AGAIN_S if self._elsewhere else None)
            if task is None:
                break
            task()
            if monotonic() - looked >= LOOK_AGAIN_S:
                looked, wants = monotonic(), self._elsewhere
                self._elsewhere = []
                for want in wants:
                    self._find(store, want)
        for want in self._elsewhere:
            want.job.fail(GrammarError(ErrorCode.UNAVAILABLE, "the server is shutting down"))

    def _find(self, store: ArtefactStore, want: _Want) -> None:
        try:
            self._seek(store, want)
        except Exception as error:  # noqa: BLE001 - whoever waits is told, and the thread goes on
            want.job.fail(error)

    def _seek(self, store: ArtefactStore, want: _Want) -> None:
        if want.job.abandoned:
            want.job.done.cancel()
            return
        artefact = store.get(want.key)
        if artefact is None:
            want.claim = store.claim(want.key)
            if want.claim is None and self._can_wait(want.job):
                self._elsewhere.append(want)
                return
            artefact = store.get(want.key)  # whoever had the claim before wrote it first
        if artefact is not None:
            if want.claim:
                want.claim.release()
            self._loaders.submit(self._load, store, want, artefact)
            return
        want.job.done.add_done_callback(lambda _: self._tasks.put(partial(_keep, store, want)))
        self.pool.enqueue(want.job)

    def _can_wait(self, job: Job) -> bool:
        """As long as a job waits for a worker here; and no more of them than may wait here."""
        patience = QUEUE_DEADLINES * self._limits.deadline_s
        return monotonic() - job.queued_at < patience and len(self._elsewhere) < self._limits.queue

    def _load(self, store: ArtefactStore, want: _Want, artefact: bytes) -> None:
        try:
            grammar = self._engine.load(artefact)
        except BaseException as error:  # noqa: BLE001 - whatever the library says of it, it is compiled anew
            logger.warning("Grammar %s: its stored artefact is unreadable (%s)", want.key.digest[:16], type(error))
            store.discard(want.key)
            self._tasks.put(partial(self._find, store, want))
        else:
            want.job.succeed(grammar)


def _keep(store: ArtefactStore, want: _Want) -> None:
    done = want.job.done
    if want.job.artefact and not done.cancelled() and done.exception() is None:
        store.put(want.key, want.job.artefact)
    if want.claim:
        want.claim.release()


def _nothing() -> None:
    """What there is to do when nothing came: to look again."""
