"""A worker process as the pool sees it: begun, talked to, weighed, killed."""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any, Final

from vllm_grammar_backend.compile.wire import Start
from vllm_grammar_backend.settings import environment_without_threads

DEATH_MS: Final = 2000
"""After a SIGKILL; returning gigabytes takes the kernel tenths of a second."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Nursery:
    """Begins children. What each needs, a vocabulary above all, is written once to a file that has no name."""

    def __init__(self, start: Start) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as this object
        pickle.dump(start, self._file)
        self._file.flush()
        self._nurse: _Nurse | None = None

    def start(self) -> Child:
        """Returns at once; the child says `READY` when it can take a job. Raises OSError."""
        if self._nurse and self._nurse.has_ended:
            self.dismiss()
        self._nurse = self._nurse or _Nurse(self._file.fileno())
        ours, theirs = Pipe()
        with theirs:
            try:
                self._nurse.fork(theirs)
            except OSError:
                ours.close()
                raise
        return Child(ours)

    def dismiss(self) -> None:
        """End the nurse, who may hang; the next start has a new one. Children that have begun live on."""
        if self._nurse:
            self._nurse.end()
            self._nurse = None

    def close(self) -> None:
        self.dismiss()
        self._file.close()


class _Nurse:
    """The process that loads the library once and forks the others: `compile/nurse.py`."""

    def __init__(self, start_file: int) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            control = theirs.fileno()
            # -P: a file in the working directory is no module of ours. Whatever a library prints may quote a schema.
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-m", "vllm_grammar_backend.compile.nurse", str(control), str(start_file)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(control, start_file),
                env=environment_without_threads(),
            )

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def fork(self, pipe: Connection[Any, Any]) -> None:
        """Ask for one more worker, which is to talk through `pipe`. Raises OSError."""
        socket.send_fds(self._control, [b"!"], [pipe.fileno()])

    def end(self) -> None:
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(DEATH_MS / 1000)
        self._control.close()


class Child:
    """One worker process."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.connection = connection
        """Parts of answers come from here; `wire.ended` or the end of the file when the child has ended."""
        self.pid = 0
        """0 until it was met."""
        self._handle: int | None = None

    def meet(self) -> None:
        """Read what follows `READY`. Raises EOFError, OSError, ValueError or RuntimeError where that does not come."""
        self.pid = int(self.connection.recv_bytes())
        self._handle = recv_handle(self.connection)

    @property
    def resident(self) -> int:
        """Resident memory in bytes, 0 where there is no such process any more."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE
        except (OSError, IndexError):
            return 0

    def end(self) -> None:
        """Kill it if it lives, and wait for the kernel to take its memory back: a moment at most, since a process may
        hang in the kernel where no signal reaches it.
        """
        self.connection.close()
        if self._handle is None:
            return  # where it has yet to begin, it finds the pipe closed
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        death = select.poll()
        death.register(self._handle, select.POLLIN)
        death.poll(DEATH_MS)
        os.close(self._handle)
        self._handle = None
