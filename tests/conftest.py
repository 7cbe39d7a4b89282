"""Fixtures shared by the whole suite: where data that is not in the repository lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.prepare_model import prepare

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root."""
    return ROOT


def _data_file(name: str) -> Path:
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"test data {name} is not here: put it in ../shared/data, beside the checkout")
    return path


@pytest.fixture(scope="session")
def maskbench_file() -> Path:
    """JSON lines, gzipped, with `schema` and `tests[{valid, data}]`."""
    return _data_file("maskbench_dev.jsonl.gz")


@pytest.fixture(scope="session")
def cases_file() -> Path:
    """JSON lines: one small input each, with what must be accepted and rejected."""
    return _data_file("cases_dev.jsonl")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A directory with a real chat model of 49,152 tokens; converted on first use (about 40 s)."""
    return prepare("smollm2")


@pytest.fixture(scope="session")
def noise() -> Path:
    """A directory with a two-layer model of the same vocabulary whose logits are noise."""
    return prepare("noise")
