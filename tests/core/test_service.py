"""One build per key, bounded memory, refusals remembered; with real engines over single bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import closing
from typing import Any

import pytest

from tests.workers import BOTH
from vllm_grammar_backend.admission import admit
from vllm_grammar_backend.cache.memory import GrammarCache
from vllm_grammar_backend.desk import Desk
from vllm_grammar_backend.engines.vocabulary import byte_vocabulary
from vllm_grammar_backend.errors import ErrorCode, GrammarError, StartupError
from vllm_grammar_backend.grammar import GrammarKind, GrammarOptions, GrammarSpec
from vllm_grammar_backend.service import Counts, GrammarService, Ready
from vllm_grammar_backend.settings import Cache, Compile, Settings
from vllm_grammar_backend.ticket import Ticket

VOCABULARY = byte_vocabulary()


def spec(schema: Any) -> GrammarSpec:
    return admit(GrammarKind.JSON, schema, GrammarOptions(), Settings().limits)


@pytest.fixture(scope="module", params=BOTH)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


Start = Callable[..., GrammarService]


@pytest.fixture
def start(backend: str) -> Iterator[Start]:
    """Starts services of one backend, and ends them."""
    started: list[GrammarService] = []

    def begin(**settings: Any) -> GrammarService:
        started.append(GrammarService.start(backend, VOCABULARY, Settings(**settings)))
        return started[-1]

    yield begin
    for service in started:
        service.close()


@pytest.fixture(scope="module")
def shared(backend: str) -> Iterator[GrammarService]:
    with closing(GrammarService.start(backend, VOCABULARY, Settings(compile=Compile(deadline_s=300)))) as started:
        yield started


@pytest.fixture
def service(shared: GrammarService) -> GrammarService:
    """Shared, since workers take seconds to start; its counts begin anew, and each test has specs of its own."""
    shared._counts = Counts()
    return shared


def count(service: GrammarService, name: str) -> int:
    return int(service.statistics()[name])


def test_a_hit_is_known_at_once(service: GrammarService) -> None:
    wanted = spec({"type": "boolean"})
    assert service.lookup(wanted) is None
    first = service.ensure(wanted).result(60)
    assert isinstance(first, Ready)
    assert service.lookup(wanted) == first
    assert service.ensure(wanted).done()
    assert count(service, "builds") == 1


def test_what_is_delivered_at_once_is_counted_as_a_hit(service: GrammarService) -> None:
    wanted = spec({"const": "delivered"})
    ready = service.deliver(wanted, lambda found: found, wait=True)
    assert isinstance(ready, Ready)
    assert [service.deliver(wanted, lambda found: found.key, wait=wait) for wait in (True, False)] == [ready.key] * 2
    assert (count(service, "builds"), count(service, "hits")) == (1, 2)


def test_a_refusal_is_a_value_and_is_remembered(service: GrammarService) -> None:
    wanted = spec({"type": "object", "properties": {"a": {"$ref": "https://example.com/x"}}})
    outcome = service.ensure(wanted).result(60)
    assert isinstance(outcome, GrammarError)
    assert outcome.pointer == "/properties/a/$ref"
    assert service.lookup(wanted) is outcome
    assert (count(service, "builds"), count(service, "refusals")) == (1, 1)


def test_many_who_ask_at_once_share_one_build(service: GrammarService) -> None:
    wanted = spec({"enum": [f"value {i}" for i in range(3000)]})
    barrier = threading.Barrier(8)
    futures: list[Any] = []

    def ask() -> None:
        barrier.wait()
        futures.append(service.ensure(wanted))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait(futures, 120)
    outcomes = {id(future.result().compiled) for future in futures}
    assert len(outcomes) == 1
    assert count(service, "builds") == 1


def test_a_hit_does_not_wait_for_a_miss(service: GrammarService) -> None:
    """With all workers busy on dear schemas, a known one answers although nothing else can be built."""
    known = spec({"type": "null"})
    service.ensure(known).result(60)
    dear = [service.ensure(spec({"enum": [f"{i}e{j}" for j in range(20_000)]})) for i in range(2)]
    behind = service.ensure(spec({"const": "behind"}))
    assert service.ensure(known).done()
    assert isinstance(service.lookup(known), Ready)
    assert not behind.done(), "nothing was in the way, so nothing was shown"
    wait([*dear, behind], 300)


def test_nothing_is_kept_past_the_byte_bound(start: Start) -> None:
    service = start(cache=Cache(bytes=3 * 64 * 1024))
    for i in range(40):
        outcome = service.ensure(spec({"type": "object", "properties": {f"p{i}": {"type": "integer"}}})).result(60)
        assert isinstance(outcome, Ready)
        assert count(service, "cache_bytes") <= 3 * 64 * 1024
    assert 0 < count(service, "cache_entries") < 40


def test_what_is_larger_than_the_whole_cache_is_refused_by_name(start: Start) -> None:
    service = start(cache=Cache(bytes=100))
    outcome = service.ensure(spec({"type": "boolean"})).result(60)
    assert isinstance(outcome, GrammarError)
    assert outcome.code is ErrorCode.TOO_LARGE
    assert "cache.bytes" in str(outcome)


def test_a_fault_of_ours_leaves_nobody_waiting(service: GrammarService, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bool:
        raise MemoryError

    monkeypatch.setattr(GrammarCache, "put", broken)
    for _ in range(2):
        outcome = service.ensure(spec({"const": "never kept"})).result(60)
        assert isinstance(outcome, GrammarError)
        assert outcome.retryable


def test_delivery_at_once_later_and_in_place(service: GrammarService) -> None:
    good, bad = spec({"const": "good"}), spec({"enum": [], "minLength": 1})
    later = service.deliver(good, lambda ready: ready.key.digest, wait=False)
    assert isinstance(later, Future)
    assert later.result(60) == good.digest
    assert service.deliver(good, lambda ready: ready.key.digest, wait=False) == good.digest
    in_place = service.deliver(spec({"const": "in place"}), lambda ready: ready.key.backend, wait=True)
    assert in_place == service.engine.name
    refused = service.deliver(bad, lambda ready: ready.key.digest, wait=True)
    assert isinstance(refused, Future)
    assert isinstance(refused.exception(60), GrammarError)
    failing = service.deliver(spec({"const": "failing"}), lambda _: 1 // 0, wait=False)
    assert isinstance(failing, Future)
    assert isinstance(failing.exception(60), ZeroDivisionError)


def test_each_call_is_counted_once(service: GrammarService) -> None:
    good, bad = spec({"const": "counted"}), spec({"enum": [], "minLength": 2})
    for wanted in (good, good, bad, bad):
        service.ensure(wanted).result(60)
    service.lookup(good)
    names = ("builds", "hits", "joined", "refusals", "refused_again")
    assert [count(service, name) for name in names] == [2, 1, 0, 1, 1]


def test_a_closed_service_says_so(start: Start) -> None:
    service = start()
    service.close()
    outcome = service.ensure(spec({"type": "boolean"})).result(60)
    assert isinstance(outcome, GrammarError)
    assert outcome.code is ErrorCode.UNAVAILABLE


def test_the_engine_answers_the_front_end_with_data(service: GrammarService) -> None:
    desk = Desk(service)
    good, bad = spec({"const": "for the desk"}), spec({"enum": [], "minLength": 3})
    for waiter, found in (("1", "miss"), ("2", "hit")):
        assert desk.ensure({**Ticket(good), "waiter": waiter}).result(60) == {"found": found, "error": None}
    refused = desk.ensure({**Ticket(bad), "waiter": "3"}).result(60)
    assert GrammarError.from_data(refused["error"]).http_status == 400


def test_the_last_who_leaves_cancels(service: GrammarService) -> None:
    desk = Desk(service)
    wanted = spec({"const": "left"})
    slow = [spec({"enum": [f"{i}slow{j}" for j in range(20_000)]}) for i in range(2)]
    busy = [desk.ensure({**Ticket(each), "waiter": f"busy {i}"}) for i, each in enumerate(slow)]
    replies = [desk.ensure({**Ticket(wanted), "waiter": name}) for name in ("1", "2")]
    desk.release("1")
    desk.release("unknown")
    assert count(service, "abandoned") == 0
    desk.release("2")
    assert count(service, "abandoned") == 1
    assert all(GrammarError.from_data(reply.result(60)["error"]).retryable for reply in replies)
    assert [reply.result(60)["found"] for reply in replies] == ["miss", "join"]
    assert [reply.result(300)["error"] for reply in busy] == [None, None]
    assert isinstance(service.ensure(wanted).result(60), Ready)


def test_who_comes_back_finds_the_job_going_on(service: GrammarService) -> None:
    wanted = spec({"enum": [f"back{i}" for i in range(20_000)]})
    service.release(wanted, service.ensure(wanted))
    assert isinstance(service.ensure(wanted).result(300), Ready)
    assert count(service, "builds") <= 2


@pytest.mark.parametrize("name", ["auto", "outlines", "nope"])
def test_what_is_not_served_does_not_start(name: str) -> None:
    with pytest.raises(StartupError):
        GrammarService.start(name, VOCABULARY, Settings())
