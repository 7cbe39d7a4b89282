"""`vllm-grammar`: what an operator asks without a server."""

from __future__ import annotations

import click

from vllm_grammar_backend import __version__
from vllm_grammar_backend.cli.check import check
from vllm_grammar_backend.cli.doctor import doctor
from vllm_grammar_backend.cli.prewarm import prewarm


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Pinned structured-output backends for vLLM."""


main.add_command(check)
main.add_command(doctor)
main.add_command(prewarm)
