"""The child: one backend, one vocabulary, one job after the other, and an end when its parent's pipe closes.

Started by `compile/child.py` as `python -m vllm_grammar_backend.compile.worker PIPE START`: two inherited descriptors.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vllm_grammar_backend import engines
from vllm_grammar_backend.compile import wire
from vllm_grammar_backend.compile.job import build
from vllm_grammar_backend.engines.base import Engine
from vllm_grammar_backend.grammar import GrammarSpec


def main() -> None:
    pipe, start_file = (int(argument) for argument in sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which then closes the pipe
    connection: Connection[Any, Any] = Connection(pipe)
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        try:
            start = _read_start(start_file)
            engine = engines.load(start.backend, start.vocabulary)
        except Exception as error:  # noqa: BLE001 - no schema is here yet, so the parent may log its text
            connection.send_bytes(f"{type(error).__name__}: {error}".encode())
            return
        _step_back()
        connection.send_bytes(wire.READY)
        while True:
            spec = connection.recv()
            connection.send_bytes(wire.TAKEN)
            for part in work(spec, engine, start.mask_budget_ms):
                connection.send_bytes(part)


def work(spec: GrammarSpec, engine: Engine, mask_budget_ms: float) -> tuple[bytes, ...]:
    """The parts of the answer."""
    try:
        return wire.ARTEFACT_FOLLOWS, build(spec, engine, mask_budget_ms).artefact()
    except Exception as error:  # noqa: BLE001 - the parent is told
        return (wire.failure(error),)


def _read_start(descriptor: int) -> wire.Start:
    # The offset of an inherited descriptor is shared with its parent and its other children.
    start = pickle.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0))  # noqa: S301 - the parent's
    os.close(descriptor)
    assert isinstance(start, wire.Start)  # noqa: S101
    return start


def _step_back() -> None:
    """Give way from here on, and be the first that the kernel takes when memory runs out."""
    wire.step_back()
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _end_with_parent(pipe: int) -> None:
    """A compile hears nothing for as long as it takes, so a thread listens for the other end's closing."""
    poller = select.poll()
    poller.register(pipe, 0)  # only what is always reported: the other end is closed
    poller.poll()
    os._exit(0)


if __name__ == "__main__":
    main()
