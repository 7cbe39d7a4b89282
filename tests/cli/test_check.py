"""`vllm-grammar check`: the server's verdict on files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.workers import BOTH
from vllm_grammar_backend.cli import main
from vllm_grammar_backend.engines import installed_version


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["check", *arguments], input=text)


@pytest.fixture
def schemas(tmp_path: Path) -> Path:
    (tmp_path / "good.json").write_text('{"type": "object", "properties": {"a": {"type": "integer"}}}')
    (tmp_path / "bad.json").write_text('{"properties": {"root": {"properties": {"a.b": {"$ref": "#/nowhere"}}}}}')
    return tmp_path


@pytest.mark.parametrize("backend", BOTH)
def test_verdicts_and_exit_status(schemas: Path, backend: str) -> None:
    good, bad = str(schemas / "good.json"), str(schemas / "bad.json")
    enforced = run(good, "--backend", backend)
    assert (enforced.exit_code, enforced.stdout.split()[:2]) == (0, ["enforced", good])
    both = run(good, bad, "--backend", backend)
    assert both.exit_code == 1
    first, second = both.stdout.splitlines()
    assert first.startswith("enforced")
    assert second.startswith(f"declined  {bad}  invalid_schema: ")
    assert "'/properties/root/properties/a.b/$ref'" in second


@pytest.mark.parametrize("backend", BOTH)
def test_json_lines_for_machines(schemas: Path, backend: str) -> None:
    done = run(str(schemas / "good.json"), str(schemas / "bad.json"), "--backend", backend, "--json")
    good, bad = map(json.loads, done.stdout.splitlines())
    assert good["verdict"] == "enforced"
    assert len(good["digest"]) == 64
    assert bad["verdict"] == "declined"
    assert bad["pointer"] == "/properties/root/properties/a.b/$ref"
    assert bad["keyword"] == "$ref"
    assert {row["version"] for row in (good, bad)} == {installed_version(backend)}


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("regex", "[a-z]+\n", "[a-z"),
        ("choice", '["a", "ab"]', "[]"),
        ("grammar", 'root ::= "a" | "b"\n', "root ::= missing"),
        (
            "structural_tag",
            json.dumps(
                {
                    "type": "structural_tag",
                    "triggers": ["<f"],
                    "structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}],
                }
            ),
            '{"type": "structural_tag", "structures": [], "triggers": []}',
        ),
    ],
)
@pytest.mark.parametrize("backend", BOTH)
def test_every_kind_from_standard_input(backend: str, kind: str, good: str, bad: str) -> None:
    assert run("-", "--backend", backend, "--kind", kind, text=good).exit_code == 0
    declined = run("-", "--backend", backend, "--kind", kind, text=bad)
    assert declined.exit_code == 1, declined.output
    assert declined.stdout.startswith("declined")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["missing.json", "--backend", "guidance"], "missing.json"),
        (["-", "--backend", "auto"], "auto"),
        (["-", "--backend", "outlines"], "outlines"),
        (["-", "--backend", "guidance", "--tokenizer", "."], "tokenizer"),
        (["-", "--backend", "guidance", "--grammar-config", "missing.yaml"], "missing.yaml"),
        ([], "FILE"),
    ],
)
def test_wrong_use_is_explained(tmp_path: Path, monkeypatch: Any, arguments: list[str], word: str) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*arguments, text="{}")
    assert done.exit_code in (1, 2)
    assert word in done.output
    assert "Traceback" not in done.output


def test_the_servers_limits_apply(tmp_path: Path) -> None:
    (tmp_path / "grammar.yaml").write_text("limits: {depth: 2}\n")
    deep = '{"items": {"items": {"items": {}}}}'
    assert run("-", "--backend", "guidance", text=deep).exit_code == 0
    declined = run("-", "--backend", "guidance", "--grammar-config", str(tmp_path / "grammar.yaml"), text=deep)
    assert declined.exit_code == 1
    assert "schema_too_large" in declined.stdout


def test_help_shows_examples() -> None:
    helped = run("--help")
    assert helped.exit_code == 0
    assert "vllm-grammar check order.json invoice.json --backend guidance" in helped.stdout


def test_a_file_that_cannot_be_read_does_not_hide_the_others(schemas: Path) -> None:
    good, missing = str(schemas / "good.json"), str(schemas / "missing.json")
    done = run(missing, good, "--backend", "guidance")
    assert done.exit_code == 2
    assert f"{missing} cannot be read" in done.stderr
    assert done.stdout.startswith(f"enforced  {good}")


def test_every_reason(tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text('{"properties": {"a": {"contains": {}}, "b": {"type": 7}}, "required": 1}')
    text = CliRunner().invoke(main, ["check", str(tmp_path / "order.json"), "--backend", "guidance"])
    assert text.exit_code == 1
    lines = text.stdout.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("declined  ")
    assert all(line.startswith("          and: ") for line in lines[1:])
    found = CliRunner().invoke(main, ["check", str(tmp_path / "order.json"), "--backend", "guidance", "--json"])
    verdict = json.loads(found.stdout)
    pointers = [reason["pointer"] for reason in verdict["errors"]]
    assert set(pointers) == {"/properties/b/type", "/required", "/properties/a/contains"}
    assert verdict["pointer"] == pointers[0]
