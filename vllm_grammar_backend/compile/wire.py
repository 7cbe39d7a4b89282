"""What parent and worker say to each other.

To the worker: `Start` in a file, then one pickled GrammarSpec per job, since the parent is trusted. Back: JSON and
bytes, since the worker has met untrusted text. First `READY`, its process number and a handle to it, or why not; then
per job `TAKEN`, and `{}` with an artefact, or a verdict, or the name of what went wrong. Last, `ended`.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import get_native_id
from typing import Any, Final

from vllm_grammar_backend.engines.vocabulary import Vocabulary
from vllm_grammar_backend.errors import GrammarError

NICENESS: Final = 5
"""Compiling gives way to decoding and to the API server, but is not starved where those take all there is."""
READY: Final = b"ready"
TAKEN: Final = b"taken"
"""The worker lived when the job reached it: should it end now, the job may be the reason."""
ARTEFACT_FOLLOWS: Final = b"{}"
_ENDED: Final = b"ended "


@dataclass(frozen=True, slots=True)
class Start:
    """What a worker is for."""

    backend: str
    vocabulary: Vocabulary
    mask_budget_ms: float


def ended(status: int) -> bytes:
    """The last message of a worker, which is not its own: its exit status, negative for a signal."""
    return _ENDED + str(status).encode()


def read_ended(message: bytes) -> int | None:
    """The exit status, None for any other message."""
    return int(message.removeprefix(_ENDED)) if message.startswith(_ENDED) else None


def failure(error: Exception) -> bytes:
    """An answer that is not a grammar. The text of an exception may quote a schema, so only its name goes."""
    if isinstance(error, GrammarError):
        return json.dumps({"verdict": error.as_data()}).encode()
    return json.dumps({"fault": type(error).__name__}).encode()


def read_failure(message: bytes) -> Exception:
    """What the worker says went wrong, or that it says what it should not."""
    try:
        answer: dict[str, Any] = json.loads(message)
        if "verdict" in answer:
            return GrammarError.from_data(answer["verdict"])
        return RuntimeError(f"{answer['fault']} in a compile worker")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return RuntimeError(f"the answer of a compile worker is unreadable: {type(error).__name__}")


def step_back() -> None:
    """Lower the priority of the calling thread: Linux schedules threads one by one."""
    thread = get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS)


def name_process(name: str) -> None:
    """What `ps` and `top` show, at most 15 characters; the old name where /proc is read-only."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name, encoding="ascii")
