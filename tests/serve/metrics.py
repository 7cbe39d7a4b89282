"""The plugin's samples on a server's `/metrics`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from vllm_grammar_backend.metrics import PREFIX

PATIENCE_S: Final = 20.0

Samples = dict[str, float]


def samples(client: httpx.Client) -> Samples:
    """Each of our samples by its name without the prefix and its labels' values but the first two, sorted by name:
    `lookups_total 0 hit`; those that differ in nothing else are added up.
    """
    found: Samples = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            if sample.name.startswith(PREFIX):
                labels = {name: value for name, value in sorted(sample.labels.items()) if name not in ("pid", "le")}
                assert labels.pop("model_name") == "m"
                assert labels.pop("backend")
                key = " ".join([sample.name.removeprefix(PREFIX), *labels.values()])
                found[key] = found.get(key, 0) + sample.value
    return found


def await_samples(client: httpx.Client, condition: Callable[[Samples], bool]) -> Samples:
    """The samples as soon as they are as they must become: engines are asked once a second."""
    end = time.monotonic() + PATIENCE_S
    while not condition(found := samples(client)):
        assert time.monotonic() < end, found
        time.sleep(0.2)
    return found
