"""The compile service alone, without a server: what a look-up, a restart, an artefact, ten thousand schemas and a
worker's death cost.

    python loadtest/service.py hits --tokenizer .cache/models/noise --backend guidance
    python loadtest/service.py artefacts --tokenizer .cache/models/noise --backend xgrammar --schemas corpus.jsonl.gz
    python loadtest/service.py restart --tokenizer .cache/models/noise --backend guidance --schemas corpus.jsonl.gz
    python loadtest/service.py bounded --tokenizer .cache/models/noise --backend xgrammar
    python loadtest/service.py deaths --tokenizer .cache/models/noise --backend xgrammar

Each prints one JSON object. Times are wall clock; run it alone.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final

import click

from vllm_grammar_backend import engines, ticket
from vllm_grammar_backend.admission import admit
from vllm_grammar_backend.compile.job import build
from vllm_grammar_backend.engines.vocabulary import Vocabulary, from_directory
from vllm_grammar_backend.errors import GrammarError
from vllm_grammar_backend.grammar import GrammarKind, GrammarOptions, GrammarSpec
from vllm_grammar_backend.service import GrammarService, Ready
from vllm_grammar_backend.settings import Cache, Compile, Settings, Store
from vllm_grammar_backend.ticket import Ticket

MIB: Final = 1024 * 1024
DEAR: Final[dict[str, Any]] = {
    "guidance": {"type": "string", "allOf": [{"pattern": f"a.*b{i}.*c"} for i in range(30)]},
    "xgrammar": {"type": "object", "properties": {f"property_{i}": {"type": "integer"} for i in range(3000)}},
}
"""What takes a worker minutes."""
PAGE: Final = os.sysconf("SC_PAGE_SIZE")

Command = Callable[..., None]


def spec(schema: Any) -> GrammarSpec:
    return admit(GrammarKind.JSON, schema, GrammarOptions(), Settings().limits)


def closed(properties: dict[str, Any]) -> GrammarSpec:
    """An object of these and no other properties, all optional."""
    return spec({"type": "object", "properties": properties, "additionalProperties": False})


def corpus(file: Path) -> Iterator[GrammarSpec]:
    """Admitted schemas of JSON lines with a key `schema`, in a seeded order, each once."""
    with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8") as lines:
        schemas = [json.loads(line)["schema"] for line in lines]
    random.Random(5).shuffle(schemas)
    seen = set()
    for schema in schemas:
        try:
            wanted = spec(schema)
        except GrammarError:
            continue
        if wanted.digest not in seen:
            seen.add(wanted.digest)
            yield wanted


def shares(values: list[float], scale: float = 1.0, digits: int = 3) -> dict[str, float]:
    ordered = sorted(values)
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {n: round(ordered[min(len(ordered) - 1, int(s * len(ordered)))] * scale, digits) for n, s in at.items()}


def resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE


def common(command: Command) -> Command:
    tokenizer = click.Path(exists=True, file_okay=False)
    for option in (
        click.option("--backend", required=True, type=click.Choice(engines.NAMES)),
        click.option("--tokenizer", required=True, type=tokenizer, callback=lambda _c, _p, v: from_directory(v)),
    ):
        command = option(command)
    return command


def with_schemas(command: Command) -> Command:
    file = click.Path(exists=True, dir_okay=False, path_type=Path)
    for option in (
        click.option("--schemas", required=True, type=file, callback=lambda _c, _p, v: corpus(v)),
        click.option("--count", default=500, show_default=True, help="Schemas that the backend takes."),
    ):
        command = option(command)
    return command


@click.group()
def main() -> None:
    """What the compile service costs."""


@main.command()
@common
def hits(backend: str, tokenizer: Vocabulary) -> None:
    """From a ticket, as it reaches the engine, to a ready matcher, in microseconds."""
    result: dict[str, Any] = {"backend": backend}
    with closing(GrammarService.start(backend, tokenizer, Settings(compile=Compile(deadline_s=120)))) as service:
        for size in (10, 1000):
            wanted = closed({f"p{i}": {"type": "integer"} for i in range(size)})
            outcome = service.ensure(wanted).result()
            if isinstance(outcome, GrammarError):
                raise click.ClickException(str(outcome))
            data, times = dict(Ticket(wanted)), []
            for _ in range(5000):
                start = perf_counter()
                asked = ticket.read(data)
                service.deliver(asked.spec, lambda ready: ready.compiled.matcher(tokenizer.eos_ids), wait=False)
                times.append(perf_counter() - start)
            result[f"{size}_properties_us"] = shares(times, 1e6, 1)
    click.echo(json.dumps(result))


@main.command()
@common
@with_schemas
def artefacts(backend: str, tokenizer: Vocabulary, schemas: Iterator[GrammarSpec], count: int) -> None:
    """Making a grammar of a worker's artefact beside building it again in place, in milliseconds."""
    engine = engines.load(backend, tokenizer)
    loads, builds, sizes = [], [], []
    with click.progressbar(length=count, file=sys.stderr) as bar:
        for wanted in schemas:
            start = perf_counter()
            try:
                artefact = build(wanted, engine).artefact()
            except GrammarError:
                continue
            start = perf_counter()
            engine.load(artefact)
            loads.append(perf_counter() - start)
            start = perf_counter()
            build(wanted, engine)
            builds.append(perf_counter() - start)
            sizes.append(float(len(artefact)))
            bar.update(1)
            if len(loads) == count:
                break
    cheaper = sum(load < again for load, again in zip(loads, builds, strict=True))
    figures = {"load_ms": shares(loads, 1e3), "build_ms": shares(builds, 1e3), "bytes": shares(sizes, digits=0)}
    total = {"load_s": round(sum(loads), 2), "build_s": round(sum(builds), 2)}
    click.echo(json.dumps({"backend": backend, "schemas": len(loads), **figures, **total, "load_is_cheaper": cheaper}))


@main.command()
@common
@with_schemas
def restart(backend: str, tokenizer: Vocabulary, schemas: Iterator[GrammarSpec], count: int) -> None:
    """Time to ready of stored schemas after a restart, in milliseconds; no worker is there to help."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(store=Store(path=folder))
        known: list[GrammarSpec] = []
        with closing(GrammarService.start(backend, tokenizer, settings)) as first:
            ahead: deque[Any] = deque()
            with click.progressbar(length=count, file=sys.stderr) as bar:
                while len(known) < count and (wanted := next(schemas, None)):
                    ahead.append((wanted, first.ensure(wanted)))
                    if len(ahead) > settings.compile.workers:
                        done, waiter = ahead.popleft()
                        if isinstance(waiter.result(), Ready):
                            known.append(done)
                            bar.update(1)
        times = []
        with closing(GrammarService.start(backend, tokenizer, settings)) as second:
            second._supply.pool.close()  # noqa: SLF001 - what needs a worker now fails
            for wanted in known:
                start = perf_counter()
                if not isinstance(second.ensure(wanted).result(), Ready):
                    raise click.ClickException(f"{wanted.digest} was not served from the store")
                times.append(perf_counter() - start)
    click.echo(json.dumps({"backend": backend, "schemas": len(times), "ready_ms": shares(times, 1e3)}))


@main.command()
@common
@click.option("--count", default=10_000, show_default=True, help="Distinct schemas.")
@click.option("--budget-mib", default=256, show_default=True, help="The setting cache.bytes.")
def bounded(backend: str, tokenizer: Vocabulary, count: int, budget_mib: int) -> None:
    """Many distinct schemas through a small cache: accounted bytes at every step, and what the process grows by."""
    settings, most = Settings(cache=Cache(bytes=budget_mib * MIB)), 0
    with closing(GrammarService.start(backend, tokenizer, settings)) as service:
        service.ensure(spec({"const": "first"})).result()
        before = peak = resident()
        ahead: deque[Any] = deque()
        with click.progressbar(range(count), file=sys.stderr) as bar:
            for number in bar:
                names = {f"p{number}_{i}": {"type": ["integer", "boolean"][i % 2]} for i in range(5 + number % 20)}
                ahead.append(service.ensure(closed(names)))
                if len(ahead) > settings.compile.workers:
                    outcome = ahead.popleft().result()
                    if isinstance(outcome, GrammarError):
                        raise click.ClickException(str(outcome))
                most = max(most, int(service.statistics()["cache_bytes"]))
                peak = max(peak, resident())
        evictions = service.statistics()["cache_evictions"]
    figures = {"accounted_mib": round(most / MIB, 1), "grown_mib": round((peak - before) / MIB, 1)}
    allowed = round(1.25 * budget_mib + 64, 1)
    click.echo(
        json.dumps({"backend": backend, "schemas": count, "evictions": evictions, **figures, "allowed_mib": allowed})
    )


@main.command()
@common
def deaths(backend: str, tokenizer: Vocabulary) -> None:
    """Seconds until all workers are back after a `kill -9` of one, all, and all with the process they are forked from;
    and how long past its deadline a job of minutes is there, its memory included.
    """
    limits = Compile(deadline_s=3, memory_mb=8192)
    with closing(GrammarService.start(backend, tokenizer, Settings(compile=limits))) as service:
        pool = service._supply.pool  # noqa: SLF001 - whose processes are killed here

        def back(victims: Callable[[], list[int]]) -> float:
            service.ensure(spec({"const": "warm"})).result()
            while len(pool.pids) < limits.workers:
                sleep(0.001)
            dying = set(pool.pids) & set(chosen := victims())
            start = perf_counter()
            for pid in chosen:
                os.kill(pid, signal.SIGKILL)
            while len(pool.pids) < limits.workers or dying & set(pool.pids):
                sleep(0.001)
            return round(perf_counter() - start, 3)

        figures = {
            "one_s": back(lambda: pool.pids[:1]),
            "all_s": back(lambda: pool.pids),
            "all_and_their_parent_s": back(lambda: [parent(pool.pids[0]), *pool.pids]),
        }
        start = perf_counter()
        outcome = service.ensure(spec(DEAR[backend])).result()
        if not isinstance(outcome, GrammarError) or "deadline" not in str(outcome):
            raise click.ClickException(f"it was not ended by its deadline: {outcome}")
        late = round(perf_counter() - start - limits.deadline_s, 3)
    click.echo(json.dumps({"backend": backend, "back": figures, "past_its_deadline_s": late}))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[1])


if __name__ == "__main__":
    main()
