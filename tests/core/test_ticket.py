"""The ticket that only the front end can write."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_grammar_backend.admission import admit
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import Formats, GrammarKind, GrammarOptions, Whitespace
from vllm_grammar_backend.pin import KEY
from vllm_grammar_backend.settings import Limits
from vllm_grammar_backend.ticket import Ticket, constraint, read, request_options

OPTIONS = GrammarOptions(Whitespace.FLEXIBLE, Formats.ANNOTATE)


def params(**fields: Any) -> SimpleNamespace:
    empty: dict[str, Any] = dict.fromkeys(GrammarKind)
    return SimpleNamespace(**{**empty, **fields})


def ticket_for(**fields: Any) -> Ticket:
    kind, value = constraint(params(**fields))
    return Ticket(admit(kind, value, OPTIONS, Limits()))


@pytest.mark.parametrize(
    "fields",
    [
        {"json": {"enum": ["é"]}},
        {"json_object": True},
        {"regex": "a|b"},
        {"choice": ["a"]},
        {"grammar": 'root ::= "a"'},
    ],
)
def test_it_crosses_a_process_boundary(fields: dict[str, Any]) -> None:
    ticket = Ticket(ticket_for(**fields).spec, "acme")
    there = read(json.loads(json.dumps(ticket)))
    assert there.spec == ticket.spec
    assert there.spec.digest == ticket.spec.digest
    assert there.tenant == "acme"


def test_a_client_cannot_write_one() -> None:
    with pytest.raises(GrammarError) as caught:
        Ticket.of({KEY: dict(ticket_for(regex="a"))})
    assert caught.value.code is ErrorCode.UNSUPPORTED_OPTION
    assert Ticket.of({KEY: ticket_for(regex="a")}) is not None
    assert Ticket.of({"other": 1}) is None
    assert Ticket.of(None) is None


def test_the_schema_is_not_in_its_repr() -> None:
    assert "secret" not in repr(ticket_for(json={"const": "secret"}))
    assert "secret" not in repr(ticket_for(json={"const": "secret"}).spec)


def test_it_survives_a_deep_copy() -> None:
    ticket = ticket_for(json={"const": 1})
    assert copy.deepcopy(ticket).spec == ticket.spec


@pytest.mark.parametrize("fields", [{}, {"json": {}, "regex": "a"}, {"json_object": False}])
def test_exactly_one_kind_is_asked_for(fields: dict[str, Any]) -> None:
    with pytest.raises(GrammarError):
        constraint(params(**fields))


@pytest.mark.parametrize("option", ["whitespace_pattern", "disable_additional_properties"])
def test_options_that_change_the_meaning_are_refused_by_name(option: str) -> None:
    with pytest.raises(GrammarError) as caught:
        request_options(params(json={}, **{option: r"\s" if option == "whitespace_pattern" else True}), OPTIONS)
    assert caught.value.keyword == option


def test_disable_any_whitespace_is_honoured() -> None:
    assert request_options(params(json={}, disable_any_whitespace=True), OPTIONS).whitespace is Whitespace.COMPACT
    assert request_options(params(json={}), OPTIONS) == OPTIONS
