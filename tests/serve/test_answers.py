"""Real requests to a real server: every finished answer is right, every other one is the beginning of a right one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.serve.client import ENDPOINTS, Answer, Endpoint, ask, body_for, send
from tests.serve.conftest import Served
from tests.serve.documents import BOUNDED, ENOUGH, KINDS, LEGACY_TAG, OPEN, TRIGGER
from tests.serve.judge import validate

pytestmark = pytest.mark.server


Asked = dict[str, tuple[Endpoint, dict[str, Any]]]
"""Requests by name: where they go and what is in them."""
WAYS: list[tuple[Endpoint, bool]] = [(endpoint, stream) for endpoint in ENDPOINTS for stream in (False, True)]


def every_way(name: str, **fields: Any) -> Asked:
    """A request to each endpoint, streaming and not."""
    return {f"{name}, {way[0]}, stream={way[1]}": (way[0], {"stream": way[1], **fields}) for way in WAYS}


def together(served: Served, asked: Asked) -> dict[str, Answer]:
    """The answers to these requests, sent at the same time: the real model is slow, and no slower for many."""
    with ThreadPoolExecutor(16) as threads:
        answers = threads.map(lambda way: ask(served.server.client, way[0], **way[1]), asked.values())
        return dict(zip(asked, answers, strict=True))


def test_a_schema_with_a_longest_document_is_always_finished(served: Served) -> None:
    options = {"temperature": 1.5, "seed": 1, "max_tokens": ENOUGH}
    asked: Asked = {name: ("chat", {"json_schema": schema, **options}) for name, schema in BOUNDED.items()}
    for name, answer in together(served, asked).items():
        assert answer.only.finish == "stop", name
        served.judge.check_json(BOUNDED[name], answer.only)


def test_an_open_schema_is_never_left(served: Served) -> None:
    options = {"temperature": 1.0, "max_tokens": 80}
    asked: Asked = {
        f"{name} {seed}": ("chat", {"json_schema": schema, "seed": seed, **options})
        for name, schema in OPEN.items()
        for seed in range(3)
    }
    for name, answer in together(served, asked).items():
        served.judge.check_json(OPEN[name.split()[0]], answer.only)


def test_every_endpoint_takes_a_response_format(served: Served) -> None:
    asked: Asked = {}
    for name in ("person", "keys", "scripts"):
        asked |= every_way(name, json_schema=BOUNDED[name], max_tokens=ENOUGH)
    for name, answer in together(served, asked).items():
        assert answer.only.finish == "stop", name
        served.judge.check_json(BOUNDED[name.split(",")[0]], answer.only)


def test_every_endpoint_takes_every_kind(served: Served) -> None:
    asked: Asked = {}
    for name, (kind, value) in KINDS.items():
        asked |= every_way(name, structured_outputs={kind: value}, temperature=1.5, max_tokens=ENOUGH)
    for name, answer in together(served, asked).items():
        kind, value = KINDS[name.split(",")[0]]
        assert answer.only.finish == "stop", name
        served.judge.check(kind, value, answer.only)
        assert kind != "choice" or answer.only.text in value, name


@pytest.mark.parametrize("strict", [True, False, None])
def test_strict_or_not_the_schema_is_enforced(served: Served, strict: bool | None) -> None:
    given = {"name": "answer", "strict": strict, "schema": BOUNDED["person"], "description": "a person"}
    body = body_for("chat", max_tokens=ENOUGH, response_format={"type": "json_schema", "json_schema": given})
    validate(BOUNDED["person"], send(served.server.client, "chat", body).only.text)


def test_json_object_gives_objects(served: Served) -> None:
    asked, form = every_way("object", max_tokens=60), {"type": "json_object"}
    for endpoint, fields in asked.values():
        fields.update({"text": {"format": form}} if endpoint == "responses" else {"response_format": form})
    for answer in together(served, asked).values():
        served.judge.check_json({"type": "object"}, answer.only)


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


def test_several_answers_to_one_request_do_not_share_a_matcher(served: Served) -> None:
    schema = BOUNDED["person"]
    ways = every_way("four", json_schema=schema, n=4, temperature=1.5, max_tokens=ENOUGH)
    asked = {name: way for name, way in ways.items() if way[0] != "responses"}
    for name, answer in together(served, asked).items():
        assert len(answer.choices) == 4, answer.body
        for choice in answer.choices:
            assert choice.finish == "stop", name
            served.judge.check_json(schema, choice)
        assert len({choice.text for choice in answer.choices}) > 1, name


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
