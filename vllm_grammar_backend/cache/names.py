"""Constraints that tenants have saved under a name: in memory, or one small file each where a store is set.

Where there is a store its directory is the truth, read each time it is asked: every server and rank that shares it
sees the same names. A file holds the constraint's canonical text and is admitted like any request's when it is read;
one that is damaged, foreign or past today's limits is ignored and told of in the log.
"""

from __future__ import annotations

import bisect
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from vllm_grammar_backend.admission import admit
from vllm_grammar_backend.cache.store import write_whole
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import Formats, GrammarKind, GrammarOptions, GrammarSpec, Whitespace
from vllm_grammar_backend.settings import Limits
from vllm_grammar_backend.tenant import is_name

logger = logging.getLogger("vllm.grammar_backend")

FORMAT: Final = 1
SUFFIX: Final = ".json"
PER_TENANT: Final = 10_000
"""Names one tenant may have: listing a directory of so many takes 10 ms."""
IN_ALL: Final = 100_000
"""Names of all tenants."""
BYTES_IN_MEMORY: Final = 256 * 1024 * 1024
"""Of text, where there is no store."""

AT_ONCE_S: Final = 2.0
"""Two who write within this write at the same time; a greater difference is one of clocks."""

Change = Literal["new", "changed", "same"]
Place = tuple[str, str]
"""Tenant and name, both as `tenant.check_name` wants them, so that neither leads out of a directory."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What a name stands for."""

    tenant: str
    name: str
    spec: GrammarSpec
    saved_at: float
    """Seconds since the epoch."""

    @property
    def place(self) -> Place:
        return self.tenant, self.name


class Names(Protocol):
    """Saved constraints. Not thread-safe."""

    @property
    def kept(self) -> bool:
        """They survive a restart."""

    def save(self, saved: Saved) -> Change:
        """Put it over what the name stood for.

        Raises:
            GrammarError: too many names, or the disk does not take it; nothing has changed then.
        """

    def forget(self, place: Place) -> bool:
        """False where there is no such name. Raises GrammarError where the disk does not allow it."""

    def find(self, place: Place) -> Saved | None: ...

    def places(self, tenant: str | None = None) -> list[Place]:
        """Every place, or one tenant's, in order."""


def page(names: Names, tenant: str | None, after: Place | None, limit: int) -> Iterator[Saved]:
    """Up to `limit` of them in order, those that lie after a place."""
    places = names.places(tenant)
    for place in places[bisect.bisect_right(places, after) if after else 0 :]:
        if limit and (saved := names.find(place)):
            limit -= 1
            yield saved


class NamesInMemory:
    """Gone with the process."""

    kept = False

    def __init__(self, per_tenant: int = PER_TENANT, in_all: int = IN_ALL, most_bytes: int = BYTES_IN_MEMORY) -> None:
        self._saved: dict[Place, Saved] = {}
        self._held: Counter[str] = Counter()
        self._bytes = 0
        self._bounds = per_tenant, in_all
        self._most_bytes = most_bytes

    def save(self, saved: Saved) -> Change:
        before = self._saved.get(saved.place)
        if overtaken(before, saved):
            return "same"
        if before is None:
            check_room(self._held[saved.tenant], len(self._saved), self._bounds)
        if self._bytes - _size(before) + _size(saved) > self._most_bytes:
            reason = f"saved constraints would take more than {self._most_bytes} bytes"
            raise GrammarError(ErrorCode.OVER_QUOTA, reason, hint="Delete some, or set store.path.")
        self.forget(saved.place)
        self._saved[saved.place] = saved
        self._held[saved.tenant] += 1
        self._bytes += _size(saved)
        return change(before, saved)

    def forget(self, place: Place) -> bool:
        gone = self._saved.pop(place, None)
        if gone is None:
            return False
        self._bytes -= _size(gone)
        self._held[gone.tenant] -= 1
        return True

    def find(self, place: Place) -> Saved | None:
        return self._saved.get(place)

    def places(self, tenant: str | None = None) -> list[Place]:
        return sorted(place for place in self._saved if tenant in (None, place[0]))


class NamesOnDisk:
    """Files `TENANT/NAME.json` below a directory."""

    kept = True

    def __init__(self, folder: Path, limits: Limits, per_tenant: int = PER_TENANT, in_all: int = IN_ALL) -> None:
        self._folder = folder
        self._limits = limits
        self._bounds = per_tenant, in_all

    def save(self, saved: Saved) -> Change:
        before = self.find(saved.place)
        if overtaken(before, saved):
            return "same"
        path = self._path(saved.place)
        if before is None and not path.exists():
            check_room(len(self.places(saved.tenant)), len(self.places()), self._bounds)
        try:
            write_whole(path, _written(saved), durable=True)
        except OSError as error:
            raise _disk(error) from None
        return change(before, saved)

    def forget(self, place: Place) -> bool:
        try:
            self._path(place).unlink()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise _disk(error) from None
        return True

    def find(self, place: Place) -> Saved | None:
        try:
            content = self._path(place).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise _disk(error) from None
        try:
            return _read(place, content, self._limits)
        except (ValueError, KeyError, TypeError, RecursionError, GrammarError) as error:
            logger.warning("The saved name %s/%s is ignored: its file is damaged (%s)", *place, type(error).__name__)
            return None

    def places(self, tenant: str | None = None) -> list[Place]:
        tenants = [tenant] if tenant is not None else _names(self._folder, "")
        return [(owner, name) for owner in tenants for name in _names(self._folder / owner, SUFFIX)]

    def _path(self, place: Place) -> Path:
        tenant, name = place
        return self._folder / tenant / f"{name}{SUFFIX}"


def check_room(held: int, in_all: int, bounds: tuple[int, int]) -> None:
    """Raise `OVER_QUOTA` where one more name is too many."""
    for count, bound, whose in ((held, bounds[0], "this tenant has"), (in_all, bounds[1], "there are")):
        if count >= bound:
            reason = f"{whose} {count} saved names, as many as there may be"
            raise GrammarError(ErrorCode.OVER_QUOTA, reason, hint="Delete some of them.")


def overtaken(before: Saved | None, now: Saved) -> bool:
    """Ranks may hear of two writers in different order: the later one wins in all of them."""
    return before is not None and 0 < before.saved_at - now.saved_at < AT_ONCE_S


def change(before: Saved | None, now: Saved) -> Change:
    if before is None:
        return "new"
    return "same" if before.spec.digest == now.spec.digest else "changed"


def _written(saved: Saved) -> bytes:
    spec = saved.spec
    record = {
        "format": FORMAT,
        "digest": spec.digest,
        "kind": spec.kind,
        "text": spec.text,
        "whitespace": spec.options.whitespace,
        "formats": spec.options.formats,
        "saved_at": saved.saved_at,
    }
    return json.dumps(record, ensure_ascii=False).encode()


def _read(place: Place, content: bytes, limits: Limits) -> Saved:
    record: dict[str, Any] = json.loads(content)
    if record["format"] != FORMAT:
        raise ValueError("another format")
    options = GrammarOptions(Whitespace(record["whitespace"]), Formats(record["formats"]))
    spec = admit(GrammarKind(record["kind"]), record["text"], options, limits)
    if spec.digest != record["digest"]:
        raise ValueError("the text is not the digest's")
    return Saved(*place, spec, float(record["saved_at"]))


def _names(folder: Path, suffix: str) -> list[str]:
    """What is called as ours are there, without the suffix, in order."""
    try:
        entries = [entry.name for entry in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _disk(error) from None
    return sorted(name for entry in entries if entry.endswith(suffix) and is_name(name := entry.removesuffix(suffix)))


def _size(saved: Saved | None) -> int:
    return len(saved.spec.text.encode()) if saved else 0


def _disk(error: OSError) -> GrammarError:
    reason = f"the disk of the saved names does not allow it: {os.strerror(error.errno or 0)}"
    return GrammarError(ErrorCode.UNAVAILABLE, reason, hint="What was saved before is still in force.")
