"""What decides whether an answer is right: `jsonschema` where it finished, our own matcher where it did not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
from cachetools import LRUCache
from jsonschema.validators import validator_for

from tests.serve.client import Choice
from vllm_grammar_backend import admission, engines
from vllm_grammar_backend.compile.job import build
from vllm_grammar_backend.engines.base import CompiledGrammar, Matcher
from vllm_grammar_backend.engines.vocabulary import end_ids, from_tokenizer
from vllm_grammar_backend.grammar import GrammarKind, GrammarOptions, GrammarSpec
from vllm_grammar_backend.settings import Limits


class Judge:
    """One backend with one model's vocabulary, in the test's own process."""

    def __init__(self, backend: str, model: Path) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
        generation = json.loads((model / "generation_config.json").read_text())
        self.vocabulary = from_tokenizer(tokenizer, len(tokenizer), end_ids(generation))
        self.engine = engines.load(backend, self.vocabulary)
        self._grammars: LRUCache[GrammarSpec, CompiledGrammar] = LRUCache(64)
        self._byte_ids = {text[0]: i for i, text in enumerate(self.vocabulary.texts) if len(text) == 1}

    def matcher(self, kind: str, value: object, stops: Sequence[int] = ()) -> Matcher:
        """A matcher as the server would make it. Raises GrammarError where the server would refuse."""
        spec = admission.admit(GrammarKind(kind), value, GrammarOptions(), Limits())
        if spec not in self._grammars:
            self._grammars[spec] = build(spec, self.engine)
        return self._grammars[spec].matcher({*self.vocabulary.eos_ids, *stops})

    def byte_ids(self, text: str) -> list[int]:
        """`text` as single-byte tokens."""
        return [self._byte_ids[byte] for byte in text.encode()]

    def check_json(self, schema: object, choice: Choice) -> None:
        """A finished answer parses and validates; every answer is one the matcher allows."""
        if choice.finish == "stop":
            validate(schema, choice.text)
        self.check("json", schema, choice)

    def check(self, kind: str, value: object, choice: Choice) -> None:
        """By the matcher's word: a finished answer is a whole document, another one the beginning of one."""
        assert choice.finish in ("stop", "length"), choice
        matcher = self.matcher(kind, value)
        # Cut off inside a character, a text ends in U+FFFD.
        text = choice.text if choice.finish == "stop" else choice.text.rstrip("\ufffd")
        self._follow(matcher, self._tokenizer.encode(text, add_special_tokens=False), choice)
        if choice.token_ids is not None:
            matcher.reset()
            self._follow(matcher, choice.token_ids, choice)

    def _follow(self, matcher: Matcher, tokens: list[int], choice: Choice) -> None:
        allowed = matcher.validate(tokens)
        assert allowed == len(tokens), f"the grammar forbids token {allowed} of {choice}"
        matcher.accept(tokens)
        assert choice.finish == "length" or matcher.accepting, f"stopped too early: {choice}"


def validate(schema: object, text: str) -> None:
    """Raises unless `text` is JSON that satisfies `schema`, formats included where `jsonschema` knows them."""
    document = json.loads(text, parse_constant=_refuse)
    assert isinstance(schema, dict | bool)
    checker = validator_for(schema, default=jsonschema.Draft202012Validator)
    checker(schema, format_checker=checker.FORMAT_CHECKER).validate(document)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
