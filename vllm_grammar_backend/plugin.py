"""The entry points vLLM calls, both named `grammar_backend`."""

from __future__ import annotations


def register() -> None:
    """For `vllm.general_plugins`: vLLM calls it in every process, possibly more than once."""
    from vllm_grammar_backend.host import install_everywhere

    install_everywhere()


def endpoint_plugin() -> object:
    """For `vllm.endpoint_plugins`: called in API servers, only where VLLM_PLUGINS names `grammar_backend`."""
    from vllm_grammar_backend.http.routes import GrammarRoutes

    return GrammarRoutes()
