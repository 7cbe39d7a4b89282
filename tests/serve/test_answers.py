"""Real requests to a real server: every finished answer is right, every other one is the beginning of a right one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.serve.client import ENDPOINTS, Answer, Choice, Endpoint, ask, body_for, send
from tests.serve.conftest import Served
from tests.serve.documents import BOUNDED, ENOUGH, KINDS, LEGACY_TAG, OPEN, TRIGGER
from tests.serve.judge import validate

pytestmark = pytest.mark.server


def together(served: Served, asked: dict[str, dict[str, Any]], endpoint: Endpoint = "chat") -> dict[str, Choice]:
    """The one choice of each of these requests, which are sent at the same time."""
    with ThreadPoolExecutor(16) as threads:
        answers = threads.map(lambda fields: ask(served.server.client, endpoint, **fields), asked.values())
        return {name: answer.only for name, answer in zip(asked, answers, strict=True)}


def test_a_schema_with_a_longest_document_is_always_finished(served: Served) -> None:
    options = {"temperature": 1.5, "seed": 1, "max_tokens": ENOUGH}
    asked = {name: {"json_schema": schema, **options} for name, schema in BOUNDED.items()}
    for name, choice in together(served, asked).items():
        assert choice.finish == "stop", name
        served.judge.check_json(BOUNDED[name], choice)


@pytest.mark.parametrize("name", OPEN)
def test_an_open_schema_is_never_left(served: Served, name: str) -> None:
    options = {"json_schema": OPEN[name], "temperature": 1.0, "max_tokens": 80}
    for choice in together(served, {f"{seed}": {"seed": seed, **options} for seed in range(3)}).values():
        served.judge.check_json(OPEN[name], choice)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_endpoint_takes_a_response_format(served: Served, endpoint: Endpoint, stream: bool) -> None:
    options = {"stream": stream, "max_tokens": ENOUGH}
    asked = {name: {"json_schema": BOUNDED[name], **options} for name in ("person", "keys", "scripts")}
    for name, choice in together(served, asked, endpoint).items():
        assert choice.finish == "stop", name
        served.judge.check_json(BOUNDED[name], choice)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_endpoint_takes_every_kind(served: Served, endpoint: Endpoint, stream: bool) -> None:
    options = {"stream": stream, "temperature": 1.5, "max_tokens": ENOUGH}
    asked = {name: {"structured_outputs": {kind: value}, **options} for name, (kind, value) in KINDS.items()}
    for name, choice in together(served, asked, endpoint).items():
        kind, value = KINDS[name]
        assert choice.finish == "stop", name
        served.judge.check(kind, value, choice)
        assert kind != "choice" or choice.text in value, name


@pytest.mark.parametrize("strict", [True, False, None])
def test_strict_or_not_the_schema_is_enforced(served: Served, strict: bool | None) -> None:
    given = {"name": "answer", "strict": strict, "schema": BOUNDED["person"], "description": "a person"}
    body = body_for("chat", max_tokens=ENOUGH, response_format={"type": "json_schema", "json_schema": given})
    validate(BOUNDED["person"], send(served.server.client, "chat", body).only.text)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_json_object_gives_objects(served: Served, endpoint: Endpoint, stream: bool) -> None:
    form: dict[str, Any] = {"response_format": {"type": "json_object"}}
    if endpoint == "responses":
        form = {"text": {"format": {"type": "json_object"}}}
    choice = ask(served.server.client, endpoint, stream=stream, max_tokens=60, **form).only
    served.judge.check_json({"type": "object"}, choice)


def test_the_older_form_of_a_tag_constrains_what_follows_its_trigger(served: Served) -> None:
    trigger = served.judge.byte_ids(TRIGGER)
    choice = ask(
        served.server.client,
        "chat",
        structured_outputs={"structural_tag": LEGACY_TAG},
        logit_bias={str(i): 100 for i in trigger},
        max_tokens=120,
    ).only
    assert choice.text[0] == TRIGGER, "the bias did not bring the trigger about"
    assert choice.text[1] != TRIGGER, "the bias still decides behind it"
    served.judge.check("structural_tag", LEGACY_TAG, choice)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_several_answers_to_one_request_do_not_share_a_matcher(
    served: Served, endpoint: Endpoint, stream: bool
) -> None:
    schema = BOUNDED["person"]
    answer = ask(
        served.server.client, endpoint, json_schema=schema, stream=stream, n=4, temperature=1.5, max_tokens=ENOUGH
    )
    assert len(answer.choices) == 4, answer.body
    for choice in answer.choices:
        assert choice.finish == "stop"
        served.judge.check_json(schema, choice)
    assert len({choice.text for choice in answer.choices}) > 1


def test_sixteen_at_once_over_twelve_schemas(served: Served) -> None:
    schemas = list(BOUNDED.values())[:12]
    work = [schemas[index % 12] for index in range(16)]

    def one(index: int) -> Answer:
        endpoint = ENDPOINTS[index % 3]
        return ask(served.server.client, endpoint, json_schema=work[index], stream=index % 2 == 0, max_tokens=ENOUGH)

    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(one, range(16)))
    for schema, answer in zip(work, answers, strict=True):
        assert answer.only.finish == "stop"
        served.judge.check_json(schema, answer.only)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_cut_is_told_from_an_end(served: Served, endpoint: Endpoint) -> None:
    schema = {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 20, "maxItems": 30}
    cut = ask(served.server.client, endpoint, json_schema=schema, max_tokens=5).only
    assert cut.finish == "length"
    served.judge.check_json(schema, cut)
    with pytest.raises(ValueError, match=r".+"):
        validate(schema, cut.text)


def test_a_hit_answers_as_a_miss_does(served: Served) -> None:
    schema = {"enum": ["only this"]}
    client = served.server.client
    first, second = (ask(client, "chat", json_schema=schema, temperature=0, seed=7).only for _ in range(2))
    assert first == second
    assert first.text == '"only this"'


def test_annotations_are_no_constraint(served: Served) -> None:
    schema = {**BOUNDED["colour"], "title": "T", "description": "D", "examples": ["red"], "$comment": "C", "x-own": 1}
    validate(schema, ask(served.server.client, "chat", json_schema=schema).only.text)
