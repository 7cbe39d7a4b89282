"""`vllm-grammar check`: the verdict a server would give, before it is asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from vllm_grammar_backend import engines, preload, settings
from vllm_grammar_backend.engines.vocabulary import byte_vocabulary, from_directory
from vllm_grammar_backend.errors import GrammarError, StartupError
from vllm_grammar_backend.grammar import GrammarKind, GrammarOptions
from vllm_grammar_backend.service import GrammarService

EXAMPLES = """\b
Examples:
  vllm-grammar check order.json invoice.json --backend guidance
  vllm-grammar check phone.txt --kind regex --backend xgrammar
  cat order.json | vllm-grammar check - --backend xgrammar --json
"""


@click.command(epilog=EXAMPLES)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--backend", required=True, type=click.Choice(engines.NAMES), help="The backend the server pins.")
@click.option(
    "--kind",
    default="json",
    show_default=True,
    type=click.Choice(["json", "regex", "grammar", "choice", "structural_tag"]),
    help="What the files hold: a JSON Schema, a regex, a grammar, a JSON list of strings, a structural tag.",
)
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, file_okay=False),
    help="Directory of the model's tokenizer; without it, single bytes are the vocabulary.",
)
@click.option("--grammar-config", metavar="FILE", help="The server's settings file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per file instead of a line of text.")
def check(
    files: tuple[str, ...], backend: str, kind: str, tokenizer: str | None, grammar_config: str | None, *, as_json: bool
) -> None:
    """Print `enforced`, or `declined` and why, for each FILE (`-` is standard input).

    Exit 1 if any is declined, 2 if any cannot be read.
    """
    try:
        found = settings.load(grammar_config)
        engines.check_version(backend, found.backend_version)
        service = GrammarService.start(backend, from_directory(tokenizer) if tokenizer else byte_vocabulary(), found)
    except StartupError as error:
        raise click.ClickException(str(error)) from None
    texts = {file: _read(file) for file in files}
    known = {file: text for file, text in texts.items() if text is not None}
    declined = False
    with closing(service):
        for file, verdict in _verdicts(known, GrammarKind(kind), service):
            declined |= verdict["verdict"] == "declined"
            if as_json:
                click.echo(json.dumps({"file": file, "backend": backend, "version": service.version, **verdict}))
            else:
                click.echo(_line(file, verdict))
    sys.exit(2 if len(known) < len(texts) else 1 if declined else 0)


def _verdicts(
    texts: dict[str, str], kind: GrammarKind, service: GrammarService
) -> Iterator[tuple[str, dict[str, Any]]]:
    found = service.settings
    options = GrammarOptions(found.whitespace, found.formats)
    wanted = ((file, preload.admitted(kind, text, options, found.limits)) for file, text in texts.items())
    for file, spec, outcome in preload.outcomes(service, wanted):
        verdict: dict[str, Any] = {"verdict": "enforced"}
        if isinstance(outcome, GrammarError):
            first, *_ = reasons = [reason.as_data() for reason in outcome.reasons]
            verdict = {"verdict": "declined", **first, "errors": reasons}
        yield file, {**verdict, "digest": spec.digest if spec else None}


def _read(file: str) -> str | None:
    """The text of a file; None, and a line on standard error, where it cannot be read."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        click.echo(f"{file} cannot be read: {error}", err=True)
        return None


def _line(file: str, verdict: dict[str, Any]) -> str:
    if verdict["verdict"] == "enforced":
        return f"enforced  {file}  {verdict['digest'][:16]}"
    first, *others = [str(GrammarError.from_data(reason)) for reason in verdict["errors"]]
    return "\n".join([f"declined  {file}  {first}", *(f"          and: {other}" for other in others)])
