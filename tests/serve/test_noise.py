"""Two hundred requests over fifty real schemas to a model whose logits are noise, sixteen at a time."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.client import Answer, ask
from tests.serve.conftest import Served
from tests.serve.judge import validate

pytestmark = [pytest.mark.server, pytest.mark.slow]
MODELS = ("noise",)
SCHEMAS = 50
REQUESTS = 200
PATIENCE_S = 600.0
"""Not what is tested here: on xgrammar some of these schemas take half a minute to compile, stock or ours."""
LEAST_FINISHED = 40
"""Noise rarely closes an object: fewer would mean that the masks forbid ends."""


def admitted(client: httpx.Client, corpus: Path) -> list[Any]:
    """The first schemas of a seeded shuffle that the server takes."""
    with gzip.open(corpus, "rt", encoding="utf-8") as lines:
        schemas = [json.loads(line)["schema"] for line in lines]
    random.Random(2).shuffle(schemas)
    found: list[Any] = []

    def takes(schema: Any) -> bool:
        answer = ask(client, "completions", structured_outputs={"json": json.dumps(schema)}, max_tokens=1)
        assert answer.status in (200, 400), answer.body
        return answer.status == 200

    with ThreadPoolExecutor(4) as threads:
        while len(found) < SCHEMAS:
            some, schemas = schemas[:SCHEMAS], schemas[SCHEMAS:]
            found += [schema for schema, taken in zip(some, threads.map(takes, some), strict=True) if taken]
    return found[:SCHEMAS]


def test_every_answer_is_right_or_the_beginning_of_one(served: Served, maskbench_file: Path) -> None:
    def one(index: int) -> Answer:
        # Text, not an object: what a schema leaves to the order of its keys must reach the server as it is here.
        constraint = {"json": json.dumps(schemas[index % SCHEMAS])}
        options: dict[str, Any] = {"temperature": 1.5, "seed": index}
        return ask(client, "completions", structured_outputs=constraint, max_tokens=512, **options)

    with served.server.connect(PATIENCE_S) as client, ThreadPoolExecutor(16) as threads:
        schemas = admitted(client, maskbench_file)
        answers = list(threads.map(one, range(REQUESTS)))
    print(f"\n{served.backend}: {dict(Counter(a.choices[0].finish if a.choices else a.status for a in answers))}")
    assert {answer.status for answer in answers} == {200}, [a.body for a in answers if a.status != 200]
    finished = 0
    for index, answer in enumerate(answers):
        schema = schemas[index % SCHEMAS]
        served.judge.check("json", json.dumps(schema), answer.only)
        if answer.only.finish == "stop":
            finished += 1
            validate(schema, answer.only.text)
    assert finished >= LEAST_FINISHED
