"""The entry points vLLM calls, both named `grammar_backend`."""

from __future__ import annotations


def register() -> None:
    """`vllm.general_plugins`: called in every process, possibly more than once; only the flags and the engine's seams."""
    from vllm_grammar_backend.host import install_everywhere

    install_everywhere()
