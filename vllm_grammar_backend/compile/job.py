"""Everything an untrusted constraint needs before it can serve: vetting, lowering, verdict, compiling."""

from __future__ import annotations

import logging
from math import inf

from vllm_grammar_backend.compile.walk import walk
from vllm_grammar_backend.engines.base import CompiledGrammar, Engine
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import GrammarSpec
from vllm_grammar_backend.schema import prepare

logger = logging.getLogger("vllm.grammar_backend")


def build(spec: GrammarSpec, engine: Engine, mask_budget_ms: float = inf) -> CompiledGrammar:
    """Vet, lower and compile one constraint, and walk its masks. The same for the server, `check` and tests.

    Raises:
        GrammarError: the verdict, where it is not "enforced".
    """
    try:
        grammar = engine.compile(prepare(spec, engine.name))
        walk(grammar, spec, engine.vocabulary, mask_budget_ms)
        return grammar
    except (GrammarError, MemoryError, OSError):
        raise
    except RecursionError:
        raise GrammarError(ErrorCode.TOO_COSTLY, "it refers to itself or nests too deeply to be worked on") from None
    except BaseException as error:
        # What an untrusted text can do to a parser has no end, and a library in Rust panics past Exception. The text
        # is at fault until shown otherwise: a server error would invite the client to send it again.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        logger.warning("Grammar %s: %s while it was worked on", spec.digest[:16], type(error).__name__)
        raise GrammarError(ErrorCode.UNSUPPORTED_SCHEMA, "it cannot be worked on by this server") from None
