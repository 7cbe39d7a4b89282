"""The front end: vets a constraint and lowers it to what the pinned backend enforces exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from vllm_grammar_backend.grammar import Formats, GrammarKind, GrammarSpec
from vllm_grammar_backend.schema import kinds, metaschema
from vllm_grammar_backend.schema.build import build
from vllm_grammar_backend.schema.document import parse
from vllm_grammar_backend.schema.guidance import GuidanceLowering
from vllm_grammar_backend.schema.lowering import Lowering
from vllm_grammar_backend.schema.node import render
from vllm_grammar_backend.schema.reasons import every
from vllm_grammar_backend.schema.structural_tag import lower_tag
from vllm_grammar_backend.schema.xgrammar import XgrammarLowering

_LOWERINGS: Final[dict[str, type[Lowering]]] = {"guidance": GuidanceLowering, "xgrammar": XgrammarLowering}


def prepare(spec: GrammarSpec, backend: str) -> GrammarSpec:
    """Vet `spec` and rewrite it for `backend`.

    Returns:
        A spec of the same kind and options whose text the backend's library takes and enforces exactly.

    Raises:
        GrammarError: it is malformed, unsatisfiable, too large, or has something the backend cannot enforce.
    """
    formats = spec.options.formats is Formats.ASSERT
    if spec.kind is GrammarKind.JSON:
        lowered = every(parse(spec.text), lambda schema: lower_schema(schema, backend, formats=formats))
        return replace(spec, text=_compact(lowered))
    if spec.kind is GrammarKind.REGEX:
        return replace(spec, text=kinds.regex(spec.text, backend))
    if spec.kind is GrammarKind.CHOICE:
        return replace(spec, text=kinds.choice(spec.text))
    if spec.kind is GrammarKind.GRAMMAR:
        return replace(spec, text=kinds.grammar(spec.text))
    if spec.kind is GrammarKind.STRUCTURAL_TAG:
        tag = lower_tag(
            spec.text,
            lambda schema: lower_schema(schema, backend, formats=formats),
            lambda source, place: kinds.regex(source, backend, place),
        )
        return replace(spec, text=_compact(tag))
    return spec


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def lower_schema(schema: Any, backend: str, *, formats: bool) -> Any:
    """One schema, parsed, to the schema that the backend's library is given."""
    draft = metaschema.draft_of(schema)
    metaschema.check(schema, draft)
    document = build(schema, draft, formats=formats)
    return render(_LOWERINGS[backend](document).lower())
