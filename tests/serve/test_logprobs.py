"""What a mask does to probabilities: illegal tokens have none, legal ones keep their ratios."""

from __future__ import annotations

import itertools
import math

import pytest

from tests.serve.client import PROMPT
from tests.serve.conftest import Served

pytestmark = pytest.mark.server
MODELS = ("noise",)
FORBIDDEN = -9000.0
"""vLLM writes -9999 for a probability of zero, which JSON cannot."""


def first_token(served: Served, shown: list[int], **fields: object) -> dict[int, float]:
    """Token id -> log probability of the first token, for the ids in `shown`."""
    body = {
        "model": "m",
        "prompt": PROMPT,
        "max_tokens": 1,
        "seed": 1,
        "logprobs": len(shown),
        "logprob_token_ids": shown,
        "return_tokens_as_token_ids": True,
        **fields,
    }
    response = served.server.client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    (tops,) = response.json()["choices"][0]["logprobs"]["top_logprobs"]
    return {int(token.removeprefix("token_id:")): value for token, value in tops.items()}


def test_illegal_tokens_have_no_probability_and_legal_ones_keep_their_ratios(served: Served) -> None:
    legal = served.judge.byte_ids("abcdefgh")
    illegal = [*served.judge.byte_ids('x{"0'), *served.judge.vocabulary.eos_ids]
    shown = legal + illegal
    free = first_token(served, shown)
    bound = first_token(served, shown, structured_outputs={"regex": "[a-h]"})
    assert all(free[token] > FORBIDDEN for token in shown)
    assert all(bound[token] <= FORBIDDEN for token in illegal)
    assert sum(math.exp(bound[token]) for token in legal) == pytest.approx(1, abs=1e-3)
    for one, other in itertools.combinations(legal, 2):
        assert bound[one] - bound[other] == pytest.approx(free[one] - free[other], abs=1e-3)


def test_over_the_whole_vocabulary_only_the_legal_tokens_are_left(served: Served) -> None:
    words = ["yes", "no"]
    matcher = served.judge.matcher("choice", words)
    size = served.judge.vocabulary.size
    legal = {token for token in range(size) if matcher.validate([token])}
    body = {"model": "m", "prompt": PROMPT, "max_tokens": 1, "logprobs": 50, "return_tokens_as_token_ids": True}
    response = served.server.client.post("/v1/completions", json={**body, "structured_outputs": {"choice": words}})
    (tops,) = response.json()["choices"][0]["logprobs"]["top_logprobs"]
    possible = {int(token.removeprefix("token_id:")) for token, value in tops.items() if value > FORBIDDEN}
    assert possible == legal
