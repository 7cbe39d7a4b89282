"""What refuses to start, and what the flags do, on vLLM's own argument parser."""

from __future__ import annotations

import os
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.serve.server import ENVIRONMENT, vllm

Parse = Callable[..., Any]


@pytest.fixture(scope="module")
def parse() -> Parse:
    """Parse the arguments of `vllm serve MODEL` as the command line would."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's own imports warn of things that are not ours
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
        from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    return lambda *arguments: parser.parse_args(["model", *arguments])


def refusal(parse: Parse, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        parse(*arguments)
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--structured-outputs-backend", "auto"], ["auto is refused", "pin one of guidance"]),
        (["--structured-outputs-backend", "llguidance"], ["Did you mean 'guidance'?"]),
        (["--structured-outputs-backend", "outlines-core"], ["Did you mean 'outlines'?"]),
        (["--structured-outputs-backend", "xgramar"], ["Did you mean 'xgrammar'?"]),
        (["--structured-outputs-backend", "qwerty"], ["'qwerty'", "guidance, xgrammar"]),
        (["--structured-outputs-backend", "outlines"], ["no outlines backend yet"]),
        (["--grammar-config", "x.yaml"], ["--grammar-config needs --structured-outputs-backend"]),
        (["--structured-outputs-backend", "guidance", "--grammar-config", "none.yaml"], ["none.yaml"]),
        (
            ["--structured-outputs-backend", "guidance", "--structured-outputs-config.backend", "xgrammar"],
            ["pins 'guidance'", "remove the former"],
        ),
        (
            [
                *("--structured-outputs-backend", "guidance", "--structured-outputs-config.backend", "guidance"),
                "--structured-outputs-config.disable_additional_properties=true",
            ],
            ["disable_additional_properties", "additionalProperties"],
        ),
        (
            ["--structured-outputs-backend", "guidance", "--additional-config", '{"grammar_backend": "xgrammar"}'],
            ["contradicts --additional-config"],
        ),
        (
            ["--grammar-config", "x.yaml", "--additional-config", '{"grammar_backend": "xgrammar"}'],
            ["--grammar-config needs --structured-outputs-backend"],
        ),
        (["--additional-config", '{"grammar_backend": {"backend": "xgrammar", "config": 5}}'], ['{"backend": NAME}']),
        (["--additional-config", '{"grammar_backend": {"name": "xgrammar"}}'], ['{"backend": NAME}']),
    ],
)
def test_it_refuses_with_one_sentence(
    parse: Parse, capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    text = refusal(parse, capsys, *arguments)
    assert all(word in text for word in words), text
    lines = [line for line in text.splitlines() if line]
    assert len(lines) == 1
    assert lines[0].startswith("vllm serve: error: ")


def test_a_version_that_does_not_match_names_the_diff_command(
    parse: Parse, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "pinned.yaml").write_text('backend_version: "<0.1"\n')
    arguments = ["--structured-outputs-backend", "xgrammar", "--grammar-config", str(tmp_path / "pinned.yaml")]
    text = refusal(parse, capsys, *arguments)
    assert "'<0.1'" in text
    assert "vllm-grammar diff" in text


def test_the_rust_front_end_is_refused(
    parse: Parse, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    assert "VLLM_USE_RUST_FRONTEND" in refusal(parse, capsys, "--structured-outputs-backend", "guidance")


def test_the_flag_travels_in_additional_config(parse: Parse, tmp_path: Path) -> None:
    file = tmp_path / "grammar.yaml"
    file.write_text("whitespace: compact\n")
    arguments = parse(
        *("--structured-outputs-backend", "guidance", "--grammar-config", str(file)),
        *("--additional-config", '{"other": 1}'),
    )
    assert arguments.additional_config == {"other": 1, "grammar_backend": {"backend": "guidance", "config": str(file)}}


def test_the_flag_is_taken_from_a_yaml_of_vllm(parse: Parse, tmp_path: Path) -> None:
    (tmp_path / "vllm.yaml").write_text("structured-outputs-backend: xgrammar\nmax-model-len: 512\n")
    arguments = parse("--config", str(tmp_path / "vllm.yaml"))
    assert arguments.additional_config == {"grammar_backend": {"backend": "xgrammar"}}


def test_without_the_flag_nothing_changes(parse: Parse) -> None:
    assert parse().additional_config == {}


@pytest.mark.slow
@pytest.mark.parametrize("subcommand", ["serve", "run-batch"])
def test_the_real_command_refuses_and_helps(subcommand: str) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **ENVIRONMENT}
        return subprocess.run(
            vllm(subcommand, *arguments), env=environment, capture_output=True, text=True, timeout=180, check=False
        )

    extra = [] if subcommand == "serve" else ["-i", "in.jsonl", "-o", "out.jsonl"]
    refused = run(*extra, "--structured-outputs-backend", "auto")
    assert refused.returncode == 2
    assert "auto is refused" in refused.stderr
    assert "Traceback" not in refused.stderr
    helped = run("--help=structured-outputs-backend")
    assert "--structured-outputs-backend {guidance,xgrammar,outlines,glrmask}" in helped.stdout
