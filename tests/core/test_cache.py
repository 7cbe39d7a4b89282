"""Accounted bytes never exceed the budget; churn by one tenant leaves the others' grammars alone."""

from __future__ import annotations

import gc
import threading
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from vllm_grammar_backend.cache.memory import ENTRY_FLOOR, GrammarCache
from vllm_grammar_backend.grammar import GrammarKey

MIB = 1024 * 1024
TENANTS = st.sampled_from("abc")


class Sized:
    """A compiled grammar as the cache sees it."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


def grammar(nbytes: int = MIB) -> Any:
    return Sized(nbytes)


def key(name: object) -> GrammarKey:
    return GrammarKey(str(name), "guidance", "1", "v")


class CacheMachine(RuleBasedStateMachine):
    """Puts, gets and the passing of time against a plain model of what may still be there."""

    BUDGET = 10 * MIB
    TTL_S = 100.0

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.cache = GrammarCache(self.BUDGET, tenant_share=0.5, ttl_s=self.TTL_S, clock=lambda: self.now)
        self.put_in: dict[str, Sized] = {}
        self.used: dict[str, float] = {}
        self.pinned: set[str] = set()

    @rule(name=st.integers(0, 12), tenant=TENANTS, nbytes=st.integers(0, 6 * MIB), pinned=st.booleans())
    def put(self, name: int, tenant: str, nbytes: int, pinned: bool) -> None:
        made = grammar(nbytes)
        own = f"{tenant}{name}"
        pinned = pinned and (own in self.pinned or len(self.pinned) < 2)
        kept = self.cache.put(key(own), made, tenant, pinned=pinned)
        self.put_in.pop(own, None)
        self.pinned.discard(own)
        if kept:
            self.put_in[own], self.used[own] = made, self.now
            if pinned:
                self.pinned.add(own)
            assert self.cache.get(key(own)) is made

    @rule(name=st.integers(0, 12), tenant=TENANTS)
    def get(self, name: int, tenant: str) -> None:
        own = f"{tenant}{name}"
        found: Any = self.cache.get(key(own))
        if found is not None:
            assert found is self.put_in[own]
            assert own in self.pinned or self.now - self.used[own] < self.TTL_S
            self.used[own] = self.now

    @rule(seconds=st.floats(0, 60))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def within_the_budget(self) -> None:
        assert 0 <= self.cache.bytes <= self.BUDGET

    @invariant()
    def pinned_ones_stay(self) -> None:
        found: list[Any] = [self.cache.get(key(name)) for name in self.pinned]
        assert found == [self.put_in[name] for name in self.pinned]


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCacheMachine = CacheMachine.TestCase


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 200_000)), max_size=60), st.integers(0, 300_000))
def test_what_fits_alone_is_kept(puts: list[tuple[int, int]], bound: int) -> None:
    cache = GrammarCache(bound)
    for name, nbytes in puts:
        kept = cache.put(key(name), grammar(nbytes))
        assert kept == (max(nbytes, ENTRY_FLOOR) <= bound)
        assert cache.bytes <= bound
        assert not kept or cache.get(key(name)) is not None


@given(st.integers(1, 4), st.lists(st.integers(1, 3 * MIB), min_size=1, max_size=60))
def test_churn_leaves_others_alone(others: int, churn: list[int]) -> None:
    cache = GrammarCache(10 * MIB, tenant_share=0.5)
    for name in range(others):
        assert cache.put(key(f"quiet{name}"), grammar(), "quiet")
    for number, nbytes in enumerate(churn):
        assert cache.put(key(f"busy{number}"), grammar(nbytes), "busy")
    assert all(cache.get(key(f"quiet{name}")) for name in range(others))


def test_who_is_alone_has_everything_until_others_come() -> None:
    cache = GrammarCache(10 * MIB, tenant_share=0.5)
    for name in range(10):
        assert cache.put(key(f"a{name}"), grammar(), "a")
    assert len(cache) == 10
    assert cache.put(key("b"), grammar(4 * MIB), "b")
    assert cache.put(key("c"), grammar(), "c")
    assert [name for name in range(10) if cache.get(key(f"a{name}"))] == [5, 6, 7, 8, 9]
    assert cache.evictions == 5


def test_least_recently_used_goes_first() -> None:
    cache = GrammarCache(3 * MIB)
    for name in "abc":
        cache.put(key(name), grammar())
    assert cache.get(key("a"))
    cache.put(key("d"), grammar())
    assert [bool(cache.get(key(name))) for name in "abcd"] == [True, False, True, True]


def test_what_requests_still_hold_is_counted() -> None:
    cache = GrammarCache(MIB)
    held = grammar()
    cache.put(key("a"), held)
    cache.put(key("b"), grammar())
    assert (cache.bytes, cache.live_bytes) == (MIB, 2 * MIB)
    del held
    gc.collect()
    assert cache.live_bytes == MIB


def test_sizes_can_be_asked_for_while_grammars_come() -> None:
    cache, kept, asked, stop = GrammarCache(4 * MIB), [grammar(1) for _ in range(2000)], 0, threading.Event()

    def come() -> None:
        while not stop.is_set():
            kept.append(grammar(1))
            cache.put(key("new"), kept[-1])

    for one in kept:
        cache.put(key("new"), one)
    thread = threading.Thread(target=come)
    thread.start()
    try:
        while asked < 200:
            asked += cache.live_bytes > 0
    finally:
        stop.set()
        thread.join()


def test_what_does_not_fit_beside_pinned_ones_is_not_kept() -> None:
    cache = GrammarCache(3 * MIB)
    assert cache.put(key("fixed"), grammar(2 * MIB), pinned=True)
    assert not cache.put(key("large"), grammar(2 * MIB))
    assert cache.put(key("small"), grammar())
    assert cache.get(key("fixed"))
