"""The `guidance` backend: llguidance, an Earley parser over derivative-based lexemes that computes masks as it goes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, regex_to_lark

from vllm_grammar_backend.engines import ebnf, lark, tag_lark
from vllm_grammar_backend.engines.base import CompiledGrammar, Engine, Row
from vllm_grammar_backend.engines.vocabulary import Vocabulary
from vllm_grammar_backend.engines.whitespace import JSON_KINDS, BoundedMatcher, WhitespaceRows, has_bound, pack, unpack
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import GrammarKind, GrammarSpec

LIMITS: Final = LLParserLimits(
    max_items_in_row=2_000,  # Earley items for one byte of input; bounds ambiguity
    initial_lexer_fuel=1_000_000,  # regex nodes made while compiling; about 50,000 a millisecond
    step_lexer_fuel=200_000,  # regex nodes made for one mask; about 14,000 a millisecond
    step_max_items=50_000,  # Earley items for one mask; about 20,000 a millisecond
    max_lexer_states=250_000,  # for the whole life of a matcher; 1 to 2 kB each
    max_grammar_size=500_000,  # symbols in all productions
    precompute_large_lexemes=True,
    verbose_errors=False,  # the long form quotes the grammar
)
"""The library's own defaults, fixed here so that an upgrade cannot move them."""

_FLOOR_BYTES: Final = 40_000
_BYTES_PER_CHARACTER: Final = 50
"""Resident memory of one template, fitted over 358 schemas of MaskBench (165 kB at 3.2 kB of text on average)."""


class _TokenizerShape:
    """What llguidance's `TokenizerWrapper` asks of a tokenizer."""

    bos_token_id: ClassVar[None] = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = min(vocabulary.eos_ids)
        self.special_token_ids = [self.eos_token_id]
        self.tokens = vocabulary.texts

    def __call__(self, _text: str | bytes) -> list[int]:
        return []  # only asked for to force tokens, which the grammar header turns off


class GuidanceEngine(Engine):
    """llguidance bound to one vocabulary."""

    name = "guidance"
    distribution = "llguidance"
    kinds = frozenset(GrammarKind)

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._tokenizer = LLTokenizer(TokenizerWrapper(_TokenizerShape(vocabulary)))
        self._whitespace = WhitespaceRows(vocabulary)
        self.has_text = bytes(bool(text) for text in vocabulary.texts)

    def compile(self, spec: GrammarSpec) -> GuidanceGrammar:
        lark.check_encodable(spec.text)
        grammar = self._parse(_LARK[spec.kind](spec), bounded=has_bound(spec))
        if grammar.template.is_error():
            raise explain(grammar.template.get_error(), spec.kind)
        return grammar

    def load(self, artefact: bytes) -> GuidanceGrammar:
        bounded, text = unpack(artefact)
        grammar = self._parse(text, bounded=bounded)
        if grammar.template.is_error():
            raise ValueError("not a grammar that this version of llguidance reads")
        return grammar

    def _parse(self, text: str, *, bounded: bool) -> GuidanceGrammar:
        template = LLMatcher(self._tokenizer, text, log_level=0, limits=LIMITS)
        return GuidanceGrammar(self, template, text, self._whitespace if bounded else None)


def _grammar(spec: GrammarSpec) -> str:
    if ebnf.is_ebnf(spec.text):
        return ebnf.to_lark(spec.text)
    lark.refuse_inline_schema(spec.text)
    return lark.verbatim(spec.text)


_LARK: Final[dict[GrammarKind, Callable[[GrammarSpec], str]]] = {
    GrammarKind.JSON: lambda spec: lark.json_document(json.loads(spec.text), spec.options.whitespace),
    GrammarKind.JSON_OBJECT: lambda spec: lark.json_document({"type": "object"}, spec.options.whitespace),
    GrammarKind.REGEX: lambda spec: lark.one_terminal(lark.regex(spec.text, regex_to_lark)),
    GrammarKind.CHOICE: lambda spec: lark.choice(json.loads(spec.text)),
    GrammarKind.GRAMMAR: _grammar,
    GrammarKind.STRUCTURAL_TAG: lambda spec: tag_lark.to_lark(json.loads(spec.text), spec.options.whitespace),
}


class GuidanceGrammar(CompiledGrammar):
    """A matcher at the start state, never advanced; requests get deep copies (7 µs, at most 63 over MaskBench)."""

    def __init__(
        self, engine: GuidanceEngine, template: LLMatcher, text: str, whitespace: WhitespaceRows | None
    ) -> None:
        self.engine = engine
        self.template = template
        self.text = text
        self.whitespace = whitespace

    @property
    def nbytes(self) -> int:
        """An estimate: the library does not tell. See `_BYTES_PER_CHARACTER`."""
        return _FLOOR_BYTES + _BYTES_PER_CHARACTER * len(self.text)

    def artefact(self) -> bytes:
        return pack(self.text, bounded=self.whitespace is not None)

    def matcher(self, stop_token_ids: Iterable[int], *, max_rollback: int = 0) -> GuidanceMatcher:
        del max_rollback  # the library keeps its whole history
        return GuidanceMatcher(self, self.template.deep_copy(), stop_token_ids)


class GuidanceMatcher(BoundedMatcher):
    """llguidance's matcher. An unknown id would put it into a lasting error state, but it is never shown one."""

    def __init__(self, grammar: GuidanceGrammar, inner: LLMatcher, stop_token_ids: Iterable[int]) -> None:
        engine = grammar.engine
        super().__init__(engine.vocabulary, stop_token_ids, engine.has_text, grammar.whitespace)
        self._inner = inner

    def validate(self, tokens: Sequence[int]) -> int:
        if self.finished or self._bound is not None or not self._stops.isdisjoint(tokens):
            return super().validate(tokens)
        known = 0
        while known < len(tokens) and self._is_text(tokens[known]):
            known += 1
        return int(self._inner.validate_tokens(list(tokens[:known])))

    def _consume(self, token: int) -> bool:
        return bool(self._inner.try_consume_tokens([token]))

    def _undo(self, count: int) -> None:
        self._inner.rollback(count)

    def _rewind(self) -> None:
        self._inner.reset()

    def _compute(self, row: Row) -> None:
        self._inner.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)

    def _detach(self) -> None:
        super()._detach()
        self._inner = self._inner.deep_copy()

    def _accepting(self) -> bool:
        return self._inner.is_accepting() and not self._inner.is_error()


_KEYWORDS: Final = frozenset(
    (
        *("not", "if", "then", "else", "dependencies", "dependentRequired", "dependentSchemas"),
        *("uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems", "additionalItems"),
        *("propertyNames", "unevaluatedProperties", "minProperties", "maxProperties"),
        *("contentEncoding", "contentMediaType", "contentSchema"),
        *("$dynamicRef", "$recursiveRef", "$anchor", "$dynamicAnchor"),
    )
)
"""What the library may name as unimplemented; any other word in its message could be the client's."""
_UNIMPLEMENTED: Final = re.compile(r"Unimplemented keys: \[([^\]]*)\]")
_WORD: Final = re.compile(r'"([^"]+)"')


def explain(message: str, kind: GrammarKind) -> GrammarError:
    """Turn the library's message into an error of ours without a word of the client's text."""
    # Later lines quote the grammar.
    head = message.split("\n", 1)[0]
    for needle, code, reason, keyword in _SHARED_REASONS:
        if needle in head:
            return GrammarError(code, reason, keyword=keyword)
    if kind in JSON_KINDS or "compile JSON schema" in head:
        return _explain_schema(head)
    for needle, reason in _SYNTAX_REASONS:
        if needle in message:
            return GrammarError(ErrorCode.INVALID_GRAMMAR, reason, keyword=kind.value)
    return GrammarError(ErrorCode.INVALID_GRAMMAR, f"the {kind.value} cannot be parsed", keyword=kind.value)


def _explain_schema(head: str) -> GrammarError:
    if found := _UNIMPLEMENTED.search(head):
        named = [word for word in _WORD.findall(found[1]) if word in _KEYWORDS]
        keyword = named[0] if named else None
        return GrammarError(
            ErrorCode.UNSUPPORTED_SCHEMA, "guidance does not enforce a keyword used here", None, keyword
        )
    for needle, code, reason, keyword in _SCHEMA_REASONS:
        if needle in head:
            return GrammarError(code, reason, keyword=keyword)
    return GrammarError(ErrorCode.UNSUPPORTED_SCHEMA, "guidance cannot compile this schema")


_SHARED_REASONS: Final = (
    ("fuel", ErrorCode.TOO_COSTLY, "a regular expression in it is too large for the library's limits", None),
    ("too large", ErrorCode.TOO_COSTLY, "it is too large for the library's limits", None),
    ("too big", ErrorCode.TOO_COSTLY, "it is too large for the library's limits", None),
    ("too complex", ErrorCode.TOO_COSTLY, "it is too complex for the library's limits", None),
    ("too many", ErrorCode.TOO_COSTLY, "it is too large for the library's limits", None),
)
_SCHEMA_REASONS: Final = (
    ("oneOf", ErrorCode.UNSUPPORTED_SCHEMA, "guidance cannot show that the branches exclude each other", "oneOf"),
    ("Unknown format", ErrorCode.UNSUPPORTED_SCHEMA, "guidance does not know this format", "format"),
    ("nsatisfiable", ErrorCode.UNSATISFIABLE, "no document satisfies it", None),
    ("unsatisfiable", ErrorCode.UNSATISFIABLE, "no document satisfies it", None),
    (
        "min/maxProperties",
        ErrorCode.UNSUPPORTED_SCHEMA,
        "guidance counts properties only where all of them are required",
        "minProperties",
    ),
    ("circular references", ErrorCode.UNSUPPORTED_SCHEMA, "guidance takes no siblings of a circular reference", "$ref"),
    ("patternProperty", ErrorCode.UNSUPPORTED_SCHEMA, "two property patterns overlap", "patternProperties"),
    ("lookaround", ErrorCode.UNSUPPORTED_SCHEMA, "guidance has no look-around or inner anchors", "pattern"),
    ("look-around", ErrorCode.UNSUPPORTED_SCHEMA, "guidance has no look-around or inner anchors", "pattern"),
    ("regex", ErrorCode.UNSUPPORTED_SCHEMA, "guidance cannot read a regular expression used here", "pattern"),
    ("$ref", ErrorCode.UNSUPPORTED_SCHEMA, "guidance cannot follow a reference used here", "$ref"),
)
_SYNTAX_REASONS: Final = (
    ("look-around", "look-around is not supported"),
    ("lookaround", "anchors and word boundaries are only supported at the ends"),
    ("backreferences", "back-references are not supported"),
    ("unclosed character class", "a character class is not closed"),
    ("unclosed group", "a group is not closed"),
    ("unknown name", "it refers to a rule that is not defined"),
    ("no start", "it has no start rule"),
    ("duplicate", "a rule is defined twice"),
    ("nvalid regex", "a regular expression in it cannot be parsed"),
)
