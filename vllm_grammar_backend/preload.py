"""Constraints ahead of any request: the fixed ones of the settings, and what `prewarm` and `check` are given."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import monotonic

import click

from vllm_grammar_backend.admission import admit
from vllm_grammar_backend.cache.names import Names
from vllm_grammar_backend.compile.fair import Lane, tenant_share
from vllm_grammar_backend.errors import GrammarError, StartupError
from vllm_grammar_backend.grammar import GrammarKind, GrammarOptions, GrammarSpec
from vllm_grammar_backend.service import GrammarService, Outcome, Ready, Waiter
from vllm_grammar_backend.settings import FixedSchema, Limits

logger = logging.getLogger("vllm.grammar_backend")

Wanted = tuple[str, GrammarSpec | GrammarError]
"""What it is called in messages, and what `admitted` makes of it."""


def admitted(kind: GrammarKind, value: object, options: GrammarOptions, limits: Limits) -> GrammarSpec | GrammarError:
    """`admission.admit`, the refusal as a value. The last line of a text file ends in a newline that is not meant."""
    if isinstance(value, str) and kind in (GrammarKind.REGEX, GrammarKind.GRAMMAR):
        value = value.removesuffix("\n")
    try:
        return admit(kind, value, options, limits)
    except GrammarError as error:
        return error


def outcomes(
    service: GrammarService, wanted: Iterable[Wanted], *, pinned: bool = False
) -> Iterator[tuple[str, GrammarSpec | None, Outcome]]:
    """What becomes of each, in order, while the workers are busy with those that follow.

    No more of them wait at a time than may of one tenant: good ones would be turned away.
    """
    most = min(service.settings.compile.workers + 1, tenant_share(service.settings.compile.queue))
    ahead: deque[tuple[str, GrammarSpec | None, Waiter]] = deque()
    for name, found in wanted:
        if len(ahead) == most:
            first, spec, waiter = ahead.popleft()
            yield first, spec, waiter.result()
        if isinstance(found, GrammarError):
            refused = Waiter()
            refused.set_result(found)
            ahead.append((name, None, refused))
        else:
            ahead.append((name, found, service.ensure(found, lane=Lane.WARM_UP, pinned=pinned)))
    for last, spec, waiter in ahead:
        yield last, spec, waiter.result()


def fixed(schemas: Iterable[FixedSchema], options: GrammarOptions, limits: Limits) -> Iterator[Wanted]:
    """The fixed schemas of the settings.

    Raises:
        StartupError: a file that cannot be read.
    """
    for number, schema in enumerate(schemas):
        name, value = schema.file or f"fixed_schemas[{number}]", schema.value
        if schema.file is not None:
            try:
                value = Path(schema.file).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise StartupError(f"The fixed schema {name} cannot be read: {error}") from None
        yield name, admitted(schema.kind, value, options, limits)


def preload(service: GrammarService, options: GrammarOptions) -> None:
    """Have the fixed schemas ready, and keep them so.

    Raises:
        StartupError: one of them cannot be read, or is declined.
    """
    settings, began = service.settings, monotonic()
    wanted = list(fixed(settings.fixed_schemas, options, settings.limits))
    if not wanted:
        return
    with click.progressbar(length=len(wanted), label="Compiling fixed schemas", file=sys.stderr) as bar:
        for name, _, outcome in outcomes(service, wanted, pinned=True):
            if isinstance(outcome, GrammarError):
                raise StartupError(f"The fixed schema {name} is declined: {outcome}")
            bar.update(1)
    logger.info("%d fixed schemas are ready after %.1f s", len(wanted), monotonic() - began)


def warm_up(service: GrammarService, names: Names) -> None:
    """Have saved constraints ready again, one at a time and each on its tenant's account, as far as memory reaches."""
    began, evicted, ready = monotonic(), service.statistics()["cache_evictions"], 0
    try:
        for place in names.places():
            if service.closed or service.statistics()["cache_evictions"] != evicted:
                break
            saved = names.find(place)
            if saved is not None:
                ready += isinstance(service.ensure(saved.spec, saved.tenant, Lane.WARM_UP).result(), Ready)
    except GrammarError as error:
        logger.warning("Saved grammars are not made ready ahead of requests: %s", error)
    if ready:
        logger.info("%d saved grammars are ready after %.1f s", ready, monotonic() - began)
