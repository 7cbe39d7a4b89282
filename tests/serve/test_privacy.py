"""Schemas are private: none of their text reaches the log, whatever becomes of the request. Digests may."""

from __future__ import annotations

import json

import pytest

from tests.serve.client import ENDPOINTS, Endpoint, ask
from tests.serve.conftest import Served
from tests.serve.refusals import MARKER, OPTIONS, OTHER_KINDS, SCHEMAS

pytestmark = pytest.mark.server
MODELS = ("smollm2",)
"""The server that logs its requests."""

ACCEPTED = {
    "json": {
        "type": "object",
        "properties": {MARKER: {"enum": [MARKER]}},
        "required": [MARKER],
        "additionalProperties": False,
    },
    "regex": MARKER + "[0-9]",
    "choice": [MARKER],
    "grammar": f'root ::= "{MARKER}"',
    "structural_tag": json.dumps(
        {
            "type": "structural_tag",
            "format": {"type": "tag", "begin": MARKER, "content": {"type": "regex", "pattern": "a"}, "end": "b"},
        }
    ),
}


def check_log(served: Served) -> None:
    # One request further on, whatever there was to log has been written.
    assert ask(served.server.client, "chat", structured_outputs={"choice": ["x"]}).status == 200
    found = [line for line in served.server.text.splitlines() if MARKER in line]
    assert not found, found[:3]
    assert "StructuredOutputsParams(" in served.server.text, "the request log is not on: nothing was tested"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("kind", ACCEPTED)
def test_what_is_answered_is_not_in_the_log(served: Served, kind: str, endpoint: Endpoint) -> None:
    answer = ask(served.server.client, endpoint, structured_outputs={kind: ACCEPTED[kind]}, max_tokens=80)
    assert MARKER in answer.only.text, "the marker must be what the request is about"
    check_log(served)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_response_format_is_not_in_the_log(served: Served, endpoint: Endpoint) -> None:
    answer = ask(served.server.client, endpoint, json_schema=ACCEPTED["json"], max_tokens=80)
    assert MARKER in answer.only.text
    check_log(served)


def test_what_is_refused_is_neither_in_the_answer_nor_in_the_log(served: Served) -> None:
    with_marker = [
        refusal
        for refusal in (SCHEMAS | OTHER_KINDS | OPTIONS).values()
        if MARKER in json.dumps(refusal.fields, ensure_ascii=True)
    ]
    assert len(with_marker) > 15
    for refusal in with_marker:
        for stream in (False, True):
            answer = ask(served.server.client, "chat", stream=stream, **refusal.fields)
            assert answer.status == 400, answer.body
            assert MARKER not in answer.body
    check_log(served)
