"""The three endpoints behind one call, streaming or not: `ask(client, "chat", regex="a+")`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import httpx

Endpoint = Literal["chat", "completions", "responses"]
ENDPOINTS: Final[tuple[Endpoint, ...]] = ("chat", "completions", "responses")
_PATHS: Final = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
}
PROMPT: Final = "Write about a cat."


@dataclass
class Choice:
    """One of the answers to a request."""

    text: str = ""
    finish: str | None = None
    """`stop`, or `length` where `max_tokens` cut it off."""
    token_ids: list[int] | None = None
    """Every token sampled, the end token included; None where the endpoint does not tell."""
    logprobs: Any = None


@dataclass
class Answer:
    """What came back, whatever the endpoint."""

    status: int
    choices: list[Choice] = field(default_factory=list)
    error: dict[str, Any] = field(default_factory=dict)
    body: str = ""

    @property
    def only(self) -> Choice:
        assert self.status == httpx.codes.OK, self.body
        (choice,) = self.choices
        return choice


def body_for(endpoint: Endpoint, *, max_tokens: int = 100, json_schema: Any = None, **fields: Any) -> dict[str, Any]:
    """A request body; `json_schema` goes where the endpoint's OpenAI-style response format is."""
    body: dict[str, Any] = {"model": "m", **fields}
    if endpoint == "responses":
        body |= {"input": PROMPT, "max_output_tokens": max_tokens}
        if json_schema is not None:
            body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": json_schema}}
        return body
    if endpoint == "chat":
        body["messages"] = [{"role": "user", "content": PROMPT}]
    else:
        body["prompt"] = PROMPT
    if json_schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": json_schema}}
    return body | {"max_tokens": max_tokens, "return_token_ids": True}


def ask(client: httpx.Client, endpoint: Endpoint, *, stream: bool = False, **fields: Any) -> Answer:
    """Send one request; see `body_for`. Refusals are answers with another status."""
    return send(client, endpoint, body_for(endpoint, **fields) | ({"stream": True} if stream else {}))


def send(client: httpx.Client, endpoint: Endpoint, body: dict[str, Any]) -> Answer:
    # Bodies are dumped here, with escapes: httpx would refuse lone surrogates, which a client can well send.
    content = json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    response = client.post(_PATHS[endpoint], content=content, headers=headers)
    if response.status_code != httpx.codes.OK:
        return Answer(response.status_code, error=_error_of(response), body=response.text)
    if body.get("stream"):
        read = _read_response_events if endpoint == "responses" else _read_chunks
        return read(list(_events(response.text)), response.text)
    return _read_whole(endpoint, response)


def _error_of(response: httpx.Response) -> dict[str, Any]:
    try:
        error: dict[str, Any] = response.json()["error"]
    except (ValueError, KeyError):
        return {}
    return error


def _events(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def _read_whole(endpoint: Endpoint, response: httpx.Response) -> Answer:
    data = response.json()
    if endpoint == "responses":
        return Answer(200, [_response_choice(data)], body=response.text)
    choices = [
        Choice(
            text=choice["text"] if endpoint == "completions" else choice["message"]["content"] or "",
            finish=choice["finish_reason"],
            token_ids=choice.get("token_ids"),
            logprobs=choice.get("logprobs"),
        )
        for choice in data["choices"]
    ]
    return Answer(200, choices, body=response.text)


def _response_choice(data: dict[str, Any]) -> Choice:
    parts = [part for item in data["output"] if item["type"] == "message" for part in item["content"]]
    return Choice(
        "".join(part["text"] for part in parts), {"completed": "stop", "incomplete": "length"}[data["status"]]
    )


def _read_chunks(events: list[dict[str, Any]], text: str) -> Answer:
    choices: dict[int, Choice] = {}
    for event in events:
        if "error" in event:
            return Answer(200, error=event["error"], body=text)
        for part in event["choices"]:
            choice = choices.setdefault(part["index"], Choice(token_ids=[]))
            choice.text += part["text"] if "text" in part else part["delta"].get("content") or ""
            assert choice.token_ids is not None
            choice.token_ids += part.get("token_ids") or []
            choice.finish = part["finish_reason"] or choice.finish
    return Answer(200, [choices[index] for index in sorted(choices)], body=text)


def _read_response_events(events: list[dict[str, Any]], text: str) -> Answer:
    pieces = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    last = events[-1]
    if "response" not in last:
        return Answer(200, error=last, body=text)
    choice = _response_choice(last["response"])
    assert choice.text == "".join(pieces), "the deltas are not the text"
    return Answer(200, [choice], body=text)
