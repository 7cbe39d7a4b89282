"""What this vLLM is and has."""

from __future__ import annotations

from importlib import metadata
from typing import Final

from vllm_grammar_backend.pin import KEY

_GROUPS: Final = tuple(f"vllm.{kind}_plugins" for kind in ("general", "io_processor", "platform", "stat_logger"))
"""What loads unless VLLM_PLUGINS says otherwise; endpoint plugins load only where it names them."""


def rust_frontend() -> bool:
    """True if the front end written in Rust, which loads no plugin, would serve."""
    from vllm import envs

    return bool(envs.VLLM_USE_RUST_FRONTEND)


def plugin_allowed() -> bool:
    """True unless VLLM_PLUGINS, an allow-list, leaves us out."""
    from vllm import envs

    return envs.VLLM_PLUGINS is None or KEY in envs.VLLM_PLUGINS


def routes_on() -> bool:
    """True if vLLM loads our HTTP routes: it does so only when VLLM_PLUGINS names us."""
    from vllm import envs

    return envs.VLLM_PLUGINS is not None and KEY in envs.VLLM_PLUGINS


def plugins_value() -> str:
    """What VLLM_PLUGINS must be for the routes: it is an allow-list for every plugin, so all others are named too."""
    from vllm import envs

    installed = {point.name for group in _GROUPS for point in metadata.entry_points(group=group)}
    allowed = installed if envs.VLLM_PLUGINS is None else set(envs.VLLM_PLUGINS) & installed
    return ",".join(sorted(allowed | {KEY}))
