"""The routes under /v1/grammars, with real engines' desks behind them instead of vLLM's sockets."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from fastapi import FastAPI
from starlette.testclient import TestClient

from tests.core.engine import Engine
from vllm_grammar_backend import settings as settings_file
from vllm_grammar_backend.admission import admit
from vllm_grammar_backend.engines.vocabulary import byte_vocabulary
from vllm_grammar_backend.grammar import GrammarKind, GrammarOptions
from vllm_grammar_backend.http.routes import GrammarRoutes
from vllm_grammar_backend.service import GrammarService

KEY = {"X-Admin-Key": "open-sesame"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
OTHER = {"type": "array", "items": {"enum": [1, 2]}}
DECLINED = {"properties": {"a": {"contains": {"const": 1}}}}


class Deployment:
    """Several ranks, and several front ends before them."""

    def __init__(self, file: Path, ranks: int = 1) -> None:
        settings = settings_file.load(str(file), {})
        self.engine = Engine(*(GrammarService.start("guidance", byte_vocabulary(), settings) for _ in range(ranks)))
        for desk in self.engine.desks:
            desk.open(GrammarOptions())
        self.file = file

    @property
    def services(self) -> list[GrammarService]:
        return [desk.service for desk in self.engine.desks]

    def front_end(self) -> TestClient:
        app, routes = FastAPI(), GrammarRoutes()
        routes.attach_router(app)
        config = SimpleNamespace(
            additional_config={"grammar_backend": {"backend": "guidance", "config": str(self.file)}},
            structured_outputs_config=None,
            model_config=SimpleNamespace(served_model_name="m"),
        )

        async def start() -> None:
            await routes.init_state(SimpleNamespace(vllm_config=config, engine_core=self.engine), app.state, None)

        app.router.on_startup.append(start)
        return TestClient(app, headers=KEY)


Deploy = Callable[..., Deployment]


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploy]:
    """Starts deployments with some settings, and ends them."""
    started: list[Deployment] = []

    def begin(ranks: int = 1, **fields: Any) -> Deployment:
        file = tmp_path / f"grammar-{len(started)}.yaml"
        file.write_text(yaml.safe_dump({"control": {"admin_key": "open-sesame"}, **fields}))
        started.append(Deployment(file, ranks))
        return started[-1]

    yield begin
    for deployment in started:
        deployment.engine.close()


def test_saved_changed_and_taken_away(deploy: Deploy) -> None:
    deployment = deploy(ranks=2)
    with deployment.front_end() as http, deployment.front_end() as another:
        first = http.put("/v1/grammars/acme/order", json={"json": SCHEMA})
        assert first.status_code == 201, first.text
        told = first.json()
        assert (told["tenant"], told["name"], told["kind"], told["verdict"]) == ("acme", "order", "json", "enforced")
        assert (told["backend"], told["version"]) == ("guidance", deployment.services[0].version)
        assert told["bytes"] > 0
        assert told["compile_ms"] > 0
        assert [rank["state"] for rank in told["ranks"]] == ["ready", "ready"]
        assert "text" not in told
        annotated = {**SCHEMA, "title": "an order"}
        again = another.put("/v1/grammars/acme/order", json={"json": json.dumps(annotated)})
        assert (again.status_code, again.json()["digest"]) == (200, told["digest"])
        changed = another.put("/v1/grammars/acme/order", json={"json": OTHER})
        assert changed.status_code == 201
        assert changed.json()["digest"] != told["digest"]
        found = http.get("/v1/grammars/acme/order").json()
        assert (found["digest"], json.loads(found["text"])) == (changed.json()["digest"], OTHER)
        assert http.delete("/v1/grammars/acme/order").status_code == 204
        assert another.delete("/v1/grammars/acme/order").status_code == 404
        assert another.get("/v1/grammars/acme/order").status_code == 404


def test_every_kind(deploy: Deploy) -> None:
    tag = {
        "type": "structural_tag",
        "triggers": ["<f"],
        "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    }
    bodies: list[dict[str, Any]] = [
        {"json": SCHEMA, "disable_any_whitespace": True},
        {"json_object": True},
        {"regex": "a+"},
        {"choice": ["a", "b"]},
        {"grammar": 'root ::= "a"'},
        {"structural_tag": tag},
    ]
    with deploy().front_end() as http:
        for number, body in enumerate(bodies):
            answer = http.put(f"/v1/grammars/acme/n{number}", json=body)
            assert answer.status_code == 201, answer.text
            assert answer.json()["kind"] in body


def test_the_old_one_stays_until_the_new_one_is_ready(deploy: Deploy) -> None:
    with deploy().front_end() as http:
        digest = http.put("/v1/grammars/acme/order", json={"json": SCHEMA}).json()["digest"]
        refused = http.put("/v1/grammars/acme/order", json={"json": DECLINED})
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["message"].startswith("unsupported_schema: 'contains' at '/properties/a/contains'")
        assert error["param"] == "/properties/a/contains"
        assert error["code"] == 400
        assert {key: error["reasons"][0][key] for key in ("code", "keyword", "pointer")} == {
            "code": "unsupported_schema",
            "keyword": "contains",
            "pointer": "/properties/a/contains",
        }
        assert http.get("/v1/grammars/acme/order").json()["digest"] == digest
        several: Any = {"properties": {name: {"contains": {}} for name in "abc"}}
        reasons = http.put("/v1/grammars/acme/order", json={"json": several}).json()["error"]["reasons"]
        assert [reason["pointer"] for reason in reasons] == [f"/properties/{name}/contains" for name in "abc"]


NO_CONSTRAINT = [
    b"",
    b"{",
    b"[]",
    b"1",
    b"{}",
    b'"json"',
    b"\xff",
    b"[" * 100_000,
    b'{"json": {}, "regex": "a"}',
    b'{"schema": {}}',
    b'{"json": null}',
    b'{"json": 5}',
    b'{"json": "{"}',
    b'{"json": {"a": NaN}}',
    b'{"json_object": false}',
    b'{"json_object": 7}',
    b'{"regex": ["a"]}',
    b'{"regex": "("}',
    b'{"choice": {"a": 1}}',
    b'{"choice": 7}',
    b'{"choice": []}',
    b'{"choice": [1]}',
    b'{"grammar": {}}',
    b'{"structural_tag": 5}',
    b'{"structural_tag": "x"}',
    b'{"regex": "a", "disable_any_whitespace": "perhaps"}',
    b'{"regex": "a", "whitespace_pattern": " "}',
    b'{"json": {"type": "string", "const": "\\ud800"}}',
    b'{"json": {"type": 7}}',
    b'{"\\ud800": 1}',
]


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    file = tmp_path_factory.mktemp("control") / "grammar.yaml"
    file.write_text("control: {admin_key: open-sesame}")
    deployment = Deployment(file)
    with deployment.front_end() as client:
        yield client
    deployment.engine.close()


@pytest.mark.parametrize("body", NO_CONSTRAINT, ids=lambda body: body[:40].decode(errors="replace"))
def test_what_is_no_constraint_is_refused_by_name(http: TestClient, body: bytes) -> None:
    answer = http.put("/v1/grammars/acme/bad", content=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["message"].startswith(error["reasons"][0]["code"] + ": ")
    assert http.get("/v1/grammars/acme/bad").status_code == 404


def test_a_body_is_bounded_before_it_is_parsed(http: TestClient) -> None:
    answer = http.put("/v1/grammars/acme/bad", content=(b'{"json": "' + b" " * 2**20 for _ in range(50)))
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("schema_too_large: ")


PATHS = ["a b/x", ".hidden/x", "a/%2e%2e", "a/b%2fc", "..%2f..%2fetc/x", "a/" + "x" * 65, "ä/x"]


@pytest.mark.parametrize("place", PATHS)
@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
def test_names_are_no_paths(http: TestClient, method: str, place: str) -> None:
    answer = http.request(method, f"/v1/grammars/{place}", content=b'{"regex": "a"}')
    assert answer.status_code in (400, 404, 405), answer.text
    if answer.status_code == 400:
        assert answer.json()["error"]["message"].startswith("unsupported_option: ")


@pytest.mark.parametrize("key", ["", "open", "open-sesame ", "ä"])
def test_only_with_the_key(http: TestClient, key: str) -> None:
    place = "/v1/grammars/acme/x"
    asked = [("PUT", place), ("GET", place), ("DELETE", place), ("GET", "/v1/grammars"), ("GET", "/v1/grammars/stats")]
    for method, path in asked:
        answer = http.request(method, path, headers={b"X-Admin-Key": key.encode()})
        assert answer.status_code == 401, (method, path)


def test_off_without_a_key(deploy: Deploy) -> None:
    with deploy(control={}).front_end() as http:
        assert http.get("/v1/grammars/stats").status_code == 404
        assert http.put("/v1/grammars/acme/x", json={"regex": "a"}).status_code == 404


def test_pages(deploy: Deploy) -> None:
    deployment = deploy(ranks=2)
    with deployment.front_end() as http:
        for number in range(5):
            for tenant in ("acme", "zeta"):
                assert (
                    http.put(f"/v1/grammars/{tenant}/n{number}", json={"regex": f"a{{{number + 1}}}"}).status_code
                    == 201
                )
        seen, cursor = [], None
        while True:
            answer = http.get("/v1/grammars", params={"limit": 3, **({"cursor": cursor} if cursor else {})}).json()
            seen += [(row["tenant"], row["name"]) for row in answer["grammars"]]
            assert all(len(row["ranks"]) == 2 and "text" not in row for row in answer["grammars"])
            cursor = answer["next"]
            if cursor is None:
                break
        assert seen == sorted((tenant, f"n{number}") for tenant in ("acme", "zeta") for number in range(5))
        of_one = http.get("/v1/grammars", params={"tenant": "zeta"}).json()
        assert {row["tenant"] for row in of_one["grammars"]} == {"zeta"}
        assert of_one["next"] is None
        deep = base64.urlsafe_b64encode(b"[" * 30_000).decode()
        for bad in ({"cursor": "x"}, {"cursor": "W10="}, {"cursor": deep}, {"tenant": "a b"}):
            assert http.get("/v1/grammars", params=bad).status_code == 400
        assert http.get("/v1/grammars", params={"limit": 0}).status_code == 422


def test_a_full_queue_says_when_to_come_again(deploy: Deploy) -> None:
    deployment = deploy(compile={"queue": 1, "workers": 1, "deadline_s": 60})
    dear = ({"type": "string", "allOf": [{"pattern": f"a.*b{each}.*c{i}"} for i in range(30)]} for each in range(3))
    (service,) = deployment.services

    def fill() -> None:
        service.ensure(admit(GrammarKind.JSON, next(dear), GrammarOptions(), service.settings.limits), "other")

    with deployment.front_end() as http:
        fill()
        while service.statistics()["waiting"]:
            pass
        fill()
        answer = http.put("/v1/grammars/acme/x", json={"regex": "a"})
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
        assert answer.json()["error"]["message"].startswith("grammar_unavailable: ")


def test_kept_over_a_restart_and_seen_by_another_server(deploy: Deploy, tmp_path: Path) -> None:
    store = {"path": str(tmp_path / "store")}
    first = deploy(store=store)
    with first.front_end() as http:
        told = http.put("/v1/grammars/acme/order", json={"json": SCHEMA}).json()
        assert told["kept"]
    first.engine.close()
    second, third = deploy(store=store), deploy(store=store, compile={"workers": 1})
    with second.front_end() as http, third.front_end() as other:
        assert http.get("/v1/grammars/acme/order").json()["digest"] == told["digest"]
        assert other.put("/v1/grammars/acme/order", json={"json": SCHEMA}).status_code == 200
        other.put("/v1/grammars/zeta/new", json={"regex": "a"})
        assert http.get("/v1/grammars/zeta/new").json()["ranks"][0]["state"] == "cold"
        assert http.put("/v1/grammars/zeta/new", json={"regex": "a"}).status_code == 200
        assert http.get("/v1/grammars/zeta/new").json()["ranks"][0]["state"] == "ready"


def test_without_a_store_nothing_is_said_to_be_kept(http: TestClient) -> None:
    assert http.put("/v1/grammars/acme/volatile", json={"regex": "a"}).json()["kept"] is False


def test_what_is_saved_is_a_hit(deploy: Deploy) -> None:
    deployment = deploy()
    with deployment.front_end() as http:
        http.put("/v1/grammars/acme/order", json={"json": SCHEMA})
        before = http.get("/v1/grammars/stats").json()["ranks"][0]
        (service,) = deployment.services
        assert service.ensure(admit(GrammarKind.JSON, SCHEMA, GrammarOptions(), service.settings.limits)).done()
        after = http.get("/v1/grammars/stats").json()["ranks"][0]
        assert (after["hits"], after["builds"]) == (before["hits"] + 1, before["builds"])
        (rank,) = http.get("/v1/grammars/acme/order").json()["ranks"]
        assert rank["hits"] == 1
        assert rank["idle_s"] >= 0
