"""The ways a backend is switched on, and that nothing happens where it is not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.prepare_model import prepare
from tests.serve.metrics import await_samples
from tests.serve.server import ARGUMENTS, ENVIRONMENT, Server, free_port, vllm
from vllm_grammar_backend.engines.vocabulary import from_directory

pytestmark = [pytest.mark.server]

PERSON = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2, 3]}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
REMOTE = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "https://example.com/x.json"}}}


def check_person(text: str) -> None:
    value = json.loads(text)
    assert isinstance(value["ok"], bool)
    assert value["n"] in (1, 2, 3)
    assert set(value) == {"ok", "n"}


def content(body: dict[str, Any]) -> str:
    choice = body["choices"][0]
    assert choice["finish_reason"] == "stop"
    return str(choice["message"]["content"])


def known(send: Callable[[], httpx.Response], patience_s: float = 60) -> httpx.Response:
    """The answer once the schema is known; at first it is not, and the request is turned away."""
    end = time.monotonic() + patience_s
    first = answer = send()
    assert first.status_code == 503, first.text
    assert first.json()["error"]["message"].startswith("grammar_unavailable: "), first.text
    while answer.status_code == 503 and time.monotonic() < end:
        time.sleep(0.1)
        answer = send()
    return answer


ADMIN = "open-sesame"
SETTINGS: dict[str, Any] = {
    "whitespace": "compact",
    "control": {"admin_key": ADMIN},
    "tenant_from": "header:X-Tenant",
    "cold_requests": "reject",
    "compile": {"queue": 4},
    "fixed_schemas": [{"file": "person.json"}, {"kind": "choice", "value": ["x", "yy"]}],
}


def test_two_api_servers_from_a_yaml_file(tmp_path: Path) -> None:
    """The flag and the settings reach every process, and the HTTP routes are on where VLLM_PLUGINS names the plugin."""
    (tmp_path / "grammar.yaml").write_text(json.dumps(SETTINGS))
    (tmp_path / "person.json").write_text(json.dumps(PERSON))
    (tmp_path / "vllm.yaml").write_text(
        f"structured-outputs-backend: xgrammar\ngrammar-config: {tmp_path / 'grammar.yaml'}\napi-server-count: 2\n"
    )
    with Server(
        prepare("noise"),
        tmp_path,
        ["--config", str(tmp_path / "vllm.yaml"), "--api-key", "vllm-s-own"],
        environment={"VLLM_PLUGINS": "grammar_backend"},
    ) as server:

        def post(name: str = "acme", **body: Any) -> httpx.Response:
            return server.client.post("/v1/chat/completions", json=server.chat_body(**body), headers={"X-Tenant": name})

        server.client.headers["Authorization"] = "Bearer vllm-s-own"

        def control(method: str, path: str, **fields: Any) -> httpx.Response:
            return server.client.request(method, f"/v1/grammars{path}", headers={"X-Admin-Key": ADMIN}, **fields)

        def rank() -> dict[str, Any]:
            (found,) = control("GET", "/stats").json()["ranks"]
            return dict(found)

        assert rank()["builds"] == len(SETTINGS["fixed_schemas"]), "compiled before the server reports healthy"
        assert rank()["vocabulary"] == from_directory(str(prepare("noise"))).digest, "what prewarm stores is found"
        refused = known(lambda: post(response_format=REMOTE))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "/$ref")
        for number in range(16):  # connections of their own, which the kernel spreads over both servers
            check_person(content(post(f"tenant-{number}", response_format=FORMAT).json()))
            bad = post(f"tenant-{number}", response_format=REMOTE)
            assert (bad.status_code, bad.json()["error"]["param"]) == (400, "/$ref")
        assert {"ApiServer_0", "ApiServer_1"} <= set(re.findall(r"\((ApiServer_\d)", server.text))
        lines = re.findall(r"vllm-grammar-backend .*: backend xgrammar \(xgrammar .*HTTP routes on", server.text)
        assert len(lines) == 1
        assert rank()["backend"] == "xgrammar"
        assert rank()["builds"] == len(SETTINGS["fixed_schemas"]) + 1
        hits = rank()["hits"]
        assert hits >= 16
        seen = await_samples(server.client, lambda now: now.get("lookups_total 0 hit") == hits)
        assert seen["refusals_total invalid_schema"] == 17, "both API servers count"
        assert seen["workers 0"] == 2
        assert known(lambda: post(structured_outputs={"regex": "a{3}"})).json()["choices"][0]["message"]["content"]
        check_control(control, post)
        for headers in ({"X-Admin-Key": ADMIN, "Authorization": ""}, {"X-Admin-Key": ""}):
            assert server.client.get("/v1/grammars/stats", headers=headers).status_code == 401
        check_tenants(post)


def check_control(control: Callable[..., httpx.Response], post: Callable[..., httpx.Response]) -> None:
    """What is saved through one API server is known to both, and waited for whatever `cold_requests` says."""
    schema = {"type": "array", "items": {"enum": ["saved", "ahead"]}, "minItems": 1, "maxItems": 2}
    saved = control("PUT", "/acme/words", json={"json": schema})
    assert (saved.status_code, saved.json()["verdict"]) == (201, "enforced"), saved.text
    assert [control("PUT", "/acme/words", json={"json": schema}).status_code for _ in range(4)] == [200] * 4
    for _ in range(4):
        assert control("GET", "/acme/words").json()["ranks"][0]["state"] == "ready"
        answer = post(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
        assert set(json.loads(content(answer.json()))) <= {"saved", "ahead"}
    refused = control("PUT", "/acme/words", json={"json": {"$ref": "https://example.com/x.json"}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "/$ref")
    (row,) = control("GET", "", params={"tenant": "acme"}).json()["grammars"]
    assert row["digest"] == saved.json()["digest"]
    assert row["ranks"][0]["hits"] >= 4
    assert control("DELETE", "/acme/words").status_code == 204
    assert [control("GET", "/acme/words").status_code for _ in range(4)] == [404] * 4


def check_tenants(post: Callable[..., httpx.Response]) -> None:
    """With `tenant_from: header:X-Tenant` and a queue in which each tenant may have one schema waiting."""
    for stream in (False, True):
        for _ in range(4):  # on both API servers
            bad = post("../acme", response_format=FORMAT, stream=stream)
            assert (bad.status_code, bad.json()["error"]["param"]) == (400, "X-Tenant")
            assert "../acme" not in bad.text
    dear = ({"enum": [f"{number} of {each:06}" for each in range(8_000)]} for number in range(7))
    *_, last = [post(structured_outputs={"json": next(dear)}) for _ in range(6)]
    assert last.status_code == 429, last.text
    assert last.json()["error"]["message"].startswith("tenant_over_quota: ")
    assert post("zeta", structured_outputs={"json": next(dear)}).status_code == 503, "it waits on its own account"


def test_a_fixed_schema_that_is_declined_refuses_to_start(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"properties": {"secret_8675309": {"contains": {}}}}')
    (tmp_path / "grammar.yaml").write_text("fixed_schemas: [{file: secret.json}]")
    arguments = ["--structured-outputs-backend", "guidance", "--grammar-config", str(tmp_path / "grammar.yaml")]
    server = Server(prepare("noise"), tmp_path, arguments)
    with pytest.raises(RuntimeError, match="did not start"), server:
        pass
    assert f"The fixed schema {tmp_path / 'secret.json'} is declined: unsupported_schema: 'contains'" in server.text
    assert '"contains": {}' not in server.text


def test_installed_but_not_switched_on_vllm_serves_as_ever(tmp_path: Path) -> None:
    """The same requests; also those that a pinned backend refuses and stock vLLM takes."""
    entry = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    with Server(prepare("noise"), tmp_path, ["--structured-outputs-config.backend", "guidance"], entry) as server:
        check_person(content(server.chat(response_format=FORMAT).json()))
        assert server.chat(response_format=FORMAT, use_beam_search=True, n=2, max_tokens=4).status_code == 200
        narrowed = {"json": PERSON, "disable_additional_properties": True}
        assert server.chat(structured_outputs=narrowed, max_tokens=4).status_code == 200
        refused = server.chat(response_format=REMOTE)
        assert not refused.json().get("error", {}).get("message", "").startswith("invalid_schema")
        assert "vllm-grammar-backend" not in server.text


OFFLINE = """
import json, sys
from vllm import LLM, SamplingParams
from vllm.sampling_params import BeamSearchParams, StructuredOutputsParams

if __name__ == "__main__":
    schema = json.loads(sys.argv[2])
    llm = LLM(sys.argv[1], enforce_eager=True, dtype="float32", max_model_len=512, max_num_seqs=4, seed=1,
              additional_config={"grammar_backend": {"backend": sys.argv[3]}},
              distributed_executor_backend=sys.argv[4] or None)
    found = {}
    params = SamplingParams(max_tokens=100, temperature=1.0, structured_outputs=StructuredOutputsParams(json=schema))
    found["twice"] = [llm.generate(["a", "b"], params)[i].outputs[0].text for i in (0, 1)]
    params.structured_outputs = StructuredOutputsParams(choice=["x", "yy"])
    several = SamplingParams(n=3, max_tokens=100, structured_outputs=StructuredOutputsParams(json=schema))
    found["several"] = [output.text for output in llm.generate("a", several)[0].outputs]
    found["changed"] = llm.generate("a", params)[0].outputs[0].text
    def refusal(call):
        try:
            call()
        except Exception as error:
            return f"{type(error).__mro__[1].__name__}: {error}"
    bad = SamplingParams(structured_outputs=StructuredOutputsParams(json={"properties": {"a": {"type": 7}}}))
    found["bad"] = refusal(lambda: llm.generate("a", bad))
    beams = BeamSearchParams(beam_width=2, max_tokens=4, structured_outputs=StructuredOutputsParams(json=schema))
    found["beams"] = refusal(lambda: llm.beam_search([{"prompt": "a"}], beams))
    found["after"] = llm.generate("a", params)[0].outputs[0].text
    print("FOUND " + json.dumps(found))
"""


TORCHRUN = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
"""What torchrun sets for the only process of a job."""


@pytest.mark.parametrize(("backend", "executor"), [("guidance", ""), ("xgrammar", "external_launcher")])
def test_offline_llm(tmp_path: Path, backend: str, executor: str) -> None:
    """With an engine process of its own and, as `external_launcher` wants, in one process that compiles in place."""
    script = tmp_path / "offline.py"
    script.write_text(OFFLINE)
    environment = {**os.environ, **ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if executor else "1"}
    if executor:
        environment |= {**TORCHRUN, "MASTER_PORT": str(free_port())}
    command = [sys.executable, str(script), str(prepare("noise")), json.dumps(PERSON), backend, executor]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    reports = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert reports, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(reports[-1].removeprefix("FOUND "))
    assert len(found["several"]) == 3
    for text in found["twice"] + found["several"]:
        check_person(text)
    assert found["changed"] in ("x", "yy")
    assert found["after"] in ("x", "yy")
    assert "invalid_schema: " in found["bad"]
    assert "VLLMValidationError" in found["bad"]
    assert "unsupported_option: " in found["beams"]


def test_run_batch(tmp_path: Path) -> None:
    def line(name: str, response_format: dict[str, Any]) -> str:
        body = {
            "model": str(prepare("noise")),
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 100,
            "response_format": response_format,
        }
        return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body})

    (tmp_path / "in.jsonl").write_text(line("good", FORMAT) + "\n" + line("bad", REMOTE) + "\n")
    command = vllm("run-batch", "-i", "in.jsonl", "-o", "out.jsonl", "--model", str(prepare("noise")), *ARGUMENTS)
    done = subprocess.run(
        [*command, "--structured-outputs-backend", "guidance"],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    rows = {row["custom_id"]: row for row in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())}
    check_person(content(rows["good"]["response"]["body"]))
    assert "invalid_schema: " in json.dumps(rows["bad"])
