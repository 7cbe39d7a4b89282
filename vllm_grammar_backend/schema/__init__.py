"""The front end: vets a constraint and lowers it to what the pinned backend enforces exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import Formats, GrammarKind, GrammarSpec
from vllm_grammar_backend.schema import metaschema
from vllm_grammar_backend.schema.build import build
from vllm_grammar_backend.schema.document import parse
from vllm_grammar_backend.schema.lowering import Lowering
from vllm_grammar_backend.schema.node import render
from vllm_grammar_backend.schema.guidance import GuidanceLowering
from vllm_grammar_backend.schema.xgrammar import XgrammarLowering

_LOWERINGS: Final[dict[str, type[Lowering]]] = {"guidance": GuidanceLowering, "xgrammar": XgrammarLowering}


def prepare(spec: GrammarSpec, backend: str) -> GrammarSpec:
    """Vet `spec` and rewrite it for `backend`.

    Returns:
        A spec of the same kind and options whose text the backend's library takes and enforces exactly.

    Raises:
        GrammarError: it is malformed, unsatisfiable, too large, or has something the backend cannot enforce.
    """
    if spec.kind is GrammarKind.JSON:
        schema = lower_schema(parse(spec.text), backend, formats=spec.options.formats is Formats.ASSERT)
        return replace(spec, text=json.dumps(schema, ensure_ascii=False, separators=(",", ":")))
    return spec


def lower_schema(schema: Any, backend: str, *, formats: bool) -> Any:
    draft = metaschema.draft_of(schema)
    metaschema.check(schema, draft)
    document = build(schema, draft, formats=formats)
    lowered = _LOWERINGS[backend](document).lower()
    if lowered.root.never:
        raise GrammarError(ErrorCode.UNSATISFIABLE, "no value is valid", "")
    return render(lowered)
