"""The rules of the design that a parser can check: who imports whom, who touches the outside, how large things are."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = "vllm_grammar_backend"
MODULE_LINES = 400
HOST_LINES = 700

# Imports go down this list, or sideways without a cycle.
LAYERS = (
    ("errors", "grammar", "settings", "metrics"),
    ("admission", "schema", "engines", "masks"),
    ("compile", "cache", "messages", "pin", "tenant", "ticket"),
    ("control", "desk", "gate", "preload", "service"),
    ("http", "cli", "host"),
    ("plugin",),
)
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units}
METRIC_NAME = re.compile(r"vllm_grammar_(?!backend(\W|_|$))[a-z0-9_]+")


@dataclass(frozen=True)
class Module:
    """One file: `unit` is the module or subpackage directly below the package, "" for the package itself."""

    path: Path
    unit: str
    source: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)


def read_package(folder: Path) -> list[Module]:
    modules = []
    for path in sorted(folder.rglob("*.py")):
        inside = path.relative_to(folder).parts
        unit = "" if inside == ("__init__.py",) else inside[0].removesuffix(".py")
        modules.append(Module(path, unit, path.read_text(encoding="utf-8")))
    return modules


def imported_names(tree: ast.Module) -> Iterator[str]:
    """Every dotted name that is imported anywhere in a module, `from a import b` as `a.b`, and by import_module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (str(part.value) for part in node.args if isinstance(part, ast.Constant))


def imported_units(module: Module) -> set[str]:
    prefix = f"{PACKAGE}."
    names = (name.removeprefix(prefix) for name in imported_names(module.tree) if name.startswith(prefix))
    return {name.split(".")[0] for name in names} - {"__version__", module.unit}


def check_direction(modules: list[Module]) -> Iterator[str]:
    graph: dict[str, set[str]] = {}
    for module in modules:
        if any(name.startswith(".") for name in imported_names(module.tree)):
            yield f"{module.path}: relative import"
        if module.unit and module.unit not in LEVEL:
            yield f"{module.path}: {module.unit} has no place in LAYERS"
            continue
        for unit in imported_units(module):
            graph.setdefault(module.unit, set()).add(unit)
            if unit not in LEVEL or (LEVEL[unit] > LEVEL.get(module.unit, -1)):
                yield f"{module.path}: {module.unit or PACKAGE} imports {unit}"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield f"import cycle: {error.args[1]}"


def check_outside(modules: list[Module], libraries: set[str], allowed: str) -> Iterator[str]:
    for module in modules:
        found = {name.split(".")[0] for name in imported_names(module.tree)} & libraries
        if found and module.unit != allowed:
            yield f"{module.path}: imports {', '.join(sorted(found))}"


def check_vllm(modules: list[Module]) -> Iterator[str]:
    return check_outside(modules, {"vllm"}, "host")


def check_processes(modules: list[Module]) -> Iterator[str]:
    return check_outside(modules, {"subprocess", "multiprocessing"}, "compile")


def check_environment(modules: list[Module]) -> Iterator[str]:
    names = {"os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.unsetenv"}
    for module in modules:
        used = {ast.unparse(node) for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)}
        if names & (used | set(imported_names(module.tree))) and module.unit != "settings":
            yield f"{module.path}: reads the environment"


def check_metric_names(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        texts = (node for node in ast.walk(module.tree) if isinstance(node, ast.Constant))
        for text in texts:
            if module.unit != "metrics" and isinstance(text.value, str) and METRIC_NAME.fullmatch(text.value):
                yield f"{module.path}:{text.lineno}: names the metric {text.value}"


def check_sizes(modules: list[Module]) -> Iterator[str]:
    host = 0
    for module in modules:
        lines = len(module.source.splitlines())
        host += lines if module.unit == "host" else 0
        if lines > MODULE_LINES:
            yield f"{module.path}: {lines} lines, more than {MODULE_LINES}"
    if host > HOST_LINES:
        yield f"host: {host} lines, more than {HOST_LINES}"


Check = Callable[[list[Module]], Iterator[str]]
CHECKS: list[Check] = [
    check_direction,
    check_vllm,
    check_processes,
    check_environment,
    check_metric_names,
    check_sizes,
]


@pytest.mark.parametrize("check", CHECKS)
def test_package_keeps_rule(check: Check, root: Path) -> None:
    modules = read_package(root / PACKAGE)
    assert len(modules) > 10
    assert list(check(modules)) == []


BREACHES: list[tuple[Check, dict[str, str], str]] = [
    (check_direction, {"errors.py": f"import {PACKAGE}.service"}, "errors imports service"),
    (check_direction, {"engines/x.py": f"def f():\n    from {PACKAGE} import host"}, "engines imports host"),
    (check_direction, {"__init__.py": f"from {PACKAGE} import errors"}, "imports errors"),
    (check_direction, {"errors.py": "from .grammar import GrammarSpec"}, "relative import"),
    (check_direction, {"utils.py": ""}, "no place"),
    (
        check_direction,
        {"cache/a.py": f"import {PACKAGE}.compile.b", "compile/b.py": f"import {PACKAGE}.cache.a"},
        "import cycle",
    ),
    (check_vllm, {"service.py": "from vllm.config import VllmConfig"}, "imports vllm"),
    (check_vllm, {"cli/check.py": "def f():\n    import vllm"}, "imports vllm"),
    (check_vllm, {"plugin.py": "import importlib\nimportlib.import_module('vllm.envs')"}, "imports vllm"),
    (check_processes, {"cache/store.py": "import subprocess"}, "imports subprocess"),
    (check_processes, {"service.py": "from multiprocessing import connection"}, "imports multiprocessing"),
    (check_environment, {"plugin.py": "import os\nx = os.environ['A']"}, "reads the environment"),
    (check_environment, {"host/flags.py": "from os import getenv"}, "reads the environment"),
    (check_metric_names, {"service.py": "x = 'vllm_grammar_cache_hits'"}, "names the metric"),
    (check_sizes, {"schema/a.py": "\n" * (MODULE_LINES + 1)}, "more than 400"),
    (check_sizes, {"host/a.py": "\n" * 360, "host/b.py": "\n" * 360}, "more than 700"),
]


@pytest.mark.parametrize(("check", "files", "complaint"), BREACHES)
def test_breach_is_seen(check: Check, files: dict[str, str], complaint: str, tmp_path: Path) -> None:
    for name, source in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source, encoding="utf-8")
    assert any(complaint in line for line in check(read_package(tmp_path)))


def test_what_the_rules_allow(tmp_path: Path) -> None:
    files = {
        "host/flags.py": "from vllm.config import VllmConfig",
        "compile/pool.py": "import multiprocessing",
        "settings.py": "import os\nx = os.environ",
        "metrics.py": "x = 'vllm_grammar_cache_hits'",
        "service.py": f"from {PACKAGE} import __version__, engines\nx = '{PACKAGE}'",
        "__init__.py": "__version__ = '1'",
    }
    for name, source in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source, encoding="utf-8")
    modules = read_package(tmp_path)
    assert [line for check in CHECKS for line in check(modules)] == []
