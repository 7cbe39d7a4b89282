"""`vllm-grammar prewarm`: what it stores, a server with that model finds."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from deploy.prepare_model import prepare
from vllm_grammar_backend.admission import admit
from vllm_grammar_backend.cli import main
from vllm_grammar_backend.engines.vocabulary import from_directory
from vllm_grammar_backend.grammar import GrammarKind, GrammarOptions
from vllm_grammar_backend.service import GrammarService, Ready
from vllm_grammar_backend.settings import Settings, Store

FIXED = {"type": "object", "properties": {"fixed": {"type": "null"}}}


@pytest.fixture(scope="module")
def model() -> Path:
    return prepare("noise")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "grammar.yaml"
    file.write_text(json.dumps({"store": {"path": str(tmp_path / "store")}, "fixed_schemas": [{"value": FIXED}]}))
    return file


def run(config: Path, model: Path, *arguments: str) -> Result:
    options = ["--config", str(config), "--backend", "guidance", "--model", str(model)]
    return CliRunner().invoke(main, ["prewarm", *options, *arguments])


def test_what_it_stores_is_found(config: Path, model: Path, tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"const": 1}')
    (tmp_path / "many.jsonl").write_text('{"const": 2}\n{"contains": 1}\n{"const": 3}\n')
    done = run(config, model, str(tmp_path / "one.json"), str(tmp_path / "many.jsonl"), "--json")
    assert done.exit_code == 1
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["verdict"] for row in rows] == ["enforced", "enforced", "enforced", "declined", "enforced"]
    assert (rows[3]["name"], rows[3]["keyword"]) == (f"{tmp_path / 'many.jsonl'}:2", "contains")
    settings = Settings(store=Store(path=str(tmp_path / "store")))
    with closing(GrammarService.start("guidance", from_directory(str(model)), settings)) as server:
        server._supply.pool.close()
        for schema in (FIXED, {"const": 1}, {"const": 2}, {"const": 3}):
            spec = admit(GrammarKind.JSON, schema, GrammarOptions(), settings.limits)
            assert isinstance(server.ensure(spec).result(60), Ready)


def test_all_taken_is_exit_status_0(config: Path, model: Path) -> None:
    done = run(config, model)
    assert done.exit_code == 0, done.output
    assert "1 of 1 are in" in done.stderr


def test_a_file_that_cannot_be_read_is_named(config: Path, model: Path, tmp_path: Path) -> None:
    (tmp_path / "latin.json").write_bytes(b'"\xe9"')
    done = run(config, model, str(tmp_path / "latin.json"))
    assert done.exit_code == 1
    assert "latin.json cannot be read" in done.stderr


def test_without_a_store_there_is_nothing_to_do(model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("")
    done = run(tmp_path / "empty.yaml", model)
    assert done.exit_code == 1
    assert "store.path" in done.stderr


def test_a_store_that_takes_nothing_is_told(config: Path, model: Path, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    done = run(config, model)
    assert done.exit_code == 1
    assert "took not everything" in done.stderr
