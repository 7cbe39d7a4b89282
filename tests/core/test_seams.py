"""Wrapping somebody else's functions: once, loudly, and back again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from vllm_grammar_backend.host.seams import Function, Seam, SeamMovedError, install, installed, probe, uninstall


@pytest.fixture
def host() -> Iterator[ModuleType]:
    module = ModuleType("seam_test_host")
    code = """
class Engine:
    def run(self, request, *, fast=False):
        return ("run", request, fast)
    @staticmethod
    def add(parser):
        return ("add", parser)
def helper(text):
    return text
"""
    exec(code, module.__dict__)  # noqa: S102 - a module of our own to wrap
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def loud(original: Function) -> Function:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return ("wrapped", original(*args, **kwargs))

    return wrapper


def seam(path: str, parameters: str = "") -> Seam:
    return Seam(f"seam_test_host:{path}", parameters, loud, "a test", "never")


SEAMS = (seam("Engine.run", "self request fast"), seam("Engine.add", "parser"), seam("helper", "text"))


def test_installed_twice_it_wraps_once_and_comes_off(host: ModuleType) -> None:
    install(SEAMS)
    install(SEAMS)
    assert host.Engine().run(1) == ("wrapped", ("run", 1, False))
    assert host.Engine.add(2) == host.Engine().add(2) == ("wrapped", ("add", 2))
    assert host.helper("x") == ("wrapped", "x")
    assert all(map(installed, SEAMS))
    uninstall(SEAMS)
    uninstall(SEAMS)
    assert host.Engine().run(1) == ("run", 1, False)
    assert host.Engine.add(2) == ("add", 2)
    assert host.helper("x") == "x"
    assert not any(map(installed, SEAMS))


@pytest.mark.parametrize(
    ("moved", "word"),
    [
        (seam("Engine.walk"), "walk"),
        (seam("Motor.run"), "Motor"),
        (seam("helper", "text limit"), "no longer takes limit"),
        (Seam("seam_test_nowhere:f", "", loud, "a test", "never"), "seam_test_nowhere"),
    ],
)
def test_a_moved_target_is_named_and_nothing_is_wrapped(host: ModuleType, moved: Seam, word: str) -> None:
    assert word in (probe(moved) or "")
    with pytest.raises(SeamMovedError, match=word):
        install((*SEAMS, moved))
    assert host.helper("x") == "x"
