"""Everything an untrusted constraint needs before it can serve: vetting, lowering, verdict, compiling."""

from __future__ import annotations

import logging

import numpy as np

from vllm_grammar_backend.engines.base import CompiledGrammar, Engine
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import GrammarSpec
from vllm_grammar_backend.schema import prepare

logger = logging.getLogger("vllm.grammar_backend")


def build(spec: GrammarSpec, engine: Engine) -> CompiledGrammar:
    """Vet, lower and compile one constraint. The same for the server, `check` and tests.

    Raises:
        GrammarError: the verdict, where it is not "enforced".
    """
    try:
        grammar = engine.compile(prepare(spec, engine.name))
        _check_begin(grammar, engine, spec)
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


def _check_begin(grammar: CompiledGrammar, engine: Engine, spec: GrammarSpec) -> None:
    """Make the first mask: a grammar without any text, or whose library gives up there, would fail its request later.

    Raises:
        GrammarError: no token can begin a text, and the empty one is none.
    """
    matcher = grammar.matcher(engine.vocabulary.eos_ids)
    matcher.fill(np.empty(engine.vocabulary.row_width, dtype=np.int32))
    if matcher.dead_ends:
        raise GrammarError(ErrorCode.UNSATISFIABLE, "no text satisfies it", keyword=spec.kind.value)
