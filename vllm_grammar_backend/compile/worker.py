"""The worker: forked from `compile/nurse.py`, one job after the other, and an end when its parent's pipe closes."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

from vllm_grammar_backend.compile import wire
from vllm_grammar_backend.compile.job import build
from vllm_grammar_backend.engines.base import Engine
from vllm_grammar_backend.grammar import GrammarSpec


def main(connection: Connection[Any, Any], engine: Engine, mask_budget_ms: float) -> None:
    threading.Thread(target=_end_with_parent, args=(connection.fileno(),), daemon=True).start()
    wire.name_process("grammar-worker")
    _step_back()
    with contextlib.suppress(EOFError, OSError):
        _introduce(connection)
        while True:
            spec = connection.recv()
            connection.send_bytes(wire.TAKEN)
            for part in work(spec, engine, mask_budget_ms):
                connection.send_bytes(part)


def work(spec: GrammarSpec, engine: Engine, mask_budget_ms: float) -> tuple[bytes, ...]:
    """The parts of the answer."""
    try:
        return wire.ARTEFACT_FOLLOWS, build(spec, engine, mask_budget_ms).artefact()
    except Exception as error:  # noqa: BLE001 - the parent is told
        return (wire.failure(error),)


def _introduce(connection: Connection[Any, Any]) -> None:
    """Give the parent a handle to this process, since it is not the parent that can wait for it."""
    connection.send_bytes(wire.READY)
    connection.send_bytes(str(os.getpid()).encode())
    handle = os.pidfd_open(os.getpid())
    send_handle(connection, handle, None)
    os.close(handle)


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
