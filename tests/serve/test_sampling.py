"""A constraint composes with every sampling option, and none of them becomes a way out of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serve.client import ask
from tests.serve.conftest import Served
from tests.serve.documents import BOUNDED, ENOUGH, KINDS

pytestmark = pytest.mark.server
MODELS = ("noise",)
"""Logits that are noise ask for illegal tokens at every step."""

OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "hot": {"temperature": 2},
    "top-k": {"temperature": 2, "top_k": 3},
    "top-k-1": {"temperature": 2, "top_k": 1},
    "top-p": {"temperature": 2, "top_p": 0.2},
    "min-p": {"temperature": 2, "min_p": 0.3},
    "presence": {"presence_penalty": 2},
    "frequency": {"frequency_penalty": -2},
    "repetition": {"repetition_penalty": 1.8},
    "repetition-less": {"repetition_penalty": 0.3},
    "bad-words": {"bad_words": ["name", "age", "the", "true"]},
    "seed": {"seed": 7},
    "logprobs": {"logprobs": 5},
    "all": {
        "temperature": 1.8,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.01,
        "presence_penalty": 1,
        "frequency_penalty": 1,
        "repetition_penalty": 1.2,
        "seed": 3,
        "min_tokens": 10,
        "bad_words": ["name"],
    },
}


@pytest.mark.parametrize("option", OPTIONS)
def test_answers_stay_right_under(served: Served, option: str) -> None:
    for name in ("person", "either"):
        schema = BOUNDED[name]
        fields = {"max_tokens": ENOUGH, **OPTIONS[option]}
        choice = ask(served.server.client, "completions", json_schema=schema, **fields).only
        assert choice.finish == "stop"
        served.judge.check_json(schema, choice)


def test_a_bias_towards_illegal_tokens_is_without_effect(served: Served) -> None:
    illegal = [*served.judge.byte_ids("x!]"), *served.judge.vocabulary.eos_ids]
    bias = {str(token): 100 for token in illegal}
    choice = ask(served.server.client, "completions", structured_outputs={"regex": "[0-9]{12}"}, logit_bias=bias).only
    served.judge.check("regex", "[0-9]{12}", choice)


def test_a_bias_against_the_only_legal_token_is_without_effect(served: Served) -> None:
    bias = {str(token): -100 for token in served.judge.byte_ids("a")}
    choice = ask(served.server.client, "completions", structured_outputs={"regex": "ba"}, logit_bias=bias).only
    assert choice.text == "ba"


def test_a_bias_among_legal_tokens_decides(served: Served) -> None:
    bias = {str(token): 100 for token in served.judge.byte_ids("7")}
    choice = ask(served.server.client, "completions", structured_outputs={"regex": "[0-9]{6}"}, logit_bias=bias).only
    assert choice.text == "777777"


@pytest.mark.parametrize("kind", ["choice", "regex", "ebnf", "tag"])
@pytest.mark.parametrize("options", [{"ignore_eos": True}, {"min_tokens": 100}], ids=["ignore-eos", "min-tokens"])
def test_nothing_but_end_tokens_follows_the_end(served: Served, kind: str, options: dict[str, Any]) -> None:
    name, value = KINDS[kind]
    choice = ask(served.server.client, "completions", structured_outputs={name: value}, max_tokens=120, **options).only
    served.judge.check(name, value, choice)
    assert choice.token_ids is not None
    text = b"".join(served.judge.vocabulary.texts[token] for token in choice.token_ids)
    matcher = served.judge.matcher(name, value)
    assert matcher.accept(served.judge.byte_ids(text.decode()))
    assert matcher.accepting, "the document never ended"
    # vLLM itself lets `min_tokens` go where only end tokens are left.
    assert len(choice.token_ids) == 120 or "ignore_eos" not in options


def test_ignore_eos_is_no_way_out_of_a_schema(served: Served) -> None:
    schema = BOUNDED["colour"]
    choice = ask(served.server.client, "chat", json_schema=schema, ignore_eos=True, max_tokens=60).only
    assert choice.finish == "length"
    served.judge.check_json(schema, choice)
    assert choice.text.rstrip() in {'"red"', '"green"', '"blue"'}


def test_a_stop_string_ends_the_answer_inside_the_document(served: Served) -> None:
    choice = ask(served.server.client, "completions", structured_outputs={"choice": ["yes it is"]}, stop=["it"]).only
    assert (choice.text, choice.finish) == ("yes ", "stop")
    kept = ask(
        served.server.client,
        "completions",
        structured_outputs={"choice": ["yes it is"]},
        stop=["it"],
        include_stop_str_in_output=True,
    ).only
    assert kept.text == "yes it"


def test_a_stop_token_is_allowed_only_where_the_document_may_end(served: Served) -> None:
    (stop,) = served.judge.byte_ids("R")
    bias = {str(stop): 100}
    choice = ask(
        served.server.client,
        "completions",
        structured_outputs={"regex": "[a-z]{4,6}"},
        stop_token_ids=[stop],
        logit_bias=bias,
    ).only
    assert choice.finish == "stop"
    assert choice.token_ids is not None
    assert choice.token_ids[-1] == stop
    matcher = served.judge.matcher("regex", "[a-z]{4,6}", stops=[stop])
    assert matcher.accept(choice.token_ids)


def test_a_stop_token_that_the_grammar_needs_cannot_be_had(served: Served) -> None:
    (stop,) = served.judge.byte_ids("a")
    choice = ask(
        served.server.client, "completions", structured_outputs={"choice": ["b", "c"]}, stop_token_ids=[stop]
    ).only
    assert choice.text in ("b", "c")


def test_bad_words_that_could_leave_no_token_are_refused_by_name(served: Served) -> None:
    answer = ask(served.server.client, "completions", structured_outputs={"regex": "a"}, bad_words=["a"])
    assert answer.status == 400
    assert answer.error["param"] == "bad_words"
    assert answer.error["message"].startswith("unsupported_option: ")


def test_a_stop_token_that_leaves_no_token_ends_the_answer_and_is_named(served: Served) -> None:
    (stop,) = served.judge.byte_ids("a")
    options: dict[str, Any] = {"stop_token_ids": [stop], "include_stop_str_in_output": True}
    response = served.server.complete(structured_outputs={"regex": "a"}, **options)
    assert response.status_code == 200
    (choice,) = response.json()["choices"]
    assert (choice["finish_reason"], choice["stop_reason"], choice["text"]) == ("stop", stop, "a")


def test_the_same_seed_gives_the_same_answer(served: Served) -> None:
    fields: dict[str, Any] = {"json_schema": BOUNDED["person"], "temperature": 2, "max_tokens": ENOUGH}
    first, again = (ask(served.server.client, "completions", seed=11, **fields).only for _ in range(2))
    assert first == again
    others = {ask(served.server.client, "completions", seed=seed, **fields).only.text for seed in range(4)}
    assert len(others) > 1
