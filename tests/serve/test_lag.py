"""Schemas do not hold up the event loop: its lag while they arrive, beside its lag under as many plain requests."""

from __future__ import annotations

import gzip
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.client import body_for
from tests.serve.conftest import Served
from tests.serve.lag import percentile
from tests.serve.refusals import OTHER_KINDS, SCHEMAS

pytestmark = [pytest.mark.server, pytest.mark.slow]
MODELS = ("noise",)
CLIENTS = 4
RATE_PER_S = 20.0
"""Of all clients together: about half of what two cores serve, so that queues do not measure each other."""
SECONDS = 30.0
WORST_EVERY = 50
"""One request in so many is of the worst kind, each in turn: a 2 MB body costs the HTTP layer alone 30 ms and more
of parsing, before anybody has looked for a schema in it."""
ALLOWED_MS = 5.0

Bodies = Iterator[bytes]


def _encode(**fields: Any) -> bytes:
    return json.dumps(body_for("completions", max_tokens=2, **fields)).encode()


def plain() -> Bodies:
    return cycle([_encode()])


def structured(corpus: Path) -> Bodies:
    """Schemas in the order of a seeded shuffle, each once, and the worst inputs between them."""
    with gzip.open(corpus, "rt", encoding="utf-8") as lines:
        schemas = [json.loads(line)["schema"] for line in lines]
    random.Random(5).shuffle(schemas)
    worst = cycle([_encode(**refusal.fields) for refusal in (SCHEMAS | OTHER_KINDS).values()])
    for index, schema in enumerate(schemas):
        yield next(worst) if index % WORST_EVERY == 0 else _encode(structured_outputs={"json": json.dumps(schema)})


def drive(served: Served, bodies: Bodies) -> list[float]:
    """Lags in ms while `bodies` are sent at the rate above from threads of this process."""
    lock = threading.Lock()
    end = time.monotonic() + SECONDS
    statuses: list[int] = []

    def client(number: int) -> None:
        with served.server.connect() as connection:
            due = time.monotonic() + number / RATE_PER_S
            while due < end:
                with lock:
                    body = next(bodies)
                time.sleep(max(0.0, due - time.monotonic()))
                statuses.append(_post(connection, body))
                due = max(due + CLIENTS / RATE_PER_S, time.monotonic())  # behind, it catches up with nothing

    served.server.client.get("/lag")
    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(client, range(CLIENTS)))
    assert {status for status in statuses if status not in (200, 400)} == set()
    assert len(statuses) > SECONDS * RATE_PER_S / 2, "the server did not keep up with the rate"
    lags: list[float] = served.server.client.get("/lag").json()
    return lags


def _post(connection: httpx.Client, body: bytes) -> int:
    return connection.post("/v1/completions", content=body, headers={"Content-Type": "application/json"}).status_code


def test_schemas_add_no_lag_to_the_event_loop(served: Served, maskbench_file: Path) -> None:
    measured: dict[str, list[float]] = {}
    runs: list[tuple[str, Callable[[], Bodies]]] = [
        ("plain", plain),
        ("schemas", lambda: structured(maskbench_file)),
    ]
    for name, bodies in runs:
        lags = measured[name] = drive(served, bodies())
        shares = ", ".join(f"p{share * 100:g} {percentile(lags, share):.2f}" for share in (0.5, 0.9, 0.99, 0.999))
        print(
            f"\n{served.backend}, {name}: event-loop lag in ms over {len(lags)} samples: {shares}, max {max(lags):.1f}"
        )
    more = percentile(measured["schemas"], 0.99) - percentile(measured["plain"], 0.99)
    assert more < ALLOWED_MS, f"p99 is {more:.1f} ms more than with plain requests"
