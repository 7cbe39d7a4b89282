"""What a server would do with a constraint, on a vocabulary of single bytes: vet, lower, compile, walk a text."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tests.engines.vocabularies import SMALL, spell
from vllm_grammar_backend.engines import load
from vllm_grammar_backend.engines.base import CompiledGrammar, Engine
from vllm_grammar_backend.grammar import Formats, GrammarKind, GrammarOptions, GrammarSpec, Whitespace
from vllm_grammar_backend.schema import prepare

BACKENDS = ("guidance", "xgrammar")


@cache
def engine(backend: str) -> Engine:
    return load(backend, SMALL)


def spec_of(value: Any, kind: GrammarKind = GrammarKind.JSON, formats: Formats = Formats.ASSERT) -> GrammarSpec:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return GrammarSpec(kind, text, GrammarOptions(Whitespace.FLEXIBLE, formats))


def compiled(spec: GrammarSpec, backend: str) -> CompiledGrammar:
    return engine(backend).compile(prepare(spec, backend))


def accepts(grammar: CompiledGrammar, text: str | bytes) -> bool:
    """Every byte allowed, and the end after the last."""
    matcher = grammar.matcher(SMALL.eos_ids)
    return matcher.accept(spell(text)) and matcher.accepting


def lowered(schema: Any, backend: str, formats: Formats = Formats.ASSERT) -> Any:
    return json.loads(prepare(spec_of(schema, formats=formats), backend).text)
