"""Whatever a text does to a parser, the answer is a refusal."""

from __future__ import annotations

import contextlib
import json

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


@pytest.mark.parametrize("backend", ["guidance", "xgrammar"])
def test_a_long_chain_of_references_is_served_or_refused(backend: str) -> None:
    links = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}", "minLength": i} for i in range(1500)}
    spec = GrammarSpec(GrammarKind.JSON, json.dumps({"$ref": "#/$defs/d0", "$defs": links}))
    # Anything but a GrammarError fails the test.
    with contextlib.suppress(GrammarError):
        assert job.build(spec, load(backend, byte_vocabulary())).nbytes > 0


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
