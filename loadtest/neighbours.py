"""What a neighbour notices while four clients send schemas nobody has seen: this plugin beside stock vLLM.

    python loadtest/neighbours.py --model .cache/models/noise --schemas corpus.jsonl.gz --backend guidance

Starts `vllm serve` twice, stock and pinned to the same backend, and on each sends a neighbour's small structured
requests one after the other: first while four clients send plain requests, then while they send schemas, the same to
either server, among them an enum of 20,000 strings and an object of 2,000 optional properties with patterns. Prints a
table and, as its last line, JSON. Latencies are seconds; only the ratios mean something on a busy machine.

The corpus is JSON lines with a key `schema`, plain or gzipped.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import httpx

CLIENTS: Final = 4
LEAST: Final = 300
"""Samples of the neighbour in each phase."""
START_LIMIT_S: Final = 300.0
PATIENCE_S: Final = 120.0
TOKENS: Final = 16
ENUM: Final[dict[str, Any]] = {"enum": [f"{i:05}" for i in range(20_000)]}
OBJECT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {f"p{i}": {"type": "string", "pattern": "^[a-z]{1,8}$"} for i in range(2_000)},
}


@dataclass
class Phase:
    """What was seen while the four clients sent one kind of request."""

    latencies: list[float] = field(default_factory=list)
    neighbour: Counter[int] = field(default_factory=Counter)
    others: Counter[int] = field(default_factory=Counter)

    def quantile(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def figures(self) -> dict[str, Any]:
        shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
        return {
            "samples": len(self.latencies),
            **{name: round(self.quantile(share), 4) for name, share in shares.items()},
            "neighbour": dict(self.neighbour),
            "others": dict(self.others),
        }


def body(number: int, schema: object = None) -> dict[str, Any]:
    """A request; without a schema, of `TOKENS` tokens exactly."""
    whole = {"model": "m", "prompt": f"Number {number}:", "max_tokens": TOKENS}
    return whole | ({"ignore_eos": True} if schema is None else {"structured_outputs": {"json": json.dumps(schema)}})


def schemas(corpus: Path, number: int, *, dear: bool) -> list[object]:
    """So many real schemas in a seeded order; the dear ones come second and third."""
    with (gzip.open if corpus.suffix == ".gz" else open)(corpus, "rt", encoding="utf-8") as lines:
        real = [json.loads(line)["schema"] for line in lines]
    random.Random(7).shuffle(real)
    return [real[0], *([ENUM, OBJECT] if dear else []), *real[1:]][:number]


async def send(client: httpx.AsyncClient, request: dict[str, Any]) -> int:
    try:
        return (await client.post("/v1/completions", json=request)).status_code
    except httpx.TimeoutException:
        return 0


async def phase(url: str, requests: Iterator[dict[str, Any]], *, endless: bool) -> Phase:
    """Four clients send `requests` while the neighbour is measured, `LEAST` times or more: until all are answered."""
    seen, over = Phase(), asyncio.Event()

    async def client_work(client: httpx.AsyncClient) -> None:
        for request in requests:
            seen.others[await send(client, request)] += 1
            if over.is_set():
                return

    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=limits) as client:
        others = [asyncio.create_task(client_work(client)) for _ in range(CLIENTS)]
        while len(seen.latencies) < LEAST if endless else not all(task.done() for task in others):
            start = time.perf_counter()
            seen.neighbour[await send(client, body(0, {"enum": ["fine", "good"]}))] += 1
            seen.latencies.append(time.perf_counter() - start)
        over.set()
        await asyncio.gather(*others)
    if len(seen.latencies) < LEAST:
        sys.exit(f"only {len(seen.latencies)} samples of the neighbour: more --count is needed")
    return seen


def healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


@contextlib.contextmanager
def server(model: Path, arguments: list[str]) -> Iterator[str]:
    """A running `vllm serve`; its log is shown if it does not start."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    vllm = str(Path(sys.executable).with_name("vllm"))
    fixed = ["--served-model-name", "m", "--port", str(port), "--enforce-eager", "--max-num-seqs", "16"]
    fixed += ["--dtype", "float32", "--max-model-len", "2048"]
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **os.environ}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [vllm, "serve", str(model), *fixed, *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            url, end = f"http://127.0.0.1:{port}", time.monotonic() + START_LIMIT_S
            while not healthy(url):
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    sys.exit(log.read().decode(errors="replace")[-4000:] + "\nvllm serve did not start")
                time.sleep(0.5)
            yield url
        finally:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def measure(name: str, options: argparse.Namespace, arguments: list[str]) -> dict[str, Any]:
    print(f"{name}: starting vllm serve {' '.join(arguments)}", file=sys.stderr)
    with server(options.model, arguments) as url:
        for warm in (body(0), body(0, {"enum": ["fine", "good"]}), body(0, {"type": "integer"})):
            httpx.post(f"{url}/v1/completions", json=warm, timeout=PATIENCE_S).raise_for_status()
        print(f"{name}: plain requests", file=sys.stderr)
        plain = asyncio.run(phase(url, (body(number) for number in count(1)), endless=True))
        print(f"{name}: schemas", file=sys.stderr)
        found = schemas(options.schemas, options.count, dear=not options.cheap)
        wanted = (body(number, schema) for number, schema in enumerate(found))
        busy = asyncio.run(phase(url, wanted, endless=False))
    ratio = {
        part: round(busy.quantile(share) / plain.quantile(share), 2) for part, share in (("p99", 0.99), ("max", 1))
    }
    return {"run": name, "plain": plain.figures(), "schemas": busy.figures(), "ratio": ratio}


def run(options: argparse.Namespace) -> None:
    stock = ["--structured-outputs-config.backend", options.backend]
    ours = ["--structured-outputs-backend", options.backend]
    rows = [measure("stock", options, stock), measure("ours", options, ours)]
    print(f"{'':8}{'plain p99':>12}{'busy p99':>12}{'ratio':>8}{'plain max':>12}{'busy max':>12}{'ratio':>8}")
    for row in rows:
        plain, busy, ratio = row["plain"], row["schemas"], row["ratio"]
        print(
            f"{row['run']:8}{plain['p99']:>12}{busy['p99']:>12}{ratio['p99']:>8}"
            f"{plain['max']:>12}{busy['max']:>12}{ratio['max']:>8}   {busy['others']}"
        )
    print(json.dumps({"backend": options.backend, "rows": rows}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="directory of the model")
    parser.add_argument("--schemas", type=Path, required=True, help="corpus of schemas, JSON lines, maybe gzipped")
    parser.add_argument("--backend", choices=["guidance", "xgrammar"], required=True)
    parser.add_argument("--count", type=int, default=900, help="schemas sent to each server (default: 900)")
    parser.add_argument("--cheap", action="store_true", help="leave the two dear schemas out")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
