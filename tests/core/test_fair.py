"""Whose job is next, and who may still queue one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_grammar_backend.compile.fair import FairQueue, Job, Lane
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import GrammarKind, GrammarSpec


def job(tenant: str, lane: Lane = Lane.REQUEST) -> Job:
    return Job(GrammarSpec(GrammarKind.REGEX, "a"), tenant, lane)


@given(st.integers(0, 8), st.integers(1, 4))
def test_one_cold_schema_waits_for_running_jobs_only(served: int, workers: int) -> None:
    queue = FairQueue(10_000)
    for _ in range(500):
        queue.push(job("busy"))
    running = []
    for _ in range(served + workers):
        running.append(queue.pop())
        if len(running) > workers:
            queue.finished(running.pop(0))  # type: ignore[arg-type]
    one = job("quiet")
    queue.push(one)
    assert queue.pop() is one


def test_tenants_take_turns() -> None:
    queue = FairQueue(100)
    for tenant in "aaabbc":
        queue.push(job(tenant))
    order = ""
    while found := queue.pop():
        order += found.tenant
        queue.finished(found)
    assert order == "abcaba"


def test_a_tenant_may_fill_a_quarter() -> None:
    queue = FairQueue(8)
    queue.push(job("a"))
    queue.push(job("a", Lane.WARM_UP))
    with pytest.raises(GrammarError) as caught:
        queue.push(job("a"))
    assert (caught.value.code, caught.value.http_status) == (ErrorCode.OVER_QUOTA, 429)
    for tenant in "bbccdd":
        queue.push(job(tenant))
    with pytest.raises(GrammarError) as caught:
        queue.push(job("e"))
    assert (caught.value.code, caught.value.http_status) == (ErrorCode.UNAVAILABLE, 503)
    assert len(queue) == 8


def test_warm_ups_have_a_share_of_their_own() -> None:
    queue = FairQueue(100)
    for _ in range(6):
        queue.push(job("a"))
        queue.push(job("operator", Lane.WARM_UP))
    lanes = [found.lane for _ in range(8) if (found := queue.pop())]
    assert lanes.count(Lane.WARM_UP) == 2
    lanes = [found.lane for _ in range(9) if (found := queue.pop())]
    assert lanes.count(Lane.WARM_UP) == 4


def test_a_job_that_lost_its_worker_is_next() -> None:
    queue = FairQueue(100)
    jobs = [job("a"), job("a"), job("b")]
    for waiting in jobs:
        queue.push(waiting)
    first = queue.pop()
    assert first is jobs[0]
    queue.put_back(first)
    assert queue.pop() is first


def test_what_is_removed_is_not_served() -> None:
    queue = FairQueue(100)
    kept, dropped = job("a"), job("a")
    queue.push(dropped)
    queue.push(kept)
    assert queue.remove(dropped)
    assert not queue.remove(dropped)
    assert queue.pop() is kept
    assert queue.pop() is None
