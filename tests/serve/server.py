"""A real `vllm serve` for the tests: started once, watched, stopped for good."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx

ROOT: Final = Path(__file__).resolve().parents[2]
START_LIMIT_S: Final = 300.0
ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
}
# float32: two to three times as fast as bfloat16 on a CPU that has no instructions for that.
ARGUMENTS: Final = ("--enforce-eager", "--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "16")


def vllm(*arguments: str) -> list[str]:
    """The `vllm` command of this interpreter's environment."""
    return [str(Path(sys.executable).with_name("vllm")), *arguments]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    """`with Server(model_directory, log_directory, ["--flag"]) as server: server.client.post(...)`."""

    model: Path
    logs: Path
    arguments: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=lambda: vllm("serve"))
    """What starts it; the model follows as a positional argument after `serve`, as --model after anything else."""
    environment: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = self.logs / f"server-{self.port}.log"
        model = [str(self.model)] if self.command[-1] == "serve" else ["--model", str(self.model)]
        command = [*self.command, *model, "--served-model-name", "m", "--port", str(self.port), *ARGUMENTS]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *self.arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **ENVIRONMENT, **self.environment},
                start_new_session=True,
            )
        self.client = self.connect()
        try:
            self._await_health()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def text(self) -> str:
        """The log so far."""
        return self.log.read_text(errors="replace")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def group(self) -> int:
        """The process group that all of its processes are in."""
        return self._process.pid

    def healthy(self) -> bool:
        try:
            return self.client.get("/health").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def connect(self, patience_s: float = 120) -> httpx.Client:
        """A client with a connection for each request: a server may close one that is kept just when it is used."""
        return httpx.Client(base_url=self.url, timeout=patience_s, limits=httpx.Limits(max_keepalive_connections=0))

    def chat_body(self, content: str = "Hi", **body: Any) -> dict[str, Any]:
        return {"model": "m", "messages": [{"role": "user", "content": content}], **body}

    def chat(self, content: str = "Hi", **body: Any) -> httpx.Response:
        return self.client.post("/v1/chat/completions", json=self.chat_body(content, **body))

    def complete(self, prompt: str = "Hi", **body: Any) -> httpx.Response:
        return self.client.post("/v1/completions", json={"model": "m", "prompt": prompt, **body})

    def respond(self, content: str = "Hi", **body: Any) -> httpx.Response:
        return self.client.post("/v1/responses", json={"model": "m", "input": content, **body})

    def stop(self) -> None:
        """SIGTERM to the server, and SIGKILL to whatever of its process group is left after that."""
        self.client.close()
        if self.alive:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _await_health(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not self.healthy():
            if not self.alive or time.monotonic() > deadline:
                tail = "\n".join(self.text.splitlines()[-60:])
                raise RuntimeError(f"the server did not start: {' '.join(self.arguments)}\n{tail}")
            time.sleep(0.5)
