"""`--structured-outputs-backend` and `--grammar-config`, folded into `additional_config` when arguments are parsed."""

from __future__ import annotations

import functools
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any, Final

from vllm_grammar_backend import engines, pin
from vllm_grammar_backend.errors import StartupError
from vllm_grammar_backend.host import capabilities
from vllm_grammar_backend.host.seams import Function, Seam
from vllm_grammar_backend.settings import Settings


def _add_flags(original: Function) -> Function:
    def add_cli_args(parser: ArgumentParser) -> ArgumentParser:
        parser = original(parser)
        group = parser.add_argument_group(
            title="Grammar backend",
            description="Pinned structured outputs (vllm-grammar-backend). Without the first flag nothing changes.",
        )
        group.add_argument(
            "--structured-outputs-backend",
            metavar="{" + ",".join(engines.NAMES) + "}",
            default=None,
            help="Serve every structured output from this backend, and from no other.",
        )
        group.add_argument(
            "--grammar-config", metavar="FILE", default=None, help="YAML file of settings of the grammar backend."
        )
        parser.parse_known_args = _folding(parser, parser.parse_known_args)  # type: ignore[method-assign]
        return parser

    return add_cli_args


def _folding(parser: ArgumentParser, parse: Callable[..., Any]) -> Callable[..., Any]:
    """Spawned API servers build their configuration before plugins load: the flag must be in the namespace by then."""

    @functools.wraps(parse)
    def parse_known_args(*args: Any, **kwargs: Any) -> Any:
        namespace, rest = parse(*args, **kwargs)
        try:
            found = pin.fold(namespace)
            if found is not None:
                check(found, getattr(namespace, "structured_outputs_config", None))
        except StartupError as error:
            parser.exit(2, f"{parser.prog}: error: {error}\n")
        return namespace, rest

    return parse_known_args


def check(found: pin.Pin, structured_outputs_config: object) -> Settings:
    """Everything that must hold before anything starts. Raises StartupError."""
    return pin.check_startup(found, structured_outputs_config, rust_frontend=capabilities.rust_frontend())


def _pin_process(original: Function) -> Function:
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        from vllm_grammar_backend.host import install_pinned

        found = pin.Pin.find(self.additional_config)
        if found is not None:
            check(found, self.structured_outputs_config)
            install_pinned()
        config = original(self, *args, **kwargs)
        if found is not None:
            pin.check_model(config.model_config)
        pin.activate(found)
        return config

    return create_engine_config


SEAMS: Final = (
    Seam(
        "vllm.engine.arg_utils:EngineArgs.add_cli_args",
        "parser",
        _add_flags,
        "vLLM has no flag by which a plugin is switched on",
        "vLLM lets plugins add arguments",
    ),
    Seam(
        "vllm.engine.arg_utils:EngineArgs.create_engine_config",
        "self usage_context",
        _pin_process,
        "offline LLM(...) and spawned API servers parse no arguments; start-up is checked for them here",
    ),
)
