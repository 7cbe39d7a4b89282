"""`vllm-grammar doctor` against the vLLM that is installed here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_grammar_backend import engines
from vllm_grammar_backend.pin import vllm_version

pytestmark = pytest.mark.slow  # each run imports all of vLLM


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("vllm-grammar")), "doctor", *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=180, check=False
    )


def test_everything_is_in_place_here(tmp_path: Path) -> None:
    file = tmp_path / "grammar.yaml"
    file.write_text("limits: {depth: 32}\ncontrol: {admin_key: not-for-eyes}\n")
    done = doctor("--backend", "xgrammar", "--grammar-config", str(file), GRAMMAR_BACKEND_COMPILE__WORKERS="3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"ok    vLLM: {vllm_version()}" in done.stdout
    assert f"ok    backend guidance: llguidance {engines.installed_version('guidance')}" in done.stdout
    assert done.stdout.count("ok    seam ") >= 10
    assert f"setting limits.depth: 32 (file {file})" in done.stdout
    assert "setting compile.workers: 3 (environment GRAMMAR_BACKEND_COMPILE__WORKERS)" in done.stdout
    assert "setting cache.bytes: 1073741824 (default)" in done.stdout
    assert "not-for-eyes" not in done.stdout
    assert "set VLLM_PLUGINS=grammar_backend," in done.stdout


def test_what_is_missing_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "grammar.yaml").write_text('backend_version: "<0.1"\n')
    done = doctor("--backend", "guidance", "--grammar-config", str(tmp_path / "grammar.yaml"))
    assert done.returncode == 1
    assert "FAULT backend_version" in done.stdout
    assert "vllm-grammar diff" in done.stdout
    missing = doctor("--backend", "glrmask", VLLM_PLUGINS="grammar_backend")
    assert missing.returncode == 1
    assert "FAULT backend glrmask" in missing.stdout
    assert "ok    HTTP routes: on" in missing.stdout


def test_an_allow_list_without_the_plugin_is_a_fault() -> None:
    done = doctor(VLLM_PLUGINS="somebody_else", VLLM_USE_RUST_FRONTEND="1")
    assert done.returncode == 1
    assert "FAULT plugin: VLLM_PLUGINS leaves this plugin out; set it to grammar_backend" in done.stdout
    assert "FAULT front end: VLLM_USE_RUST_FRONTEND is set" in done.stdout


def test_a_bad_settings_file_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "grammar.yaml").write_text("cach: {}\n")
    done = doctor("--grammar-config", str(tmp_path / "grammar.yaml"))
    assert done.returncode == 1
    assert "Unknown setting 'cach'" in done.stdout
