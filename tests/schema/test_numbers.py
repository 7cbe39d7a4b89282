"""Numbers come out as they were written, or the schema is declined: no library may round one."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.vocabularies import SMALL
from tests.schema.serving import BACKENDS, accepts, compiled, spec_of
from vllm_grammar_backend.engines.base import CompiledGrammar
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.schema import prepare

SAFE = 2**53 - 1
NUMBERS = st.one_of(
    st.integers(-SAFE, SAFE),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(-1000, 1000, places=4).map(float),
)


def only_text(grammar: CompiledGrammar) -> str:
    """What a grammar of one text makes of always taking the first token that is allowed."""
    matcher = grammar.matcher(SMALL.eos_ids)
    row = np.zeros(SMALL.row_width, dtype=np.int32)
    text = b""
    while not matcher.accepting:
        matcher.fill(row)
        token = int(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0])
        assert matcher.accept([token])
        text += SMALL.texts[token] or b""
    return text.decode()


@pytest.mark.parametrize("backend", BACKENDS)
@given(number=NUMBERS)
@settings(deadline=None)
def test_an_enumerated_number_is_written_exactly_or_declined(backend: str, number: float) -> None:
    with contextlib.suppress(GrammarError):
        assert json.loads(only_text(compiled(spec_of({"enum": [number]}), backend))) == number


@pytest.mark.parametrize("number", [0.1, -0.5, 2.25, 19.99, 1e-7, 123456.789])
def test_xgrammar_takes_the_shortest_spelling(number: float) -> None:
    grammar = compiled(spec_of({"enum": [number, f"{number:.17g}", {"a": number}]}), "xgrammar")
    assert accepts(grammar, json.dumps(number))
    assert accepts(grammar, json.dumps(f"{number:.17g}"))
    assert accepts(grammar, json.dumps({"a": number}))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"const": 2**53 + 1}, "/enum"),
        ({"enum": [1, [{"a": -(2**63)}]]}, "/enum"),
        ({"type": "integer", "minimum": 10**30}, "/minimum"),
        ({"properties": {"a": {"type": "number", "exclusiveMaximum": 2**60}}}, "/properties/a/exclusiveMaximum"),
    ],
)
def test_past_what_doubles_tell_apart(backend: str, schema: object, pointer: str) -> None:
    with pytest.raises(GrammarError) as caught:
        prepare(spec_of(schema), backend)
    assert caught.value.code is ErrorCode.UNSUPPORTED_SCHEMA
    assert caught.value.pointer in (pointer, pointer.replace("exclusiveM", "m"))


@pytest.mark.parametrize("backend", BACKENDS)
@given(data=st.data())
@settings(deadline=None, max_examples=30)
def test_bounds_of_integers(backend: str, data: st.DataObject) -> None:
    near = st.one_of(st.integers(-SAFE, SAFE), st.sampled_from([-SAFE, SAFE]), st.integers(-200, 200))
    low, high = sorted((data.draw(near), data.draw(near)))
    grammar = compiled(spec_of({"type": "integer", "minimum": low, "maximum": high}), backend)
    for bound in (low, high):
        for number in (bound - 1, bound, bound + 1, -bound, bound * 10, bound // 10):
            assert accepts(grammar, str(number)) == (low <= number <= high), number


@pytest.mark.parametrize("backend", BACKENDS)
def test_free_integers_have_any_number_of_digits(backend: str) -> None:
    assert accepts(compiled(spec_of({"type": "integer"}), backend), "123456789012345678901234567890")
