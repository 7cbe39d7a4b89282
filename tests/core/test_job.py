"""Whatever a text does to a parser, the answer is a refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vllm_grammar_backend.compile import job
from vllm_grammar_backend.engines import load
from vllm_grammar_backend.engines.vocabulary import byte_vocabulary
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import GrammarKind, GrammarSpec


@pytest.mark.parametrize("backend", ["guidance", "xgrammar"])
@pytest.mark.parametrize(
    "text",
    ['{"$ref": "#/%ff"}', '{"$ref": "#/' + "a/" * 4000 + '"}', '"a"'],
)
def test_odd_texts_are_refused(backend: str, text: str) -> None:
    with pytest.raises(GrammarError) as caught:
        job.build(GrammarSpec(GrammarKind.JSON, text), load(backend, byte_vocabulary()))
    assert caught.value.http_status == 400


def _link(kind: str, name: str) -> dict[str, Any]:
    below: dict[str, Any] = {"$ref": f"#/$defs/{name}"}
    return {
        "plain": below,
        "siblings": {**below, "minLength": 1},
        "any": {"anyOf": [below, {"type": "null"}]},
        "object": {"type": "object", "properties": {"a": below}, "required": ["a"]},
        "array": {"type": "array", "items": below},
    }[kind]


@pytest.mark.parametrize("backend", ["guidance", "xgrammar"])
@pytest.mark.parametrize("kind", ["plain", "siblings", "any", "object", "array"])
@pytest.mark.parametrize("length", [100, pytest.param(3000, marks=pytest.mark.slow)])
def test_a_chain_of_references_is_served_or_refused(backend: str, kind: str, length: int) -> None:
    """A long one ends the process of a library that follows it by recursion."""
    links = {f"d{i}": _link(kind, f"d{i + 1}") for i in range(length)} | {f"d{length}": {"type": "string"}}
    spec = GrammarSpec(GrammarKind.JSON, json.dumps({"$ref": "#/$defs/d0", "$defs": links}))
    if length == 100:
        assert job.build(spec, load(backend, byte_vocabulary())).nbytes > 0
        return
    with pytest.raises(GrammarError) as caught:
        job.build(spec, load(backend, byte_vocabulary()))
    assert caught.value.code is ErrorCode.TOO_COSTLY


@pytest.mark.parametrize("backend", ["guidance", "xgrammar"])
@pytest.mark.parametrize("text", [r"root ::= [^\x00-\U0010FFFF]", "root ::= root", "start: start"])
def test_a_grammar_without_any_text_is_refused(backend: str, text: str) -> None:
    with pytest.raises(GrammarError) as caught:
        job.build(GrammarSpec(GrammarKind.GRAMMAR, text), load(backend, byte_vocabulary()))
    assert caught.value.code is ErrorCode.UNSATISFIABLE
    assert caught.value.keyword == "grammar"


@pytest.mark.parametrize(
    ("fault", "code"), [(RecursionError, ErrorCode.TOO_COSTLY), (KeyError, ErrorCode.UNSUPPORTED_SCHEMA)]
)
def test_a_parser_that_fails_is_no_server_error(
    monkeypatch: pytest.MonkeyPatch, fault: type[Exception], code: ErrorCode
) -> None:
    def broken(*_: object) -> None:
        raise fault

    monkeypatch.setattr(job, "prepare", broken)
    with pytest.raises(GrammarError) as caught:
        job.build(GrammarSpec(GrammarKind.REGEX, "a"), load("guidance", byte_vocabulary()))
    assert caught.value.code is code
