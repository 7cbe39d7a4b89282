"""Which backends there are, and what an operator is told about those that cannot be had."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.engines.vocabularies import SMALL
from vllm_grammar_backend import engines
from vllm_grammar_backend.errors import StartupError


@pytest.mark.parametrize("name", ["outlines", "glrmask"])
def test_backend_to_come(name: str) -> None:
    with pytest.raises(StartupError, match=f"no {name} backend yet; pin one of guidance, xgrammar"):
        engines.load(name, SMALL)


@pytest.mark.parametrize("name", ["auto", "llguidance", "", "os"])
def test_no_such_backend(name: str) -> None:
    with pytest.raises(StartupError, match="pin one of guidance, xgrammar, outlines, glrmask"):
        engines.load(name, SMALL)


def test_versions() -> None:
    assert set(engines.NAMES) >= {"guidance", "xgrammar", "outlines", "glrmask"}
    for name in ("guidance", "xgrammar"):
        assert engines.installed_version(name)


def test_library_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engines._DISTRIBUTIONS, "guidance", "no-such-distribution")
    assert engines.installed_version("guidance") is None
    with pytest.raises(StartupError, match="install no-such-distribution"):
        engines.load("guidance", SMALL)


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        (
            "from vllm_grammar_backend import engines; engines.installed_version('xgrammar')",
            "xgrammar llguidance torch",
        ),
        ("import vllm_grammar_backend.engines.guidance", "xgrammar torch vllm transformers"),
        ("import vllm_grammar_backend.engines.xgrammar", "llguidance vllm"),
    ],
)
def test_what_importing_loads(statement: str, absent: str) -> None:
    check = f"{statement}\nimport sys\nassert sys.modules.keys().isdisjoint({absent.split()!r})"
    subprocess.run([sys.executable, "-c", check], check=True)
