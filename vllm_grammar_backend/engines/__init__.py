"""Backends behind one contract. `load` is the only place that knows which there are."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final, cast

from packaging.specifiers import SpecifierSet

from vllm_grammar_backend.errors import StartupError

if TYPE_CHECKING:
    from vllm_grammar_backend.engines.base import Engine
    from vllm_grammar_backend.engines.vocabulary import Vocabulary

NAMES: Final = ("guidance", "xgrammar", "outlines", "glrmask")
"""What an operator may pin."""

_DISTRIBUTIONS: Final = {
    "guidance": "llguidance",
    "xgrammar": "xgrammar",
    "outlines": "outlines-core",
    "glrmask": "glrmask",
}
_CLASSES: Final = {"guidance": "GuidanceEngine", "xgrammar": "XgrammarEngine"}


def distribution(name: str) -> str:
    """The library's distribution on the package index, e.g. `llguidance` for `guidance`."""
    return _DISTRIBUTIONS[name]


def installed_version(name: str) -> str | None:
    """The version of a backend's library, None where it is not installed. Does not import it."""
    try:
        return version(_DISTRIBUTIONS[name])
    except PackageNotFoundError:
        return None


def require(name: str) -> str:
    """The version of a backend that can be pinned here.

    Raises:
        StartupError: no such backend, none yet, or its library is missing.
    """
    if name not in NAMES:
        raise StartupError(f"There is no backend {name!r}; pin one of {', '.join(NAMES)}.")
    if name not in _CLASSES:
        raise StartupError(f"This version has no {name} backend yet; pin one of {', '.join(_CLASSES)}.")
    found = installed_version(name)
    if found is None:
        raise StartupError(f"The {name} backend needs its library: install {_DISTRIBUTIONS[name]}, or pin another one.")
    return found


def check_version(name: str, specifier: str) -> None:
    """Raises StartupError where the installed library does not match the PEP 440 specifier; "" matches all."""
    found = require(name)
    if specifier and not SpecifierSet(specifier).contains(found, prereleases=True):
        raise StartupError(
            f"Backend {name!r} is version {found}, but backend_version asks for {specifier!r}: install a matching "
            "version, or record both with `vllm-grammar conformance`, review `vllm-grammar diff OLD.jsonl NEW.jsonl` "
            "and change the setting."
        )


def load(name: str, vocabulary: Vocabulary) -> Engine:
    """The engine of a backend, bound to a vocabulary. Imports the library on first use.

    Raises:
        StartupError: as `require`, or the library cannot take the vocabulary.
    """
    require(name)
    module = import_module(f"vllm_grammar_backend.engines.{name}")
    return cast("Engine", getattr(module, _CLASSES[name])(vocabulary))
