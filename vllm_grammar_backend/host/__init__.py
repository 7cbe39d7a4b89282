"""The only package that imports vLLM: it translates, and decides nothing."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_grammar_backend.host.seams import Seam


def install_everywhere() -> None:
    """Wrap what this process has loaded of vLLM. Each wrap passes straight through until a backend is pinned.

    Modules that are not loaded are left alone: vLLM calls plugins in workers and short-lived helper processes too,
    which have no use for an engine or a front end.
    """
    from vllm_grammar_backend.host import flags, seams

    found = [seam for seam in flags.SEAMS if seam.module in sys.modules]
    if "vllm.v1.structured_output" in sys.modules:
        from vllm_grammar_backend.host import backend

        found += backend.SEAMS
    for seam in found:
        try:
            seams.install([seam])
        except seams.SeamMovedError as error:
            # Not pinned, a newer vLLM must serve all the same; pinned, `install_pinned` refuses to start.
            logging.getLogger("vllm.grammar_backend").warning("%s No backend can be pinned with it.", error)


def install_pinned() -> None:
    """Wrap the request path and, for an engine in this process, the engine: only where a backend is pinned."""
    from vllm_grammar_backend.host import backend, frontend, seams

    seams.install((*backend.SEAMS, *frontend.SEAMS))


def all_seams() -> tuple[Seam, ...]:
    """Every record, for `vllm-grammar doctor` and the tests; imports all of vLLM they touch."""
    from vllm_grammar_backend.host import backend, flags, frontend

    return (*flags.SEAMS, *backend.SEAMS, *frontend.SEAMS)
