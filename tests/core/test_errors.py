"""Errors are data that survive the trip between processes."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from vllm_grammar_backend.errors import ErrorCode, GrammarError, pointer

MORE = (GrammarError(ErrorCode.INVALID_SCHEMA, "too", ""), GrammarError(ErrorCode.UNAVAILABLE, "as well"))


@pytest.mark.parametrize("more", [(), MORE])
@pytest.mark.parametrize("code", ErrorCode)
def test_round_trips(code: ErrorCode, more: tuple[GrammarError, ...]) -> None:
    error = GrammarError(code, "it is so", "/properties/a~1b", "oneOf", "Do that.", more)
    for twin in (
        error.anew(),
        GrammarError.from_data(json.loads(json.dumps(error.as_data()))),
        pickle.loads(pickle.dumps(error)),  # noqa: S301 - our own bytes
        copy.copy(error),
    ):
        assert twin.as_data() == error.as_data()
        assert str(twin) == str(error)
        assert [str(reason) for reason in twin.reasons] == [str(error), *map(str, more)]
    assert str(error) == f"{code}: 'oneOf' at '/properties/a~1b': it is so. Do that."


def test_what_may_succeed_later_is_retryable() -> None:
    found = {code: GrammarError(code, "x").http_status for code in ErrorCode if GrammarError(code, "x").retryable}
    assert found == {ErrorCode.UNAVAILABLE: 503, ErrorCode.OVER_QUOTA: 429}
    assert {GrammarError(code, "x").http_status for code in ErrorCode} - set(found.values()) == {400}


def test_pointer_escapes() -> None:
    assert pointer("properties", "a/b", "~", 0) == "/properties/a~1b/~0/0"
    assert pointer() == ""
