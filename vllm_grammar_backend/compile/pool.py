"""Where jobs run: off every event loop and off the engine's threads."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from vllm_grammar_backend.compile.job import build
from vllm_grammar_backend.engines.base import CompiledGrammar, Engine
from vllm_grammar_backend.grammar import GrammarSpec

NICENESS: Final = 5
"""Of each thread: Linux schedules them one by one. Compiling gives way to decoding and to the API server, but is not
starved where those take all there is."""


class ThreadPool:
    """Runs jobs on threads of this process. The libraries release the GIL while they compile."""

    def __init__(self, engine: Engine, workers: int) -> None:
        self._engine = engine
        self._executor = ThreadPoolExecutor(workers, "grammar-compile", initializer=_step_back)

    def submit(self, spec: GrammarSpec) -> Future[CompiledGrammar]:
        """Start building. The future fails with GrammarError for a verdict, with anything else for a fault."""
        return self._executor.submit(build, spec, self._engine)

    def close(self) -> None:
        """Drop what has not started; what runs is left to finish by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _step_back() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
