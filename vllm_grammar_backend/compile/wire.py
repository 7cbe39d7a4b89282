"""What parent and worker say to each other.

To the worker: `Start` in a file, then one pickled GrammarSpec per job, since the parent is trusted. Back: JSON and
bytes, since the worker has met untrusted text. First `READY` or why not; then per job `TAKEN`, and `{}` with an
artefact, or a verdict, or the name of what went wrong.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Start:
    """What a worker is for."""

    backend: str
    vocabulary: Vocabulary
    mask_budget_ms: float


def failure(error: Exception) -> bytes:
    """An answer that is not a grammar. The text of an exception may quote a schema, so only its name goes."""
    if isinstance(error, GrammarError):
        return json.dumps({"verdict": error.as_data()}).encode()
    return json.dumps({"fault": type(error).__name__}).encode()


def read_failure(message: bytes) -> Exception:
    answer: dict[str, Any] = json.loads(message)
    if "verdict" in answer:
        return GrammarError.from_data(answer["verdict"])
    return RuntimeError(f"{answer['fault']} in a compile worker")


def step_back() -> None:
    """Lower the priority of the calling thread: Linux schedules threads one by one."""
    os.setpriority(os.PRIO_PROCESS, get_native_id(), NICENESS)
