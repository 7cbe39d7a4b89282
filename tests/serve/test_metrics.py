"""What an operator sees on `/metrics` of one server."""

from __future__ import annotations

import uuid

import pytest

from tests.serve.client import ask
from tests.serve.conftest import Served
from tests.serve.metrics import await_samples, samples
from vllm_grammar_backend import engines

pytestmark = pytest.mark.server
MODELS = ("noise",)


def test_requests_are_counted_where_they_end(served: Served) -> None:
    client, word = served.server.client, uuid.uuid4().hex
    before = await_samples(client, lambda now: "workers 0" in now)
    for _ in range(3):
        assert ask(client, "chat", structured_outputs={"choice": [word]}, max_tokens=60).only.text == word
    assert ask(client, "chat", structured_outputs={"json": {"const": word, "contains": 1}}).status == 400

    def grown(name: str, by: float) -> bool:
        return now.get(name, 0) - before.get(name, 0) >= by

    now = await_samples(client, lambda now: now["lookups_total 0 hit"] - before.get("lookups_total 0 hit", 0) >= 3)
    assert grown("lookups_total 0 miss", 1)
    assert grown("compile_seconds_count 0 ready", 1)
    assert grown("request_wait_seconds_count miss", 1)
    assert grown("request_wait_seconds_count hit", 2)
    assert grown("refusals_total invalid_schema", 1)
    assert grown("mask_step_seconds_count 0", 10)
    assert now["workers 0"] == 2
    assert now["queue_depth 0"] == 0
    assert now["unmasked_requests_total 0"] == 0
    assert now["cache_bytes 0"] > 0
    assert now[f"backend_info 0 {engines.require(served.backend)}"] == 1
    assert word not in client.get("/metrics").text


def test_there_are_few_of_them(served: Served) -> None:
    assert len(samples(served.server.client)) < 200
