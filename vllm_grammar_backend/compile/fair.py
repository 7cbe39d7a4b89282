"""Jobs that wait: whose is next, and how many may wait."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from time import monotonic
from typing import Final

from vllm_grammar_backend.engines.base import CompiledGrammar
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import GrammarSpec

TENANT_SHARE: Final = 4
"""One tenant may fill a quarter of the queue."""
WARM_UP_TURN: Final = 4
"""Where both wait, every fourth job is a warm-up; the others are those of requests."""


def tenant_share(limit: int) -> int:
    """How many jobs of one tenant may wait in a queue of `limit`."""
    return max(1, limit // TENANT_SHARE)


class Lane(StrEnum):
    """Who waits for a job: a request, or nobody but the operator."""

    REQUEST = "request"
    WARM_UP = "warm_up"


@dataclass(eq=False, slots=True)
class Job:
    """One constraint on its way through the pool."""

    spec: GrammarSpec
    tenant: str
    lane: Lane = Lane.REQUEST
    done: Future[CompiledGrammar] = field(default_factory=Future)
    """Fails with GrammarError for a verdict or a reached budget, with anything else for a fault of ours."""
    queued_at: float = field(default_factory=monotonic)
    lost: int = 0
    """Workers that ended while they had it."""
    abandoned: bool = False
    seconds: float = 0.0
    """How long the worker had it that answered."""
    artefact: bytes = b""
    """What that worker made, where it made something."""

    def succeed(self, grammar: CompiledGrammar) -> None:
        with suppress(InvalidStateError):  # abandoned meanwhile
            self.done.set_result(grammar)

    def fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):
            self.done.set_exception(error)


class FairQueue:
    """Not thread-safe. Next is the tenant with the fewest jobs running, among equals the one served longest ago."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[Lane, OrderedDict[str, deque[Job]]] = {lane: OrderedDict() for lane in Lane}
        self._running: Counter[str] = Counter()
        self._turn = 0

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Job]:
        for tenants in self._waiting.values():
            for jobs in tenants.values():
                yield from jobs

    def push(self, job: Job) -> None:
        """Raises GrammarError where the queue is full, or the tenant's part of it."""
        if len(self) >= self._limit:
            raise GrammarError(
                ErrorCode.UNAVAILABLE, f"{self._limit} constraints wait to be compiled", hint="Try again later."
            )
        share = tenant_share(self._limit)
        if sum(len(tenants.get(job.tenant, ())) for tenants in self._waiting.values()) >= share:
            raise GrammarError(
                ErrorCode.OVER_QUOTA,
                f"{share} constraints of this tenant wait to be compiled",
                hint="Try again when some of them are done.",
            )
        self._waiting[job.lane].setdefault(job.tenant, deque()).append(job)

    def pop(self) -> Job | None:
        """The next job, which counts as running until `finished`."""
        requests, warm_ups = self._waiting[Lane.REQUEST], self._waiting[Lane.WARM_UP]
        self._turn = (self._turn + 1) % WARM_UP_TURN
        tenants = warm_ups if warm_ups and (self._turn == 0 or not requests) else requests
        if not tenants:
            return None
        tenant = min(tenants, key=lambda name: self._running[name])  # the first of equals
        jobs = tenants[tenant]
        job = jobs.popleft()
        tenants.move_to_end(tenant)
        if not jobs:
            del tenants[tenant]
        self._running[tenant] += 1
        return job

    def finished(self, job: Job) -> None:
        """A job that `pop` gave out runs no longer."""
        self._running[job.tenant] -= 1
        if not self._running[job.tenant]:
            del self._running[job.tenant]

    def put_back(self, job: Job) -> None:
        """A job that lost its worker goes before all others of its tenant."""
        self.finished(job)
        tenants = self._waiting[job.lane]
        tenants.setdefault(job.tenant, deque()).appendleft(job)
        tenants.move_to_end(job.tenant, last=False)

    def remove(self, job: Job) -> bool:
        """Take out a job that waits; False if it does not."""
        tenants = self._waiting[job.lane]
        jobs = tenants.get(job.tenant)
        if jobs is None or job not in jobs:
            return False
        jobs.remove(job)
        if not jobs:
            del tenants[job.tenant]
        return True
