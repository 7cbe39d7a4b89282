"""Real worker processes: what is due comes back, what is not due is killed, and nobody else notices."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import pytest

from tests.workers import BOTH
from vllm_grammar_backend import engines
from vllm_grammar_backend.admission import admit
from vllm_grammar_backend.compile.child import Child, Nursery
from vllm_grammar_backend.compile.fair import Job
from vllm_grammar_backend.compile.pool import GRACE_S, WorkerPool
from vllm_grammar_backend.compile.wire import READY, Start, read_ended
from vllm_grammar_backend.engines.vocabulary import byte_vocabulary
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import GrammarKind, GrammarOptions, GrammarSpec
from vllm_grammar_backend.settings import Compile, Masks, Settings

TENANT = "t"
PATIENCE_S = 60.0
DEAR: Any = {"type": "string", "allOf": [{"pattern": f"a.*b{i}.*c"} for i in range(30)]}
"""41 s and 3.3 GB on guidance."""


def spec(schema: Any) -> GrammarSpec:
    return admit(GrammarKind.JSON, schema, GrammarOptions(), Settings().limits)


def make(backend: str = "guidance", **options: Any) -> WorkerPool:
    settings = Settings(compile=Compile(**{"workers": 1, "deadline_s": 30, **options}))
    return WorkerPool(engines.load(backend, byte_vocabulary()), settings)


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with closing(make()) as made:
        yield made


def until(condition: Callable[[], object]) -> None:
    """Wait for what no event tells of: another process's state."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def busy_pid(pool: WorkerPool, job: Job) -> int:
    """The worker that has `job`."""
    places = pool._places
    until(lambda: any(place.job is job and place.taken for place in places))
    return next(place.child.pid for place in places if place.job is job and place.child)


def gone(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    return True


def refusal(job: Job) -> GrammarError:
    error = job.done.exception(PATIENCE_S)
    assert isinstance(error, GrammarError), error
    return error


@pytest.mark.parametrize("backend", BOTH)
def test_a_worker_compiles_and_refuses(backend: str) -> None:
    with closing(make(backend)) as pool:
        good, bad = pool.submit(spec({"type": "boolean"}), TENANT), pool.submit(spec({"enum": []}), TENANT)
        grammar = good.done.result(PATIENCE_S)
        assert grammar.matcher(byte_vocabulary().eos_ids).accept(list(b"true"))
        assert refusal(bad).code is ErrorCode.UNSATISFIABLE
        pids = pool.pids
        assert [os.getpriority(os.PRIO_PROCESS, pid) for pid in pids] == [os.getpriority(os.PRIO_PROCESS, 0) + 5]
        assert not any(name in Path(f"/proc/{pids[0]}/maps").read_text() for name in ("vllm", "cuda"))
    assert gone(pids[0])


@pytest.mark.parametrize(("limit", "word"), [({"deadline_s": 1.0}, "deadline_s"), ({"memory_mb": 64}, "memory_mb")])
def test_what_costs_too_much_is_killed(limit: dict[str, Any], word: str) -> None:
    with closing(make(**limit)) as pool:
        until(lambda: pool.pids)
        job = pool.submit(spec(DEAR), TENANT)
        pid = busy_pid(pool, job)
        began = time.monotonic()
        found = refusal(job)
        assert time.monotonic() - began < 20
        assert (found.code, found.http_status) == (ErrorCode.TOO_COSTLY, 400)
        assert word in str(found)
        assert gone(pid)
        assert pool.submit(spec({"type": "null"}), TENANT).done.result(PATIENCE_S).nbytes
        assert pool.restarts == 0


def test_a_mask_past_its_budget_is_refused() -> None:
    settings = Settings(compile=Compile(workers=1), masks=Masks(budget_ms=1e-6))
    with closing(WorkerPool(engines.load("guidance", byte_vocabulary()), settings)) as pool:
        found = refusal(pool.submit(spec({"type": "null"}), TENANT))
        assert found.code is ErrorCode.TOO_COSTLY
        assert "masks.budget_ms" in str(found)


def test_an_idle_worker_that_is_killed_is_replaced(pool: WorkerPool) -> None:
    for _ in range(3):
        until(lambda: pool.pids)
        os.kill(pool.pids[0], signal.SIGKILL)
        assert pool.submit(spec({"type": "null"}), TENANT).done.result(PATIENCE_S).nbytes


def test_a_worker_killed_at_work_is_replaced_and_its_job_done_again(pool: WorkerPool) -> None:
    job = pool.submit(spec(DEAR), TENANT)
    first = busy_pid(pool, job)
    other = pool.submit(spec({"type": "null"}), "another")
    os.kill(first, signal.SIGKILL)
    until(lambda: pool.pids and pool.pids[0] != first)
    second = busy_pid(pool, job)
    os.kill(second, signal.SIGKILL)
    assert refusal(job).retryable
    assert other.done.result(PATIENCE_S).nbytes
    assert pool.restarts == 2


def nurse(pool: WorkerPool) -> int:
    """The process that workers are forked from."""
    found = pool._nursery._nurse
    assert found
    return found._process.pid


def test_workers_outlive_their_nurse_and_her_successor_has_others(pool: WorkerPool) -> None:
    until(lambda: pool.pids)
    worker, first = pool.pids[0], nurse(pool)
    os.kill(first, signal.SIGKILL)
    assert pool.submit(spec({"type": "null"}), TENANT).done.result(PATIENCE_S).nbytes
    assert (pool.pids, pool.restarts) == ([worker], 0)
    os.kill(worker, signal.SIGKILL)
    assert pool.submit(spec({"type": "boolean"}), TENANT).done.result(PATIENCE_S).nbytes
    assert nurse(pool) != first


def test_all_are_killed_at_once_and_nothing_is_lost() -> None:
    with closing(make(workers=2)) as pool:
        until(lambda: len(pool.pids) == 2)
        job = pool.submit(spec(DEAR), TENANT)
        busy_pid(pool, job)
        first = pool.pids
        for pid in (nurse(pool), *first):
            os.kill(pid, signal.SIGKILL)
        others = [pool.submit(spec({"const": number}), "another") for number in range(8)]
        assert all(other.done.result(PATIENCE_S).nbytes for other in others)
        busy_pid(pool, job)  # done again
        assert not set(pool.pids) & set(first)


def test_a_full_pipe_does_not_keep_the_nurse_from_her_other_children() -> None:
    nursery = Nursery(Start("guidance", byte_vocabulary(), 20.0))
    with closing(nursery):
        children, theirs = [nursery.start() for _ in range(2)], Pipe()
        found = nursery._nurse
        assert found
        with theirs[0], theirs[1]:
            found.fork(theirs[1])
            full = Child(theirs[0])
            for child in (full, *children):
                assert child.connection.recv_bytes() == READY
                child.meet()
            os.set_blocking(theirs[1].fileno(), False)
            with suppress(BlockingIOError):
                while True:
                    os.write(theirs[1].fileno(), bytes(4096))
            os.kill(full.pid, signal.SIGKILL)
            until(lambda: gone(full.pid))
            os.kill(children[0].pid, signal.SIGKILL)
            assert children[0].connection.poll(PATIENCE_S)
            assert read_ended(children[0].connection.recv_bytes()) == -signal.SIGKILL
            for child in (full, *children):
                child.end()


def test_workers_that_die_idle_are_not_replaced_without_end(pool: WorkerPool) -> None:
    """The kernel ends them first where memory runs out, and a new one is there in no time."""
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        for pid in pool.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
    assert 2 <= pool.restarts <= 4


def test_a_worker_hears_of_its_own_parent_alone() -> None:
    """A pipe that another worker had inherited would stay open when its owner has ended."""
    with closing(make(workers=3)) as pool:
        until(lambda: len(pool.pids) == 3)
        for pid in pool.pids:
            open_files = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
            assert sum(file.startswith("socket:") for file in open_files) == 1


def test_a_job_that_crashes_its_workers_is_at_fault(pool: WorkerPool) -> None:
    job = pool.submit(spec(DEAR), TENANT)
    first = busy_pid(pool, job)
    os.kill(first, signal.SIGSEGV)
    until(lambda: pool.pids and pool.pids[0] != first)
    os.kill(busy_pid(pool, job), signal.SIGSEGV)
    assert refusal(job).code is ErrorCode.UNSUPPORTED_SCHEMA
    assert pool.submit(spec({"type": "null"}), TENANT).done.result(PATIENCE_S).nbytes


def test_what_nobody_waits_for_is_given_up(pool: WorkerPool) -> None:
    running = pool.submit(spec(DEAR), TENANT)
    pid = busy_pid(pool, running)
    waiting = pool.submit(spec({"type": "null"}), TENANT)
    pool.abandon(waiting)
    assert waiting.done.cancelled()
    pool.abandon(running)
    began = time.monotonic()
    until(lambda: gone(pid))
    assert time.monotonic() - began < GRACE_S + 5
    assert running.done.cancelled()
    assert pool.submit(spec({"type": "boolean"}), TENANT).done.result(PATIENCE_S).nbytes


def test_what_waits_too_long_is_told() -> None:
    with closing(make(deadline_s=1.0)) as pool:
        until(lambda: pool.pids)
        dear = [pool.submit(spec({**DEAR, "minLength": i}), TENANT) for i in range(6)]
        found = [refusal(job) for job in dear]
        assert found[0].code is ErrorCode.TOO_COSTLY
        assert found[-1].code is ErrorCode.UNAVAILABLE
        assert found[-1].retryable


def test_a_closed_pool_leaves_nobody_waiting(pool: WorkerPool) -> None:
    job = pool.submit(spec(DEAR), TENANT)
    pid = busy_pid(pool, job)
    pool.close()
    assert refusal(job).retryable
    assert gone(pid)
    with pytest.raises(GrammarError, match="shutting down"):
        pool.submit(spec({}), TENANT)


def test_workers_end_with_their_parent() -> None:
    """Killed, it cannot tell them; one of them is in the middle of a compile."""
    code = f"""
import time
from tests.core.test_pool import *
pool = make(workers=2)
job = pool.submit(spec(DEAR), TENANT)
busy_pid(pool, job)
until(lambda: len(pool.pids) == 2)
print(nurse(pool), *pool.pids, flush=True)
time.sleep({PATIENCE_S})
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 3
    until(lambda: all(gone(pid) for pid in pids))


def test_a_worker_that_cannot_start_is_no_endless_loop(caplog: pytest.LogCaptureFixture) -> None:
    engine = engines.load("guidance", byte_vocabulary())
    engine.name = "outlines"  # type: ignore[misc]
    with closing(WorkerPool(engine, Settings(compile=Compile(workers=1, deadline_s=3)))) as pool:
        assert refusal(pool.submit(spec({}), TENANT)).retryable
        assert pool.restarts < 5
    assert "could not start: StartupError" in caplog.text
