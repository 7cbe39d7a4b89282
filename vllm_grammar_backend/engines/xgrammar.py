"""The `xgrammar` backend: a pushdown automaton whose context-free share of the masks is made at compile time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from math import inf
from time import perf_counter
from typing import Any, Final

import numpy as np
import xgrammar as xgr

from vllm_grammar_backend.engines import ebnf, lark, structural_tag
from vllm_grammar_backend.engines.base import CompiledGrammar, Engine, Row
from vllm_grammar_backend.engines.vocabulary import Vocabulary
from vllm_grammar_backend.engines.whitespace import JSON_KINDS, BoundedMatcher, WhitespaceRows, has_bound, pack, unpack
from vllm_grammar_backend.engines.xgrammar_trie import tokenizer_info
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import Formats, GrammarKind, GrammarOptions, GrammarSpec, Whitespace
from vllm_grammar_backend.schema.json_text import to_ebnf

COMPILE_THREADS: Final = 1
"""Per compile. Several compiles run side by side, and none may take a core that the engine's own thread needs."""

REBUILT: Final = b"r"
"""Begins an artefact that is the text to compile."""
FSM_BYTES: Final = 3.5
"""Of what the library writes, for each rule and each character of the grammar."""
DUMPED_PER_S: Final = 10_000_000
"""Bytes written; reading is three times as fast."""
MOST_DUMPED: Final = 32_000_000
"""Bytes; writing takes 16 times as many of memory."""

_WHITESPACE: Final[dict[Whitespace, dict[str, Any]]] = {
    Whitespace.BOUNDED: {"any_whitespace": True},  # `BoundedMatcher` keeps the bound
    Whitespace.FLEXIBLE: {"any_whitespace": True},
    Whitespace.COMPACT: {"any_whitespace": False},
}
TAG_RUN: Final = 16
"""Most whitespace characters in a row in the JSON of a structural tag under `Whitespace.BOUNDED`. The library's own
bound, for nothing else tells where in a text the JSON is; each one costs 200 kB in every such grammar."""


class XgrammarEngine(Engine):
    """xgrammar bound to one vocabulary."""

    name = "xgrammar"
    distribution = "xgrammar"
    kinds = frozenset(GrammarKind)

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        # Compiled grammars are cached by us, by bytes; a second cache inside would hold what ours has evicted.
        self._tokenizer = tokenizer_info(vocabulary)
        self._compiler = xgr.GrammarCompiler(self._tokenizer, max_threads=COMPILE_THREADS, cache_enabled=False)
        self._whitespace = WhitespaceRows(vocabulary)
        self.has_text = bytes(bool(text) for text in vocabulary.texts)

    def compile(self, spec: GrammarSpec) -> XgrammarGrammar:
        lark.check_encodable(spec.text)
        began = perf_counter()
        try:
            compiled = _COMPILE[spec.kind](self._compiler, spec)
        except (RuntimeError, ValueError) as error:
            raise explain(str(error), spec.kind) from None
        grammar = XgrammarGrammar(self, compiled, self._whitespace if has_bound(spec) else None)
        if perf_counter() - began < grammar.dump_s:
            grammar.source = spec
        return grammar

    def load(self, artefact: bytes) -> XgrammarGrammar:
        if artefact[:1] == REBUILT:
            return self.compile(_read_source(artefact[1:]))
        bounded, text = unpack(artefact)
        try:
            compiled = xgr.CompiledGrammar.deserialize_json(text, self._tokenizer)
        except RuntimeError as error:  # the library's own errors are of that class
            raise ValueError(f"not a grammar that this version of xgrammar reads: {type(error).__name__}") from None
        return XgrammarGrammar(self, compiled, self._whitespace if bounded else None)


def _read_source(record: bytes) -> GrammarSpec:
    """Raises ValueError for anything but what `XgrammarGrammar.artefact` writes of its source."""
    found = json.loads(record)
    if not (isinstance(found, list) and len(found) == 4 and all(isinstance(part, str) for part in found)):
        raise ValueError("not an artefact")
    kind, text, whitespace, formats = found
    return GrammarSpec(GrammarKind(kind), text, GrammarOptions(Whitespace(whitespace), Formats(formats)))


def _json(compiler: xgr.GrammarCompiler, spec: GrammarSpec) -> xgr.CompiledGrammar:
    return compiler.compile_grammar(_schema_ebnf(spec.text, _WHITESPACE[spec.options.whitespace]))


def _schema_ebnf(schema: str, whitespace: dict[str, Any]) -> str:
    """The library's grammar for a schema, with exact strings: see `to_ebnf`."""
    # `strict_mode` would close every object and array that the schema leaves open.
    options: dict[str, Any] = {"strict_mode": False, **whitespace}
    return to_ebnf(schema, lambda text: str(xgr.Grammar.from_json_schema(text, **options)))


def _json_object(compiler: xgr.GrammarCompiler, spec: GrammarSpec) -> xgr.CompiledGrammar:
    return compiler.compile_json_schema('{"type":"object"}', strict_mode=False, **_WHITESPACE[spec.options.whitespace])


def _choice(compiler: xgr.GrammarCompiler, spec: GrammarSpec) -> xgr.CompiledGrammar:
    return compiler.compile_grammar(ebnf.choice(lark.choices(json.loads(spec.text))))


def _grammar(compiler: xgr.GrammarCompiler, spec: GrammarSpec) -> xgr.CompiledGrammar:
    if ebnf.is_ebnf(spec.text):
        return compiler.compile_grammar(spec.text)
    lark.refuse_inline_schema(spec.text)
    return compiler.compile_lark(spec.text)


def _structural_tag(compiler: xgr.GrammarCompiler, spec: GrammarSpec) -> xgr.CompiledGrammar:
    whitespace = _WHITESPACE[spec.options.whitespace]
    if spec.options.whitespace is Whitespace.BOUNDED:
        whitespace = {**whitespace, "max_whitespace_cnt": TAG_RUN}

    def open_schema(schema: object) -> str:
        try:
            return _schema_ebnf(json.dumps(schema), whitespace)
        except RuntimeError as error:
            raise explain(str(error), GrammarKind.JSON) from None

    return compiler.compile_structural_tag(structural_tag.to_xgrammar(json.loads(spec.text), open_schema))


_COMPILE: Final[dict[GrammarKind, Callable[[xgr.GrammarCompiler, GrammarSpec], xgr.CompiledGrammar]]] = {
    GrammarKind.JSON: _json,
    GrammarKind.JSON_OBJECT: _json_object,
    GrammarKind.REGEX: lambda compiler, spec: compiler.compile_regex(spec.text),
    GrammarKind.CHOICE: _choice,
    GrammarKind.GRAMMAR: _grammar,
    GrammarKind.STRUCTURAL_TAG: _structural_tag,
}


class XgrammarGrammar(CompiledGrammar):
    """The library's compiled grammar, which matchers only read."""

    def __init__(
        self, engine: XgrammarEngine, compiled: xgr.CompiledGrammar, whitespace: WhitespaceRows | None
    ) -> None:
        self.engine = engine
        self.compiled = compiled
        self.whitespace = whitespace
        self.source: GrammarSpec | None = None
        """What it was compiled of, where compiling that again is cheaper than what `serialize_json` writes."""
        self._nbytes = compiled.memory_size_bytes

    @property
    def nbytes(self) -> int:
        return self._nbytes + (len(self.source.text) if self.source else 0)

    @property
    def dump_s(self) -> float:
        """About how long writing it takes; infinite where that takes too much memory as well. The library writes the
        automaton of the whole grammar once for each rule, so an object of 1,000 optional properties, which has 7 MB
        and compiles in 0.3 s, becomes 635 MB in 67 s, and is read in 26 s.
        """
        text = str(self.compiled.grammar)
        size = self._nbytes + text.count("::=") * len(text) * FSM_BYTES
        return size / DUMPED_PER_S if size < MOST_DUMPED else inf

    def artefact(self) -> bytes:
        if self.source is not None:
            options = self.source.options
            record = [self.source.kind, self.source.text, options.whitespace, options.formats]
            return REBUILT + json.dumps(record, ensure_ascii=False).encode()
        return pack(self.compiled.serialize_json(), bounded=self.whitespace is not None)

    def matcher(self, stop_token_ids: Iterable[int], *, max_rollback: int = 0) -> XgrammarMatcher:
        del max_rollback  # the library keeps its whole history
        return XgrammarMatcher(self, xgr.GrammarMatcher(self.compiled), stop_token_ids)


class XgrammarMatcher(BoundedMatcher):
    """xgrammar's matcher, never shown a stop token: so it never terminates and its masks stay available."""

    def __init__(self, grammar: XgrammarGrammar, inner: xgr.GrammarMatcher, stop_token_ids: Iterable[int]) -> None:
        engine = grammar.engine
        super().__init__(engine.vocabulary, stop_token_ids, engine.has_text, grammar.whitespace)
        self._inner = inner

    def _consume(self, token: int) -> bool:
        return bool(self._inner.accept_token(token))

    def _undo(self, count: int) -> None:
        self._inner.rollback(count)

    def _rewind(self) -> None:
        self._inner.reset()

    def _compute(self, row: Row) -> None:
        # A numpy row goes in by DLPack, without a torch tensor.
        self._inner.fill_next_token_bitmask(row[np.newaxis, :])

    def _detach(self) -> None:
        super()._detach()
        self._inner = self._inner.fork()

    def _accepting(self) -> bool:
        return bool(self._inner.is_completed())


_STAMP: Final = re.compile(r"^\[[^\]]*\]\s*\S+?:\d+:\s*")


def explain(message: str, kind: GrammarKind) -> GrammarError:
    """Turn the library's message into an error of ours without a word of the client's text."""
    head = _STAMP.sub("", message)
    json_kind = kind in JSON_KINDS
    for needle, code, reason, keyword in _SCHEMA_REASONS if json_kind else _SYNTAX_REASONS:
        if needle in head:
            return GrammarError(code, reason, keyword=keyword or (None if json_kind else kind.value))
    if json_kind:
        return GrammarError(ErrorCode.UNSUPPORTED_SCHEMA, "xgrammar cannot compile this schema")
    return GrammarError(ErrorCode.INVALID_GRAMMAR, f"the {kind.value} cannot be parsed", keyword=kind.value)


_SCHEMA_REASONS: Final = (
    ("Failed to parse JSON", ErrorCode.INVALID_SCHEMA, "the schema is not JSON", None),
    ("Unsupported type", ErrorCode.INVALID_SCHEMA, "it names a type that JSON does not have", "type"),
    ("Cannot find field", ErrorCode.INVALID_SCHEMA, "a reference leads nowhere", "$ref"),
    ("cannot accept any value", ErrorCode.UNSATISFIABLE, "no document satisfies it", None),
    ("enum array must not be empty", ErrorCode.UNSATISFIABLE, "no document satisfies an empty enum", "enum"),
    ("Invalid range", ErrorCode.UNSATISFIABLE, "its bounds leave no value", None),
    ("egex", ErrorCode.UNSUPPORTED_SCHEMA, "xgrammar cannot read a regular expression used here", "pattern"),
)
_SYNTAX_REASONS: Final = (
    ("ookahead", ErrorCode.INVALID_GRAMMAR, "look-around is not supported", None),
    ("ookbehind", ErrorCode.INVALID_GRAMMAR, "look-around is not supported", None),
    ("Backreference", ErrorCode.INVALID_GRAMMAR, "back-references are not supported", None),
    ("null character", ErrorCode.INVALID_GRAMMAR, "it holds a NUL character", None),
    ("Unclosed '['", ErrorCode.INVALID_GRAMMAR, "a character class is not closed", None),
    ("is not defined", ErrorCode.INVALID_GRAMMAR, "it refers to a rule that is not defined", None),
    ("unknown name", ErrorCode.INVALID_GRAMMAR, "it refers to a rule that is not defined", None),
    ("multiple times", ErrorCode.INVALID_GRAMMAR, "a rule is defined twice", None),
    ("duplicate rule", ErrorCode.INVALID_GRAMMAR, "a rule is defined twice", None),
    ("root rule", ErrorCode.INVALID_GRAMMAR, "there is no rule named root", None),
    ("no start rule", ErrorCode.INVALID_GRAMMAR, "there is no start rule", None),
    ("not recognized", ErrorCode.UNSUPPORTED_KIND, "xgrammar has no such format", None),
    ("does not match any trigger", ErrorCode.INVALID_GRAMMAR, "a tag begins with none of the triggers", "triggers"),
)
