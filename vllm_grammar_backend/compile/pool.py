"""Where jobs run: off every event loop and off the engine's threads."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from vllm_grammar_backend.compile.job import build
from vllm_grammar_backend.engines.base import CompiledGrammar, Engine
from vllm_grammar_backend.grammar import GrammarSpec


class ThreadPool:
    """Runs jobs on threads of this process. The libraries release the GIL while they compile."""

    def __init__(self, engine: Engine, workers: int) -> None:
        self._engine = engine
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="grammar-compile")

    def submit(self, spec: GrammarSpec) -> Future[CompiledGrammar]:
        """Start building. The future fails with GrammarError for a verdict, with anything else for a fault."""
        return self._executor.submit(build, spec, self._engine)

    def close(self) -> None:
        """Drop what has not started; what runs is left to finish by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)
