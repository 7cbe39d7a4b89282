"""The parent's side of the workers: who gets which job, and what ends a job that does not end by itself.

One thread waits for everything at once: new jobs, answers, deaths, deadlines. It never waits for any one child.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Pipe, wait
from time import monotonic
from typing import Final

from vllm_grammar_backend.compile.child import Child, Nursery
from vllm_grammar_backend.compile.fair import FairQueue, Job, Lane
from vllm_grammar_backend.compile.walk import too_costly
from vllm_grammar_backend.compile.wire import ARTEFACT_FOLLOWS, READY, TAKEN, Start, read_ended, read_failure, step_back
from vllm_grammar_backend.engines.base import Engine
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import GrammarSpec
from vllm_grammar_backend.settings import Settings

logger = logging.getLogger("vllm.grammar_backend")

WEIGHING_S: Final = 0.05
"""How often the memory of a busy worker is looked at."""
GRACE_S: Final = 2.0
"""A running job nobody waits for any more may finish within this: clients retry."""
START_LIMIT_S: Final = 300.0
"""A minute and more was seen where a library had to be read from a slow disk."""
START_WAIT_S: Final = 60.0
"""So long a job waits for the first worker to start."""
BACK_OFF_S: Final = (0.0, 0.2, 1.0, 5.0, 30.0)
"""Before the next start, by how many workers in a row ended without an answer and without a job to blame."""
LIVED_S: Final = 60.0
"""One that lived so long ended for a reason of its own."""
CRASH_PAUSE_S: Final = 0.1
"""Before the next start where a job may be to blame: such a job is given up soon, and others wait."""
LOSSES: Final = 2
"""A job that was being worked on when so many workers ended is at fault itself."""
QUEUE_DEADLINES: Final = 3
"""A job waits so many deadlines for a worker: those that run, their replacement by new workers, one turn more."""
_CRASHED: Final = GrammarError(ErrorCode.UNSUPPORTED_SCHEMA, "it cannot be worked on by this server")
_KILLED: Final = GrammarError(ErrorCode.UNAVAILABLE, "its worker was killed", hint="Try again later.")
_MIB: Final = 1024 * 1024


@dataclass(eq=False, slots=True)
class _Place:
    """Room for one worker."""

    child: Child | None = None
    ready: bool = False
    since: float = 0.0
    """When its job, or its start, began; where there is no child, when one may be started."""
    job: Job | None = None
    taken: bool = False
    """The child has the job."""
    idle_bytes: int = 0
    """Resident before its first job."""
    base_bytes: int = 0
    """Resident before this job: an allocator keeps some of what earlier ones took."""
    failures: int = 0
    born: float = 0.0
    """When its worker was started."""


class WorkerPool:
    """Thread-safe. Children start at once and are replaced when they end."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._limits = settings.compile
        self._nursery = Nursery(Start(engine.name, engine.vocabulary, settings.masks.budget_ms))
        self._queue = FairQueue(self._limits.queue)
        self._places = [_Place() for _ in range(self._limits.workers)]
        self._lock = threading.Lock()
        self._closing = False
        self.restarts = 0
        """Workers that ended and were not asked to."""
        self._bell, self._ring = Pipe(duplex=False)
        self._loaders = ThreadPoolExecutor(self._limits.workers, "grammar-load", initializer=step_back)
        self._thread = threading.Thread(target=self._run, name="grammar-compile", daemon=True)
        self._thread.start()

    def submit(self, spec: GrammarSpec, tenant: str, lane: Lane = Lane.REQUEST) -> Job:
        """Queue a constraint.

        Raises:
            GrammarError: the queue or the tenant's part of it is full, or the pool is closed.
        """
        job = Job(spec, tenant, lane)
        self.enqueue(job)
        return job

    def enqueue(self, job: Job) -> None:
        """As `submit`, for a job that was made before and may have been abandoned since."""
        with self._lock:
            if self._closing:
                raise GrammarError(ErrorCode.UNAVAILABLE, "the server is shutting down")
            if not job.abandoned:
                self._queue.push(job)
        if job.abandoned:
            job.done.cancel()
        self._ring.send_bytes(b"!")

    def abandon(self, job: Job) -> None:
        """Nobody waits for it any more: at once cancelled where it waits, after a moment's grace where it runs."""
        with self._lock:
            job.abandoned = True
            waiting = self._queue.remove(job)
        if waiting:
            job.done.cancel()

    def rejoin(self, job: Job) -> None:
        """Somebody waits for it again."""
        with self._lock:
            job.abandoned = False

    @property
    def waiting(self) -> int:
        """Jobs that no worker has yet."""
        with self._lock:
            return len(self._queue)

    @property
    def pids(self) -> list[int]:
        """Of the workers that can take a job or have one."""
        return [child.pid for place in self._places if (child := place.child) and place.ready]

    def close(self) -> None:
        """End the workers. Jobs that are not done fail as retryable."""
        with self._lock:
            closed, self._closing = self._closing, True
        if not closed:
            self._ring.send_bytes(b"!")
            self._thread.join()
            self._loaders.shutdown()

    def _run(self) -> None:
        while not self._closing:
            try:
                self._turn()
            except Exception:
                logger.exception("The compile pool goes on after a fault of its own")
        for place in self._places:
            if place.child:
                place.child.end()
        with self._lock:
            jobs = [*self._queue, *(place.job for place in self._places if place.job)]
        for job in jobs:
            job.fail(GrammarError(ErrorCode.UNAVAILABLE, "the server is shutting down"))
        self._nursery.close()

    def _turn(self) -> None:
        now = monotonic()
        for place in self._places:
            if place.child is None and place.since <= now:
                self._start(place)
            elif place.child and place.ready and place.job is None:
                self._assign(place)
        heard = wait([self._bell, *(place.child.connection for place in self._places if place.child)], self._patience())
        while self._bell.poll():
            self._bell.recv_bytes()
        for place in self._places:
            if place.child and place.child.connection in heard:
                self._hear(place)
            self._enforce(place)
        # What waits longer would only be answered when its client has given up.
        self._turn_away("too many constraints wait to be compiled", monotonic() - self._longest_wait)

    @property
    def _longest_wait(self) -> float:
        turns = QUEUE_DEADLINES * self._limits.deadline_s
        return turns if any(place.ready for place in self._places) else max(turns, START_WAIT_S)

    def _patience(self) -> float | None:
        """Seconds to the next thing that happens without anybody telling."""
        now = monotonic()
        return min(self._alarms(now), default=None)

    def _alarms(self, now: float) -> Iterator[float]:
        for place in self._places:
            if place.child is None:
                yield max(0.0, place.since - now)
            elif place.job:
                yield max(0.0, min(WEIGHING_S, place.since + self._limits.deadline_s - now))
            elif not place.ready:
                yield max(0.0, place.since + START_LIMIT_S - now)
        with self._lock:
            oldest = min((job.queued_at for job in self._queue), default=None)
            idle = oldest is not None and any(place.ready and place.job is None for place in self._places)
        if oldest is not None:
            yield 0.0 if idle else max(0.0, oldest + self._longest_wait - now)

    def _start(self, place: _Place) -> None:
        place.since = place.born = monotonic()
        try:
            place.child = self._nursery.start()
        except OSError as error:
            logger.error("No compile worker could be started: %s", error)  # noqa: TRY400 - no trace is needed
            self._back_off(place)

    def _assign(self, place: _Place) -> None:
        assert place.child  # noqa: S101
        with self._lock:
            job = self._queue.pop()
        if job is None:
            return
        place.job, place.taken, place.since = job, False, monotonic()
        place.base_bytes = place.child.resident
        try:
            place.child.connection.send(job.spec)
        except OSError:
            self._lost(place)

    def _hear(self, place: _Place) -> None:
        assert place.child  # noqa: S101
        try:
            message = place.child.connection.recv_bytes()
            artefact = place.child.connection.recv_bytes() if message == ARTEFACT_FOLLOWS else None
            if message == READY and not place.ready:
                place.child.meet()
        except (EOFError, OSError, ValueError, RuntimeError):
            self._lost(place)
            return
        status = read_ended(message if artefact is None else artefact)
        if status is not None:
            self._lost(place, status)
            return
        if place.job is None:
            self._welcome(place, message)
            return
        if message == TAKEN:
            place.taken = True
            return
        seconds = monotonic() - place.since
        job, place.failures = self._take(place), 0
        job.seconds = seconds
        if artefact is None:
            job.fail(read_failure(message))
        else:
            job.artefact = artefact
            self._loaders.submit(_load, self._engine, job)
        if place.child.resident - place.idle_bytes > self._limits.memory_mb * _MIB / 2:
            self._end(place)  # a worker must not grow from job to job

    def _welcome(self, place: _Place, message: bytes) -> None:
        assert place.child  # noqa: S101
        place.ready, place.idle_bytes = message == READY, place.child.resident
        if not place.ready:
            logger.error("A compile worker could not start: %s", message.decode(errors="replace"))
            self._turn_away("no compile worker can be started")

    def _enforce(self, place: _Place) -> None:
        if place.child is None:
            return
        taken = monotonic() - place.since
        if place.job is None:
            if not place.ready and taken > START_LIMIT_S:
                self._nursery.dismiss()
                self._lost(place)
            return
        budget = None
        if taken > self._limits.deadline_s:
            budget = f"compile.deadline_s is {self._limits.deadline_s:g}", "it takes too long to compile"
        elif place.child.resident - place.base_bytes > self._limits.memory_mb * _MIB:
            budget = f"compile.memory_mb is {self._limits.memory_mb}", "it takes too much memory to compile"
        elif place.job.abandoned and taken > GRACE_S:
            self._take(place).done.cancel()
            self._end(place)
        if budget:
            hint, reason = budget
            job = self._take(place)
            job.seconds = taken
            self._end(place)
            job.fail(too_costly(job.spec, reason, f"The setting {hint}."))

    def _lost(self, place: _Place, status: int | None = None) -> None:
        """A worker ended, or never got ready, without our doing; its exit status where that is known."""
        job, told = place.job, "" if status is None else f" (exit status {status})"
        self._end(place)
        self.restarts += 1
        if job is None or not place.taken:
            self._back_off(place)
        else:
            place.since = monotonic() + CRASH_PAUSE_S
        if job is None:
            logger.warning("A compile worker ended%s and is replaced", told)
            return
        place.job = None
        job.lost += place.taken
        logger.warning("Grammar %s: its compile worker ended%s", job.spec.digest[:16], told)
        with self._lock:
            again = job.lost < LOSSES and not job.abandoned
            self._queue.put_back(job) if again else self._queue.finished(job)
        if not again:
            job.fail(_KILLED if status in (None, -signal.SIGKILL) else _CRASHED)

    def _end(self, place: _Place) -> None:
        assert place.child  # noqa: S101
        place.child.end()
        place.child, place.ready, place.since = None, False, 0.0

    def _back_off(self, place: _Place) -> None:
        if monotonic() - place.born > LIVED_S:
            place.failures = 0
        place.since = monotonic() + BACK_OFF_S[min(place.failures, len(BACK_OFF_S) - 1)]
        place.failures += 1

    def _take(self, place: _Place) -> Job:
        job, place.job = place.job, None
        assert job  # noqa: S101
        with self._lock:
            self._queue.finished(job)
        return job

    def _turn_away(self, reason: str, since: float = math.inf) -> None:
        """Fail jobs that were queued before `since` as retryable."""
        with self._lock:
            jobs = [job for job in self._queue if job.queued_at < since]
            for job in jobs:
                self._queue.remove(job)
        for job in jobs:
            job.fail(GrammarError(ErrorCode.UNAVAILABLE, reason, hint="Try again later."))


def _load(engine: Engine, job: Job) -> None:
    try:
        grammar = engine.load(job.artefact)
    except BaseException as error:  # noqa: BLE001 - whoever waits is told; a library in Rust panics past Exception
        job.fail(error)
    else:
        job.succeed(grammar)
