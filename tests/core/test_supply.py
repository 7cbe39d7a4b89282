"""With a store: compiled once for all who share it, found after a restart, compiled anew where it is damaged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest

from tests.workers import BOTH
from vllm_grammar_backend.admission import admit
from vllm_grammar_backend.cache.store import ArtefactStore, Claim
from vllm_grammar_backend.engines.vocabulary import byte_vocabulary
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import GrammarKind, GrammarOptions, GrammarSpec
from vllm_grammar_backend.service import GrammarService, Ready
from vllm_grammar_backend.settings import Compile, Settings, Store

GIB = 1024**3
PATIENCE_S = 60
SCHEMAS: list[Any] = [{"type": "object", "properties": {f"p{i}": {"type": "integer"}}} for i in range(20)]

Start = Callable[..., GrammarService]


def spec(schema: Any) -> GrammarSpec:
    return admit(GrammarKind.JSON, schema, GrammarOptions(), Settings().limits)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts services on one directory, and ends them."""
    started: list[GrammarService] = []

    def begin(backend: str = "guidance", path: Path = tmp_path) -> GrammarService:
        settings = Settings(store=Store(path=str(path)), compile=Compile(deadline_s=60))
        started.append(GrammarService.start(backend, byte_vocabulary(), settings))
        return started[-1]

    yield begin
    for service in started:
        service.close()


def compiled(service: GrammarService) -> int:
    """How many of the grammars held were made by a worker of this service."""
    return sum(entry.compile_ms > 0 for entry in service.entries())


@pytest.mark.parametrize("backend", BOTH)
def test_after_a_restart_no_worker_is_needed(backend: str, start: Start) -> None:
    first = start(backend)
    outcomes = [first.ensure(spec(schema)).result(PATIENCE_S) for schema in SCHEMAS]
    assert all(isinstance(outcome, Ready) for outcome in outcomes)
    first.close()
    assert compiled(first) == len(SCHEMAS)
    again = start(backend)
    again._supply.pool.close()
    for schema in SCHEMAS:
        outcome = again.ensure(spec(schema)).result(PATIENCE_S)
        assert isinstance(outcome, Ready), outcome
        assert outcome.compiled.matcher(byte_vocabulary().eos_ids).accept(list(b"{}"))
    assert compiled(again) == 0
    assert again.statistics()["store_hits"] == len(SCHEMAS)
    refused = again.ensure(spec({"const": "new"})).result(PATIENCE_S)
    assert isinstance(refused, GrammarError)
    assert refused.code is ErrorCode.UNAVAILABLE


def test_of_two_servers_one_compiles(start: Start) -> None:
    servers = [start(), start()]
    waiters = [server.ensure(spec(schema)) for schema in SCHEMAS for server in servers]
    wait(waiters)
    assert {type(waiter.result()) for waiter in waiters} == {Ready}
    assert sum(map(compiled, servers)) == len(SCHEMAS)


def claimed(path: Path, service: GrammarService, wanted: GrammarSpec) -> Claim:
    claim = ArtefactStore(str(path), GIB).claim(service.key(wanted))
    assert claim is not None
    return claim


def test_what_another_server_gives_up_is_compiled_here(start: Start, tmp_path: Path) -> None:
    service, wanted = start(), spec({"const": 1})
    claim = claimed(tmp_path, service, wanted)
    waiter = service.ensure(wanted)
    other = service.ensure(spec({"const": 2})).result(PATIENCE_S)
    assert isinstance(other, Ready)
    assert not waiter.done()
    claim.release()
    assert isinstance(waiter.result(PATIENCE_S), Ready)
    service.close()
    assert [path.suffix for path in tmp_path.iterdir()] == [".grammar", ".grammar"]


def test_waiting_for_another_server_can_be_given_up(start: Start, tmp_path: Path) -> None:
    service, wanted = start(), spec({"const": 1})
    claim = claimed(tmp_path, service, wanted)
    waiter = service.ensure(wanted)
    gone = threading.Event()
    service._in_flight[service.key(wanted)].job.done.add_done_callback(lambda _: gone.set())
    service.release(wanted, waiter)
    assert gone.wait(PATIENCE_S)
    again = service.ensure(wanted)
    claim.release()
    assert isinstance(again.result(PATIENCE_S), Ready)


def test_a_server_that_ends_waits_for_nobody(start: Start, tmp_path: Path) -> None:
    service, wanted = start(), spec({"const": 1})
    claim = claimed(tmp_path, service, wanted)
    waiter = service.ensure(wanted)
    assert isinstance(service.ensure(spec({"const": 2})).result(PATIENCE_S), Ready)
    service.close()
    outcome = waiter.result(PATIENCE_S)
    assert isinstance(outcome, GrammarError)
    assert outcome.retryable
    claim.release()


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("artefact", [b"", b"\xff\x00", b"{}", b'{"a": 1}'])
def test_an_artefact_that_the_library_cannot_read_is_replaced(
    backend: str, artefact: bytes, start: Start, tmp_path: Path
) -> None:
    service, wanted, store = start(backend), spec({"const": "x"}), ArtefactStore(str(tmp_path), GIB)
    assert store.put(service.key(wanted), artefact)
    outcome = service.ensure(wanted).result(PATIENCE_S)
    assert isinstance(outcome, Ready)
    assert outcome.compiled.matcher(byte_vocabulary().eos_ids).accept(list(b'"x"'))
    assert service.statistics()["store_rejects"] == 1
    service.close()
    assert store.get(service.key(wanted)) not in (None, artefact)


def test_a_refusal_is_not_stored(start: Start, tmp_path: Path) -> None:
    service = start()
    outcome = service.ensure(spec({"enum": [], "minLength": 1})).result(PATIENCE_S)
    assert isinstance(outcome, GrammarError)
    assert not outcome.retryable
    service.close()
    assert list(tmp_path.iterdir()) == []


def test_without_a_disk_it_is_compiled(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    service = start(path=tmp_path / "file")
    assert isinstance(service.ensure(spec({"const": 1})).result(PATIENCE_S), Ready)
    assert service.statistics()["store_faults"]


SERVER = """
import sys
from tests.core.test_supply import serve_until_killed
serve_until_killed(sys.argv[1])
"""


def serve_until_killed(path: str) -> None:
    """What the process does that the next test kills."""
    service = GrammarService.start("guidance", byte_vocabulary(), Settings(store=Store(path=path)))
    for waiter in [service.ensure(spec(schema)) for schema in SCHEMAS]:
        waiter.result()
    service.ensure(spec({"type": "string", "allOf": [{"pattern": f"a.*b{i}.*c"} for i in range(30)]})).result()


@pytest.mark.parametrize("stored", [1, len(SCHEMAS)])
def test_a_killed_server_leaves_a_store_that_the_next_one_takes(stored: int, start: Start, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", SERVER, str(tmp_path)], cwd=Path(__file__).parents[2]) as process:
        end = time.monotonic() + PATIENCE_S
        while len(list(tmp_path.glob("*.grammar"))) < stored:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    service = start()
    waiters = [service.ensure(spec(schema)) for schema in SCHEMAS]
    assert {type(waiter.result(PATIENCE_S)) for waiter in waiters} == {Ready}
    assert stored <= int(service.statistics()["store_hits"]) <= len(SCHEMAS)
    assert service.statistics()["store_rejects"] == 0
