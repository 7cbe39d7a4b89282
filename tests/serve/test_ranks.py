"""Two data-parallel ranks behind two API servers, and what a killed deployment leaves to the next one."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.prepare_model import prepare
from tests.serve.client import ask
from tests.serve.metrics import await_samples
from tests.serve.server import Server

pytestmark = [pytest.mark.server, pytest.mark.slow]

ADMIN = "open-sesame"
SCHEMA = {"type": "array", "items": {"enum": ["saved", "ahead"]}, "minItems": 1, "maxItems": 2}


def served(tmp_path: Path, *arguments: str) -> Server:
    settings = {"control": {"admin_key": ADMIN}, "store": {"path": str(tmp_path / "store")}}
    (tmp_path / "grammar.yaml").write_text(json.dumps(settings))
    pinned = ["--structured-outputs-backend", "guidance", "--grammar-config", str(tmp_path / "grammar.yaml")]
    return Server(prepare("noise"), tmp_path, [*pinned, *arguments], environment={"VLLM_PLUGINS": "grammar_backend"})


def control(server: Server, method: str, path: str, **fields: Any) -> httpx.Response:
    return server.client.request(method, f"/v1/grammars{path}", headers={"X-Admin-Key": ADMIN}, **fields)


def test_ranks_agree_and_a_kill_loses_nothing(tmp_path: Path) -> None:
    with served(tmp_path, "--data-parallel-size", "2", "--api-server-count", "2") as server:
        saved = control(server, "PUT", "/acme/words", json={"json": SCHEMA})
        assert saved.status_code == 201, saved.text
        assert [rank["state"] for rank in saved.json()["ranks"]] == ["ready", "ready"]
        assert sorted(rank["engine"] for rank in saved.json()["ranks"]) == [0, 1]
        assert [control(server, "PUT", "/acme/words", json={"json": SCHEMA}).status_code for _ in range(4)] == [200] * 4

        def one(number: int) -> Any:
            return ask(server.client, "chat", json_schema=SCHEMA, seed=number, max_tokens=60).only

        with ThreadPoolExecutor(8) as threads:
            for choice in threads.map(one, range(24)):
                assert choice.finish == "stop"
                assert set(json.loads(choice.text)) <= {"saved", "ahead"}
        hits = [rank["hits"] for rank in control(server, "GET", "/acme/words").json()["ranks"]]
        assert min(hits) > 0, "both ranks have served it"
        assert sum(hits) >= 24
        seen = await_samples(server.client, lambda now: now.get("workers 0") == now.get("workers 1") == 2)
        ranks = control(server, "GET", "/stats").json()["ranks"]
        assert len({(rank["backend"], rank["settings"], rank["vocabulary"]) for rank in ranks}) == 1
        assert seen["lookups_total 0 miss"] + seen["lookups_total 1 miss"] == 2
        compiled = [seen.get(f"compile_seconds_count {rank} ready", 0) for rank in (0, 1)]
        assert sum(compiled) == 1, "once per node"
        os.killpg(server.group, signal.SIGKILL)
    with served(tmp_path) as server:
        found = control(server, "GET", "/acme/words").json()
        assert (found["digest"], found["kept"]) == (saved.json()["digest"], True)
        again = control(server, "PUT", "/acme/words", json={"json": SCHEMA})
        assert (again.status_code, again.json()["compile_ms"]) == (200, 0), "from the store, without a worker"
        choice = ask(server.client, "chat", json_schema=SCHEMA, max_tokens=60).only
        assert set(json.loads(choice.text)) <= {"saved", "ahead"}
