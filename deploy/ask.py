"""Wait for a server, send it one structured request, show the answer and how it was served. Standard library plus
`jsonschema`, which the package needs anyway.

    python deploy/ask.py wait http://127.0.0.1:8000 --pid 4711 --log server.log
    python deploy/ask.py send http://127.0.0.1:8000 --log server.log
    python deploy/ask.py curl http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import jsonschema

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "capital": {"type": "string"},
        "continent": {"enum": ["Africa", "Asia", "Europe", "North America", "Oceania", "South America"]},
        "population_millions": {"type": "integer", "minimum": 0},
        "languages": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 4},
    },
    "required": ["name", "capital", "continent", "population_millions", "languages"],
    "additionalProperties": False,
}
TEXT = "Japan is a country in Asia. Its capital is Tokyo. 124 million people live there and speak Japanese."
# The schema decides the form of the answer; what it says is the model's, and one this small needs an example.
EXAMPLE = (
    "Text: France is a country in Europe. Its capital is Paris. 68 million people live there and speak French.\n"
    'JSON: {"name": "France", "capital": "Paris", "continent": "Europe", "population_millions": 68, '
    '"languages": ["French"]}'
)
LOG_PREFIX = re.compile(r"^(\(\w+ pid=\d+\) )?([A-Z]+ [\d:. -]+)?(\[[\w.]+:\d+\] )?")
STARTUP = re.compile(r"vllm-grammar-backend \d.*")


def request_body(model: str) -> dict[str, Any]:
    """An OpenAI chat completion whose answer must be a document of `SCHEMA`."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"{EXAMPLE}\n\nText: {TEXT}\nJSON:"}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "country", "strict": True, "schema": SCHEMA},
        },
        "temperature": 0,
        "max_tokens": 200,
    }


def fetch(url: str, body: dict[str, Any] | None = None, timeout: float = 120) -> bytes:
    """GET, or POST where there is a body.

    Raises:
        urllib.error.HTTPError: the server answered with an error status.
        OSError: it did not answer.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    # A proxy from the environment has no business between us and this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=timeout) as answer:
        content: bytes = answer.read()
    return content


def is_healthy(url: str) -> bool:
    try:
        fetch(f"{url}/health", timeout=5)
    except OSError:
        return False
    return True


def is_running(pid: int) -> bool:
    """False for a process that is gone and for one that ended but was not waited for."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def last_lines(log: Path, count: int) -> list[str]:
    """The end of a log, without blank lines and what a progress bar has overwritten."""
    lines = (line.rpartition("\r")[2].strip() for line in log.read_text(encoding="utf-8", errors="replace").split("\n"))
    return [line for line in lines if line][-count:]


def wait(url: str, pid: int, log: Path, timeout: float) -> int:
    """Wait until the server is healthy; show the log's last line every five seconds, and its end on failure."""
    started = shown = time.monotonic()
    while not is_healthy(url):
        now = time.monotonic()
        if not is_running(pid) or now - started > timeout:
            why = "ended" if not is_running(pid) else f"was not healthy after {timeout:.0f} s"
            print(f"error: the server {why}. The end of its log, {log}:", file=sys.stderr)
            print("\n".join(last_lines(log, 40)), file=sys.stderr)
            return 1
        if now - shown >= 5:
            shown = now
            line = LOG_PREFIX.sub("", next(iter(last_lines(log, 1)), "nothing logged yet"))
            print(f"    {now - started:4.0f} s  {line[:120]}", flush=True)
        time.sleep(0.3)
    print(f"    {time.monotonic() - started:4.0f} s  healthy")
    return 0


def startup_line(log: Path) -> str | None:
    """What the plugin said about itself when the server started, without the logger's prefix."""
    found = STARTUP.search(log.read_text(encoding="utf-8", errors="replace"))
    return found.group().strip() if found else None


def send(url: str, log: Path | None) -> int:
    model = json.loads(fetch(f"{url}/v1/models"))["data"][0]["id"]
    print(f"text:       {TEXT}")
    started = time.monotonic()
    try:
        answer = json.loads(fetch(f"{url}/v1/chat/completions", request_body(model)))
    except urllib.error.HTTPError as error:
        print(f"error: HTTP {error.code}: {error.read().decode(errors='replace')}", file=sys.stderr)
        return 1
    seconds = time.monotonic() - started
    choice = answer["choices"][0]
    text = choice["message"]["content"]
    print(f"answer:     {text}")
    print(f"tokens:     {answer['usage']['completion_tokens']} in {seconds:.1f} s, finish: {choice['finish_reason']}")
    try:
        jsonschema.validate(json.loads(text), SCHEMA)
    except (json.JSONDecodeError, jsonschema.ValidationError) as error:
        print(f"validated:  NO, {error}")
        return 1
    print("validated:  yes, against the request's schema")
    if log is None:
        return 0
    served_by = startup_line(log)
    if served_by is None:
        print(f"error: the plugin is not in the log {log}; did another server answer on this port?", file=sys.stderr)
        return 1
    print(f"served by:  {served_by}")
    return 0


def print_curl(url: str) -> int:
    model = json.loads(fetch(f"{url}/v1/models"))["data"][0]["id"]
    body = json.dumps(request_body(model))
    print(f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["wait", "send", "curl"])
    parser.add_argument("url", help="the server, e.g. http://127.0.0.1:8000")
    parser.add_argument("--pid", type=int, default=os.getppid(), help="wait: the server's process")
    parser.add_argument("--log", type=Path, help="the server's log")
    parser.add_argument("--timeout", type=float, default=600, help="wait: seconds until giving up")
    arguments = parser.parse_args()
    if arguments.action == "wait":
        return wait(arguments.url, arguments.pid, arguments.log, arguments.timeout)
    if arguments.action == "send":
        return send(arguments.url, arguments.log)
    return print_curl(arguments.url)


if __name__ == "__main__":
    sys.exit(main())
