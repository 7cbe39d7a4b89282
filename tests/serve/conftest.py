"""One running server at a time, started at most once per backend and model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.prepare_model import prepare
from tests.serve.judge import Judge
from tests.serve.server import ROOT, Server

_ARGUMENTS: dict[str, list[str]] = {
    # All logprobs: what a mask forbids must be visible. The probe does nothing until it is asked.
    "noise": ["--max-logprobs", "-1", "--middleware", "tests.serve.lag.LagProbe"],
    # The request log is what must not hold schemas.
    "smollm2": ["--enable-log-requests"],
}


@dataclass(frozen=True)
class Served:
    """A running server and what judges its answers."""

    backend: str
    model: str
    server: Server
    judge: Judge


@pytest.fixture(scope="session")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server of one (backend, model); pytest groups tests by this parameter and ends one before the next."""
    backend, model = request.param
    directory: Path = prepare(model)
    arguments = ["--structured-outputs-backend", backend, *_ARGUMENTS[model]]
    logs = tmp_path_factory.mktemp(f"{backend}-{model}")
    with Server(directory, logs, arguments, environment={"PYTHONPATH": str(ROOT)}) as server:
        yield Served(backend, model, server, Judge(backend, directory))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`served` runs over both backends and both models, or over the models a module names in `MODELS`."""
    if "served" in metafunc.fixturenames:
        models = getattr(metafunc.module, "MODELS", tuple(_ARGUMENTS))
        pairs = [(backend, model) for model in models for backend in ("guidance", "xgrammar")]
        metafunc.parametrize("served", pairs, indirect=True, scope="session", ids=["-".join(pair) for pair in pairs])
