"""A worker process as its parent sees it: started, talked to, weighed, killed."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Final

from vllm_grammar_backend.compile.wire import Start

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Nursery:
    """Starts children. What each needs, a vocabulary above all, is written once to a file that has no name."""

    def __init__(self, start: Start) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as this object
        pickle.dump(start, self._file)
        self._file.flush()

    def start(self) -> Child:
        """Returns at once; the child says `READY` when it can take a job. Raises OSError."""
        ours, theirs = Pipe()
        with theirs:
            pipe, start = theirs.fileno(), self._file.fileno()
            # -P: a file in the working directory is no module of ours. Whatever a library prints may quote a schema.
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-m", "vllm_grammar_backend.compile.worker", str(pipe), str(start)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(pipe, start),
            )
        return Child(process, ours)

    def close(self) -> None:
        self._file.close()


class Child:
    """One worker process."""

    def __init__(self, process: subprocess.Popen[bytes], connection: Connection[Any, Any]) -> None:
        self._process = process
        self.connection = connection
        """Parts of answers come from here; closed at the other end when the child has ended."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def resident(self) -> int:
        """Resident memory in bytes, 0 where there is no such process any more."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE
        except (OSError, IndexError):
            return 0

    def end(self) -> int:
        """Kill it if it lives, wait for the kernel to take its memory back, and return its exit status."""
        self._process.kill()
        self.connection.close()
        return self._process.wait()
