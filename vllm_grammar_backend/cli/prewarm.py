"""`vllm-grammar prewarm`: fill the artefact store before a server starts, or while others run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import click

from vllm_grammar_backend import engines, preload, settings
from vllm_grammar_backend.engines.vocabulary import from_directory
from vllm_grammar_backend.errors import GrammarError, StartupError
from vllm_grammar_backend.grammar import GrammarKind, GrammarOptions
from vllm_grammar_backend.preload import Wanted
from vllm_grammar_backend.service import GrammarService
from vllm_grammar_backend.settings import Settings

EXAMPLES = """\b
Examples:
  vllm-grammar prewarm --config grammar.yaml --backend xgrammar --model models/llama
  vllm-grammar prewarm --config grammar.yaml --backend guidance --model models/llama tenants/*.json
  vllm-grammar prewarm --config grammar.yaml --backend guidance --model models/llama --json all.jsonl
"""


@click.command(epilog=EXAMPLES)
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path(exists=True, dir_okay=False))
@click.option("--config", required=True, metavar="FILE", help="The server's settings file; it names the store.")
@click.option("--backend", required=True, type=click.Choice(engines.NAMES), help="The backend the server pins.")
@click.option(
    "--model",
    required=True,
    type=click.Path(exists=True, file_okay=False),
    help="The model's directory: what is stored is good for its vocabulary only.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per schema on standard output.")
def prewarm(files: tuple[str, ...], config: str, backend: str, model: str, *, as_json: bool) -> None:
    """Compile the fixed schemas of the settings and those of each FILE into the store that the settings name.

    A FILE is one JSON Schema, or, where it ends in .jsonl, one on each line. Exit status 1: some are declined.
    """
    try:
        found = settings.load(config)
        engines.check_version(backend, found.backend_version)
        if found.store.path is None:
            raise StartupError(f"{config} names no store: set store.path to a directory.")
        wanted = [*preload.fixed(found.fixed_schemas, _options(found), found.limits), *_read(files, found)]
        service = GrammarService.start(backend, from_directory(model), found)
    except StartupError as error:
        raise click.ClickException(str(error)) from None
    declined = 0
    with closing(service), click.progressbar(length=len(wanted), label="Compiling", file=sys.stderr) as bar:
        for name, spec, outcome in preload.outcomes(service, wanted):
            refusal = outcome if isinstance(outcome, GrammarError) else None
            declined += refusal is not None
            if as_json:
                verdict = {"verdict": "declined", **refusal.as_data()} if refusal else {"verdict": "enforced"}
                click.echo(json.dumps({"name": name, "digest": spec.digest if spec else None, **verdict}))
            elif refusal:
                click.echo(f"declined  {name}  {refusal}", err=True)
            bar.update(1)
    faults = service.statistics()["store_faults"]
    if faults:
        raise click.ClickException(f"The store {found.store.path} took not everything: {faults} faults.")
    click.echo(f"{len(wanted) - declined} of {len(wanted)} are in {found.store.path}", err=True)
    sys.exit(1 if declined else 0)


def _options(found: Settings) -> GrammarOptions:
    return GrammarOptions(found.whitespace, found.formats)


def _read(files: tuple[str, ...], found: Settings) -> Iterator[Wanted]:
    for file in files:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StartupError(f"{file} cannot be read: {error}") from None
        # Not `splitlines`: JSON strings may hold other characters that Python takes for the end of a line.
        named = _numbered(file, text.split("\n")) if file.endswith(".jsonl") else [(file, text)]
        for name, schema in named:
            yield name, preload.admitted(GrammarKind.JSON, schema, _options(found), found.limits)


def _numbered(file: str, lines: list[str]) -> list[tuple[str, str]]:
    return [(f"{file}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]
