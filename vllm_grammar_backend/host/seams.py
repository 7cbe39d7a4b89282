"""The places where vLLM is wrapped, as records: what, why, what must be true of it, and when it can go."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from vllm_grammar_backend.errors import StartupError

Function = Callable[..., Any]

_MARK: Final = "_vllm_grammar_backend_original"


@dataclass(frozen=True, slots=True)
class Seam:
    """One wrapped function of vLLM."""

    target: str
    """`module:function` or `module:Class.method`."""
    parameters: str
    """Names the original must take, separated by spaces; they are bound by name."""
    wrap: Callable[[Function], Function]
    """`wrap(original)` is the replacement."""
    why: str
    remove_when: str = "vLLM has a registry of structured-output backends, asked before a request is scheduled"

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]


class SeamMovedError(StartupError):
    """A wrapped function is gone or takes other arguments: this vLLM is not supported."""


def install(seams: Iterable[Seam]) -> None:
    """Wrap every target that is not wrapped yet; doing it twice changes nothing.

    Raises:
        SeamMovedError: names each target that moved; nothing is wrapped then.
    """
    wanted = list(seams)
    problems = [problem for seam in wanted if (problem := probe(seam))]
    if problems:
        raise SeamMovedError("This vLLM does not fit this plugin version: " + "; ".join(problems) + ".")
    for seam in wanted:
        if not installed(seam):
            owner, attribute, raw = _find(seam)
            original = _function(raw)
            wrapper = functools.wraps(original)(seam.wrap(original))
            setattr(wrapper, _MARK, raw)
            setattr(owner, attribute, staticmethod(wrapper) if isinstance(raw, staticmethod) else wrapper)


def uninstall(seams: Iterable[Seam]) -> None:
    """Put the originals back."""
    for seam in seams:
        if installed(seam):
            owner, attribute, raw = _find(seam)
            setattr(owner, attribute, getattr(_function(raw), _MARK))


def probe(seam: Seam) -> str | None:
    """Why the seam cannot be used with this vLLM, or None."""
    try:
        _, _, raw = _find(seam)
    except (ImportError, AttributeError, OSError, RuntimeError) as error:  # importing a broken install raises these
        return f"{seam.target} is gone ({error})"
    missing = set(seam.parameters.split()) - set(inspect.signature(_function(raw)).parameters)
    return f"{seam.target} no longer takes {', '.join(sorted(missing))}" if missing else None


def installed(seam: Seam) -> bool:
    """True if the target is wrapped now."""
    return probe(seam) is None and hasattr(_function(_find(seam)[2]), _MARK)


def _find(seam: Seam) -> tuple[Any, str, Any]:
    module, _, path = seam.target.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, attribute = path.split(".")
    for name in classes:
        owner = getattr(owner, name)
    return owner, attribute, inspect.getattr_static(owner, attribute)


def _function(raw: Any) -> Function:
    function: Function = raw.__func__ if isinstance(raw, staticmethod) else raw
    return function
