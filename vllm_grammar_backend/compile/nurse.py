"""The process that workers are forked from: it loads the library and the vocabulary once, which takes seconds.

Started by `compile/child.py` as `python -m vllm_grammar_backend.compile.nurse CONTROL START`: two inherited
descriptors. It never sees a schema. Each message on CONTROL brings the pipe of one more worker.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import selectors
import signal
import socket
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from vllm_grammar_backend import engines
from vllm_grammar_backend.compile import wire, worker
from vllm_grammar_backend.engines.base import Engine
from vllm_grammar_backend.errors import StartupError

_THREADS: Final = Path("/proc/self/task")


def main() -> None:
    control_fd, start_file = (int(argument) for argument in sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which then closes the pipes
    wire.name_process("grammar-nurse")
    control = socket.socket(fileno=control_fd)
    try:
        start = _read_start(start_file)
        engine = engines.load(start.backend, start.vocabulary)
        if len(list(_THREADS.iterdir())) > 1:
            raise StartupError(f"the {start.backend} library starts threads, which do not survive a fork")
    except Exception as error:  # noqa: BLE001 - no schema is here, so the parent may log its text
        with contextlib.suppress(EOFError):
            pipe = _next_pipe(control)
            if pipe is not None:
                Connection(pipe).send_bytes(f"{type(error).__name__}: {error}".encode())
        return
    gc.collect()
    gc.freeze()  # what all workers share is neither visited nor copied by their collectors
    Nurse(control, engine, start.mask_budget_ms).run()


class Nurse:
    """Forks and buries until its parent closes `control`."""

    def __init__(self, control: socket.socket, engine: Engine, mask_budget_ms: float) -> None:
        self._control = control
        self._engine = engine
        self._mask_budget_ms = mask_budget_ms
        self._events = selectors.DefaultSelector()
        self._events.register(control, selectors.EVENT_READ)
        self._pipes: dict[int, tuple[int, Connection[Any, Any]]] = {}
        """By what `pidfd_open` gave: a living worker's process number and its pipe."""

    def run(self) -> None:
        while True:
            for key, _ in self._events.select():
                if key.fileobj is not self._control:
                    self._bury(key.fd)
                    continue
                try:
                    pipe = _next_pipe(self._control)
                except EOFError:
                    # A worker whose library hears nothing for long would not see that its own pipe is closed.
                    for handle in self._pipes:
                        with contextlib.suppress(ProcessLookupError):
                            signal.pidfd_send_signal(handle, signal.SIGKILL)
                    return
                if pipe is not None:
                    self._fork(Connection(pipe))

    def _fork(self, pipe: Connection[Any, Any]) -> None:
        try:
            pid = os.fork()
        except OSError:
            pipe.close()  # the parent sees that, and asks again in a while
            return
        if pid == 0:
            try:
                self._forget()
                worker.main(pipe, self._engine, self._mask_budget_ms)
            finally:
                os._exit(1)  # whatever ended it, nothing of the nurse's may run here
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            pipe.close()
            return
        self._pipes[handle] = pid, pipe
        self._events.register(handle, selectors.EVENT_READ)

    def _forget(self) -> None:
        """In a new worker: a pipe of another one that stays open here would hide the other one's end."""
        self._events.close()
        self._control.close()
        for handle, (_, pipe) in self._pipes.items():
            os.close(handle)
            pipe.close()

    def _bury(self, handle: int) -> None:
        self._events.unregister(handle)
        os.close(handle)
        pid, pipe = self._pipes.pop(handle)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        # The worker's last words may fill the pipe, and whoever is to read them may be reading another one's.
        os.set_blocking(pipe.fileno(), False)
        with pipe, contextlib.suppress(OSError):  # or the parent ended it itself
            pipe.send_bytes(wire.ended(status))


def _next_pipe(control: socket.socket) -> int | None:
    """The descriptor that the next message brings; None where this process may open no more.

    Raises:
        EOFError: the parent is gone.
    """
    message, pipes, _, _ = socket.recv_fds(control, 1, 1)
    if not message:
        raise EOFError
    return pipes[0] if pipes else None


def _read_start(descriptor: int) -> wire.Start:
    # The offset of an inherited descriptor is shared with its parent.
    start = pickle.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0))  # noqa: S301 - the parent's
    os.close(descriptor)
    assert isinstance(start, wire.Start)  # noqa: S101
    return start


if __name__ == "__main__":
    main()
