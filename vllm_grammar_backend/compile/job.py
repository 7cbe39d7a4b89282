"""Everything an untrusted constraint needs before it can serve: vetting, lowering, verdict, compiling."""

from __future__ import annotations

from vllm_grammar_backend.engines.base import CompiledGrammar, Engine
from vllm_grammar_backend.grammar import GrammarSpec
from vllm_grammar_backend.schema import prepare


def build(spec: GrammarSpec, engine: Engine) -> CompiledGrammar:
    """Vet, lower and compile one constraint. The same for the server, `check` and tests.

    Raises:
        GrammarError: the verdict, where it is not "enforced".
    """
    return engine.compile(prepare(spec, engine.name))
