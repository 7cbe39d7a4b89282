"""Compiled grammars in memory: least recently used out first, bounded in bytes, in all and per tenant."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from time import monotonic
from typing import Final

from cachetools import Cache

from vllm_grammar_backend.engines.base import CompiledGrammar
from vllm_grammar_backend.grammar import GrammarKey

ENTRY_FLOOR: Final = 4096
"""Bytes accounted at least for one entry: key, record and Python objects around the library's own memory."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of one grammar that is held."""

    digest: str
    tenant: str
    """Who asked for it first."""
    nbytes: int
    compile_ms: float
    """0 where it came from the store."""
    hits: int
    idle_s: float
    """Seconds since its last use."""
    pinned: bool


@dataclass(slots=True)
class _Entry:
    grammar: CompiledGrammar
    tenant: str
    pinned: bool
    nbytes: int
    compile_ms: float
    hits: int = 0


class _Entries(Cache[GrammarKey, _Entry]):
    """Sizes and the bound are the library's; the order is ours, since pinned entries never go."""

    def __init__(self, max_bytes: int, tenant_bytes: int) -> None:
        super().__init__(max_bytes, getsizeof=lambda entry: entry.nbytes)
        self.tenant_bytes = tenant_bytes
        self.used: OrderedDict[GrammarKey, float] = OrderedDict()
        """When each was used last, longest ago first."""
        self.held: Counter[str] = Counter()
        """Accounted bytes of each tenant, pinned ones left out."""

    def __setitem__(self, key: GrammarKey, entry: _Entry) -> None:
        super().__setitem__(key, entry)
        self.used[key] = 0.0
        if not entry.pinned:
            self.held[entry.tenant] += entry.nbytes

    def __delitem__(self, key: GrammarKey) -> None:
        entry = self[key]
        super().__delitem__(key)
        del self.used[key]
        if not entry.pinned:
            self.held[entry.tenant] -= entry.nbytes
            if not self.held[entry.tenant]:
                del self.held[entry.tenant]

    def evictable(self, tenants: Collection[str] | None = None) -> Iterator[GrammarKey]:
        """Keys by last use, longest ago first: all that are not pinned, or those of some tenants."""
        for key in self.used:
            entry = self[key]
            if not entry.pinned and (tenants is None or entry.tenant in tenants):
                yield key

    def popitem(self) -> tuple[GrammarKey, _Entry]:
        """Whoever holds more than its share gives way first."""
        over = {tenant for tenant, held in self.held.items() if held > self.tenant_bytes}
        key = next(self.evictable(over or None))
        return key, self.pop(key)


class GrammarCache:
    """Thread-safe. Accounted bytes never exceed the bound; what cannot be kept within it is not kept."""

    def __init__(
        self,
        max_bytes: int,
        *,
        tenant_share: float = 1.0,
        ttl_s: float | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """
        Args:
            max_bytes: accounted bytes of all entries.
            tenant_share: of them, what one tenant may take from others; past it, it has what nobody else uses.
            ttl_s: an entry goes so many seconds after its last use, if not before.
            clock: seconds.
        """
        self._lock = threading.Lock()
        self._entries = _Entries(max_bytes, int(max_bytes * tenant_share))
        self._ttl_s = ttl_s
        self._clock = clock
        self._alive: weakref.WeakSet[CompiledGrammar] = weakref.WeakSet()
        self.evictions = 0

    def get(self, key: GrammarKey) -> CompiledGrammar | None:
        with self._lock:
            self._expire()
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._touch(key)
            entry.hits += 1
            return entry.grammar

    def put(
        self,
        key: GrammarKey,
        grammar: CompiledGrammar,
        tenant: str = "",
        *,
        pinned: bool = False,
        compile_ms: float = 0.0,
    ) -> bool:
        """Keep `grammar`, evicting as needed. False where it does not fit beside what is pinned."""
        entry = _Entry(grammar, tenant, pinned, max(grammar.nbytes, ENTRY_FLOOR), compile_ms)
        entries = self._entries
        with self._lock:
            self._expire()
            entries.pop(key, None)
            held = entries.held.total()
            pins = int(entries.currsize) - held
            if entry.nbytes > entries.maxsize - pins:
                return False
            before = len(entries)
            if not pinned:
                others = held - entries.held[tenant]
                most = max(entries.tenant_bytes, int(entries.maxsize) - pins - others)
                self._shrink(tenant, max(0, most - entry.nbytes))
            entries[key] = entry
            self.evictions += before + 1 - len(entries)
            self._touch(key)
            self._alive.add(grammar)
        return True

    def pin(self, key: GrammarKey) -> None:
        """Keep what is held now for good."""
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self._entries[key] = replace(entry, pinned=True)
                self._touch(key)

    def entry(self, key: GrammarKey) -> Entry | None:
        """What is known of `key`; asking is no use."""
        with self._lock:
            self._expire()
            return self._told(key) if key in self._entries else None

    def entries(self) -> list[Entry]:
        """Longest unused first."""
        with self._lock:
            self._expire()
            return [self._told(key) for key in self._entries.used]

    def _told(self, key: GrammarKey) -> Entry:
        held, idle_s = self._entries[key], self._clock() - self._entries.used[key]
        return Entry(key.digest, held.tenant, held.nbytes, held.compile_ms, held.hits, idle_s, held.pinned)

    @property
    def bytes(self) -> int:
        """Accounted bytes now."""
        return int(self._entries.currsize)

    @property
    def live_bytes(self) -> int:
        """Accounted bytes of all grammars that were put here and are still somewhere: those that running requests
        hold after their eviction are among them.
        """
        with self._lock:
            alive = list(self._alive)
        return sum(max(grammar.nbytes, ENTRY_FLOOR) for grammar in alive)

    def __len__(self) -> int:
        return len(self._entries)

    def _shrink(self, tenant: str, most: int) -> None:
        victims = []
        excess = self._entries.held[tenant] - most
        for key in self._entries.evictable({tenant}):
            if excess <= 0:
                break
            victims.append(key)
            excess -= self._entries[key].nbytes
        for key in victims:
            del self._entries[key]

    def _touch(self, key: GrammarKey) -> None:
        self._entries.used[key] = self._clock()
        self._entries.used.move_to_end(key)

    def _expire(self) -> None:
        if self._ttl_s is None:
            return
        oldest = self._clock() - self._ttl_s
        while (key := next(self._entries.evictable(), None)) and self._entries.used[key] <= oldest:
            del self._entries[key]
            self.evictions += 1
