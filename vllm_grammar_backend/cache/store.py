"""Artefacts on disk: one file per compiled grammar, shared by the servers and ranks that have the directory.

A file is a line of JSON that says what it is, and the artefact. Whatever is not exactly what its name promises -
foreign, stale, cut short, with a bit flipped - is ignored, counted and replaced. Nothing in it is executed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from vllm_grammar_backend import __version__
from vllm_grammar_backend.grammar import GrammarKey

logger = logging.getLogger("vllm.grammar_backend")

FORMAT: Final = [1, __version__]
"""What this plugin would make of the same schema may change with its version."""
SUFFIX: Final = ".grammar"
HEADER_LIMIT: Final = 4096
SWEPT_TO: Final = 0.9
"""Past its bound, the store is swept to this share of it, so that not every write sweeps."""


@dataclass(slots=True)
class Claim:
    """The right to compile one grammar, until `release` or the end of the process."""

    path: Path | None = None
    """None where nothing can be locked: others compile it too, then."""
    descriptor: int = -1

    def release(self) -> None:
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            os.close(self.descriptor)
            self.path = None


class ArtefactStore:
    """A directory of artefacts, bounded in bytes. Never raises: without its disk a server compiles."""

    def __init__(self, path: str, max_bytes: int) -> None:
        self._folder = Path(path)
        self._max_bytes = max_bytes
        self._bytes: int | None = None
        """Of all files, as far as this process knows; counted at the first write and at each sweep."""
        self.hits = 0
        self.rejects = 0
        self.faults = 0

    def get(self, key: GrammarKey) -> bytes | None:
        """The artefact of `key`, None where there is none that can be trusted."""
        path = self._path(key)
        try:
            with path.open("rb") as file:
                header, artefact = file.readline(HEADER_LIMIT), file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._fault("read", error)
            return None
        if _read_header(header) != _header(key, artefact):
            self.rejects += 1
            logger.warning("Grammar %s: its stored artefact is damaged or foreign, and is ignored", key.digest[:16])
            _remove(path)
            return None
        with contextlib.suppress(OSError):  # on a read-only disk
            os.utime(path)  # what is swept first is what was used longest ago
        self.hits += 1
        return artefact

    def put(self, key: GrammarKey, artefact: bytes) -> bool:
        """Write it whole or not at all. False where the disk does not take it, or it is larger than the store."""
        content = json.dumps(_header(key, artefact)).encode() + b"\n" + artefact
        if len(content) > self._max_bytes:
            return False
        try:
            write_whole(self._path(key), content)
        except OSError as error:
            self._fault("written", error)
            return False
        self._sweep(len(content))
        return True

    def claim(self, key: GrammarKey) -> Claim | None:
        """The right to compile `key`; None while somebody else has it."""
        path = self._path(key).with_suffix(".lock")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:
            return Claim()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                return Claim(path, descriptor)
        except BlockingIOError:
            pass
        except OSError:  # a file system without locks
            os.close(descriptor)
            return Claim()
        os.close(descriptor)  # somebody has it, or gave it up a moment ago
        return None

    def discard(self, key: GrammarKey) -> None:
        """Take out an artefact that the library does not read."""
        self.rejects += 1
        _remove(self._path(key))

    def _path(self, key: GrammarKey) -> Path:
        name = hashlib.sha256(json.dumps([FORMAT, *asdict(key).values()]).encode()).hexdigest()
        return self._folder / f"{name}{SUFFIX}"

    def _sweep(self, added: int) -> None:
        if self._bytes is not None:
            self._bytes += added
            if self._bytes <= self._max_bytes:
                return
        files = sorted(self._files())
        self._bytes = sum(size for _, size, _ in files)
        if self._bytes <= self._max_bytes:
            return
        for _, size, path in files:
            if self._bytes <= self._max_bytes * SWEPT_TO:
                return
            _remove(path)
            self._bytes -= size

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Time of last use, bytes and path of every file of ours, unfinished ones of dead processes included."""
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith((SUFFIX, ".part")):
                    with contextlib.suppress(OSError):  # another server was faster
                        found = entry.stat()
                        yield found.st_mtime, found.st_size, Path(entry.path)

    def _fault(self, verb: str, error: OSError) -> None:
        self.faults += 1
        if self.faults == 1:
            logger.warning("The artefact store %s cannot be %s: %s; grammars are compiled", self._folder, verb, error)


def write_whole(path: Path, content: bytes, *, durable: bool = False) -> None:
    """All of it or nothing, in a directory that is made where it is not there.

    Args:
        path: what is there already is replaced.
        content: of the file.
        durable: return only when it survives a loss of power.

    Raises:
        OSError: the disk does not take it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(descriptor)
        Path(part).replace(path)
    except BaseException:
        _remove(Path(part))
        raise


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _header(key: GrammarKey, artefact: bytes) -> dict[str, Any]:
    checksum = hashlib.sha256(artefact).hexdigest()
    return {"format": FORMAT, **asdict(key), "bytes": len(artefact), "sha256": checksum}


def _read_header(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
