"""Facts of engines as metrics: counts grow by what is new, sizes are what they are, observations count once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from vllm_grammar_backend.desk import Desk
from vllm_grammar_backend.engines.vocabulary import byte_vocabulary
from vllm_grammar_backend.masks.steps import KEPT, StepTimes
from vllm_grammar_backend.metrics import ALWAYS, METRICS, PREFIX, Metrics
from vllm_grammar_backend.service import GrammarService
from vllm_grammar_backend.settings import Settings

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `vllm_grammar_(\w+?)(?:_total)?` \| (\w+) \| (.*?) \| (.*) \|$", re.MULTILINE)


def shown(name: str, model_name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(PREFIX + name, {"backend": "guidance", "model_name": model_name, **labels})


def facts(**changed: Any) -> dict[str, Any]:
    counts = dict.fromkeys((fact for metric in METRICS.values() for fact in metric.facts.values()), 0)
    return {**counts, "engine": 0, "version": "1.7", "compiled": [], "steps": [], **changed}


def test_the_readme_has_every_metric() -> None:
    rows = {name: (kind, labels, text) for name, kind, labels, text in ROW.findall(README)}
    labels = {name: ", ".join(f"`{label}`" for label in metric.labels) for name, metric in METRICS.items()}
    assert rows == {name: (metric.kind, labels[name], metric.text) for name, metric in METRICS.items()}


def test_an_engine_reports_all_that_is_asked_for() -> None:
    service = GrammarService.start("guidance", byte_vocabulary(), Settings())
    try:
        Metrics("guidance", "real").engine(Desk(service, rank=3).observe())
    finally:
        service.close()
    assert shown("cache_bytes", "real", engine="3") == 0
    assert shown("backend_info", "real", engine="3", version=service.version) == 1


def test_counts_grow_by_what_is_new() -> None:
    metrics = Metrics("guidance", "counts")
    for hits in (3, 5, 5):
        metrics.engine(facts(hits=hits))
    assert shown("lookups_total", "counts", engine="0", result="hit") == 5
    metrics.engine(facts(hits=2))
    assert shown("lookups_total", "counts", engine="0", result="hit") == 7, "a rank that restarted counts from 0"
    metrics.engine(facts(engine=1, hits=4))
    assert shown("lookups_total", "counts", engine="1", result="hit") == 4
    assert shown("lookups_total", "counts", engine="0", result="hit") == 7


def test_sizes_are_what_they_are() -> None:
    metrics = Metrics("guidance", "sizes")
    for size in (3, 5, 1):
        metrics.engine(facts(cache_bytes=size))
    assert shown("cache_bytes", "sizes", engine="0") == 1


def test_observations() -> None:
    metrics = Metrics("guidance", "observed")
    metrics.engine(facts(compiled=[["ready", 0.2], ["refused", 0.1]], steps=[[0.001, 0.002]]))
    metrics.engine(facts())
    metrics.waited("miss", 1.5)
    metrics.refused("schema_too_costly")
    assert shown("compile_seconds_count", "observed", engine="0", outcome="ready") == 1
    assert shown("compile_seconds_sum", "observed", engine="0", outcome="refused") == 0.1
    assert shown("mask_step_seconds_sum", "observed", engine="0") == 0.001
    assert shown("accept_step_seconds_sum", "observed", engine="0") == 0.002
    assert shown("request_wait_seconds_sum", "observed", result="miss") == 1.5
    assert shown("refusals_total", "observed", code="schema_too_costly") == 1


def test_names_and_labels_are_prometheus_own() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"[a-z_]+", name)
        assert not set(metric.labels) & set(ALWAYS)
        assert all(len(metric.facts) == 1 or metric.labels[-1] != "engine" for _ in metric.facts)


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=5), max_size=20))
def test_each_step_is_the_sum_of_its_rows(steps: list[list[float]]) -> None:
    times = StepTimes()
    for step in [*steps, [0.0]]:
        for row, seconds in enumerate(step):
            times.filled(row, seconds)
            times.accepted(seconds, first=False)
    drained = times.drain()
    assert [fill for fill, _ in drained] == pytest.approx([sum(step) for step in steps])
    assert times.drain() == []
    assert times.unmasked == 0


def test_what_nobody_asks_for_is_bounded() -> None:
    times = StepTimes()
    for _ in range(2 * KEPT):
        times.filled(0, 1.0)
    assert len(times.drain()) == KEPT
