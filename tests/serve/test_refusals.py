"""Bad requests: each its own 400 that says where and why, and nobody else notices."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.client import ENDPOINTS, Answer, Endpoint, ask, body_for, send
from tests.serve.conftest import Served
from tests.serve.metrics import await_samples
from tests.serve.refusals import MARKER, OPTIONS, OTHER_KINDS, SCHEMAS, Refusal
from vllm_grammar_backend.errors import ErrorCode

pytestmark = pytest.mark.server
MODELS = ("noise",)

EVERYWHERE = SCHEMAS | OTHER_KINDS
NEIGHBOUR: dict[str, Any] = {"structured_outputs": {"choice": ["fine"]}, "max_tokens": 10}
SECONDS_OF_COMPILING: dict[str, Callable[[str], Any]] = {
    "guidance": lambda name: {"type": "string", "allOf": [{"pattern": f"{name}.*b{i}.*c"} for i in range(30)]},
    "xgrammar": lambda name: {"enum": [f"{name} number {i:06}" for i in range(8_000)]},
}
"""A schema of its own for each name, since a second one would only be looked up."""


def check(answer: Answer, expected: Refusal) -> None:
    """Status, OpenAI shape, code first, keyword and pointer in text and `param`, and nothing of the text sent."""
    assert answer.status == 400, answer.body
    assert MARKER not in answer.body
    error = answer.error
    assert {"message", "type", "param", "code"} <= error.keys(), answer.body
    assert error["code"] == 400
    if expected.code is not None:
        assert error["message"].startswith(f"{expected.code}: "), error
    elif expected.keyword is not None:
        assert error["message"].split(":")[0] in set(ErrorCode), error
    if expected.keyword is not None:
        assert repr(expected.keyword) in error["message"], error
    if expected.pointer is not None:
        assert error["param"] == expected.pointer
        assert repr(expected.pointer) in error["message"], error
    elif expected.code is ErrorCode.UNSUPPORTED_OPTION and expected.keyword is not None:
        assert error["param"] == expected.keyword


def check_unharmed(served: Served) -> None:
    assert served.server.healthy()
    assert ask(served.server.client, "chat", **NEIGHBOUR).only.text == "fine"


@contextmanager
def neighbour(served: Served) -> Iterator[list[str]]:
    """A tenant whose small requests and health checks run all the while; yields what went wrong for it."""
    wrong: list[str] = []
    stop = threading.Event()

    def run() -> None:
        with served.server.connect() as client:
            while not stop.is_set():
                answer = ask(client, "completions", **NEIGHBOUR)
                if answer.status != 200 or answer.only.text != "fine":
                    wrong.append(answer.body)
                if client.get("/health").status_code != 200:
                    wrong.append("not healthy")

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield wrong
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_bad_constraint_is_a_400_that_says_where_and_why(served: Served, name: str) -> None:
    expected = EVERYWHERE[name]
    check(ask(served.server.client, "chat", **expected.fields), expected)
    check_unharmed(served)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_would_break_a_constraint_is_a_400(served: Served, name: str, endpoint: Endpoint) -> None:
    check(ask(served.server.client, endpoint, **OPTIONS[name].fields), OPTIONS[name])
    check_unharmed(served)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("name", ["malformed-deep", "dangling", "contains", "2-MB", "regex-unclosed", "tag-unknown"])
def test_a_stream_is_refused_with_the_same_status(served: Served, name: str, endpoint: Endpoint) -> None:
    expected = EVERYWHERE[name]
    whole = ask(served.server.client, endpoint, **expected.fields)
    stream = ask(served.server.client, endpoint, stream=True, **expected.fields)
    check(whole, expected)
    check(stream, expected)
    assert whole.error == stream.error


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_response_format_is_refused_alike(served: Served, endpoint: Endpoint) -> None:
    expected = SCHEMAS["malformed-deep"]
    schema = expected.fields["structured_outputs"]["json"]
    check(ask(served.server.client, endpoint, json_schema=schema), expected)


@pytest.mark.parametrize("pattern", ["(a{1000}){1000}", "((a*)*)*b", "(a|aa)+$", "(.*)*x"])
def test_a_regex_that_explodes_is_answered_or_refused(served: Served, pattern: str) -> None:
    answer = ask(served.server.client, "chat", structured_outputs={"regex": pattern}, max_tokens=8)
    if answer.status == 200:
        served.judge.check("regex", pattern, answer.only)
    else:
        check(answer, Refusal({}, keyword="regex"))
    check_unharmed(served)


def test_choices_may_come_twice(served: Served) -> None:
    assert ask(served.server.client, "chat", structured_outputs={"choice": ["a", "a"]}).only.text == "a"


def test_a_refusal_is_the_same_the_second_time(served: Served) -> None:
    fields = SCHEMAS["contains"].fields
    first, second = (ask(served.server.client, "chat", **fields) for _ in range(2))
    assert first.error == second.error


def test_everything_bad_at_once_harms_no_neighbour(served: Served) -> None:
    work = [(ENDPOINTS[index % 3], refusal) for index, refusal in enumerate([*EVERYWHERE.values()] * 3)]

    def one(item: tuple[Endpoint, Refusal]) -> Answer:
        return ask(served.server.client, item[0], **item[1].fields)

    with neighbour(served) as wrong, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(one, work))
    assert wrong == []
    for (_, expected), answer in zip(work, answers, strict=True):
        check(answer, expected)


def test_a_client_that_leaves_while_its_schema_is_compiled_harms_nobody(served: Served) -> None:
    headers = {"Content-Type": "application/json"}
    leaving = httpx.Timeout(30, read=0.05)
    small = {"enum": [f"value {i}" for i in range(50)]}
    with neighbour(served) as wrong:
        for attempt in range(4):
            schema = SECONDS_OF_COMPILING[served.backend](f"attempt {attempt}")
            content = json.dumps(body_for("chat", json_schema=schema, max_tokens=40)).encode()
            with served.server.connect() as client, pytest.raises(httpx.ReadTimeout):
                client.post("/v1/chat/completions", content=content, headers=headers, timeout=leaving)
        choice = ask(served.server.client, "chat", json_schema=small, max_tokens=40).only
    assert wrong == []
    served.judge.check_json(small, choice)


def workers(group: int) -> dict[int, float]:
    """The compile workers among a server's processes, and the CPU seconds of each."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            name, _, fields = (process / "stat").read_text().partition("(")[2].rpartition(") ")
            if name == "grammar-worker" and int(fields.split()[2]) == group:
                found[int(process.name)] = sum(map(int, fields.split()[11:13])) / os.sysconf("SC_CLK_TCK")
    return found


def test_killed_workers_are_noticed_by_nobody(served: Served) -> None:
    client, group = served.server.client, served.server.group
    before = await_samples(client, lambda now: now.get("workers 0") == 2)
    schema = SECONDS_OF_COMPILING[served.backend]("killed")
    with neighbour(served) as wrong, ThreadPoolExecutor(1) as threads:
        idle = workers(group)
        assert len(idle) == 2
        dear = threads.submit(ask, client, "chat", json_schema=schema, max_tokens=40)
        while not any(spent > idle[pid] + 0.1 for pid, spent in workers(group).items()):
            assert not dear.done()
            time.sleep(0.01)
        for pid in idle:
            os.kill(pid, signal.SIGKILL)
        assert ask(client, "chat", structured_outputs={"choice": ["compiled after that"]}).only.text
        assert dear.result().status in (200, 400), "worked on again"
    assert wrong == []
    restarts = before.get("worker_restarts_total 0", 0) + 2
    await_samples(client, lambda now: now["workers 0"] == 2 and now.get("worker_restarts_total 0", 0) >= restarts)
    assert not workers(group).keys() & idle.keys()


def _sequences(path: Path) -> list[tuple[str, dict[str, Any]]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(row["expectation"], row["spec"]) for row in rows if row["kind"] == "request"]


def test_recorded_requests_end_as_they_should(served: Served, cases_file: Path) -> None:
    found = _sequences(cases_file)
    assert found
    for expectation, spec in found:
        bodies = [body_for("chat", **{"max_tokens": 20, **fields}) for fields in spec.get("sequence", [spec])]
        answers = [send(served.server.client, "chat", body) for body in bodies]
        statuses = [answer.status for answer in answers]
        if expectation == "accept":
            assert set(statuses) <= {200, 400}, statuses
            assert statuses[0] == 200, answers[0].body
        else:
            assert 400 in statuses, statuses
            assert statuses[0] == statuses[-1] == 200, statuses
        for answer in answers:
            if answer.status == 400:
                check(answer, Refusal({}))
        check_unharmed(served)
