"""Compiled grammars in memory: least recently used out first, bounded in bytes."""

from __future__ import annotations

import threading
from typing import Final

from cachetools import LRUCache

from vllm_grammar_backend.engines.base import CompiledGrammar
from vllm_grammar_backend.grammar import GrammarKey

ENTRY_FLOOR: Final = 4096
"""Bytes accounted at least for one entry: key, record and Python objects around the library's own memory."""


class GrammarCache:
    """Thread-safe. Accounted bytes never exceed the bound; a grammar larger than it is simply not kept."""

    def __init__(self, max_bytes: int) -> None:
        self._lock = threading.Lock()
        self._entries: LRUCache[GrammarKey, CompiledGrammar] = LRUCache(max_bytes, getsizeof=_accounted)

    def get(self, key: GrammarKey) -> CompiledGrammar | None:
        with self._lock:
            return self._entries.get(key)

    def put(self, key: GrammarKey, grammar: CompiledGrammar) -> bool:
        """Keep `grammar`, evicting as needed. False if it alone is larger than the bound."""
        if _accounted(grammar) > self._entries.maxsize:
            return False
        with self._lock:
            self._entries[key] = grammar
        return True

    @property
    def bytes(self) -> int:
        """Accounted bytes now."""
        return int(self._entries.currsize)

    def __len__(self) -> int:
        return len(self._entries)


def _accounted(grammar: CompiledGrammar) -> int:
    return max(grammar.nbytes, ENTRY_FLOOR)
