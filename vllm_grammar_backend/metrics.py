"""The only file that names a metric. The core reports facts; what they are called in a dashboard is decided here.

Counters, gauges with a multiprocess mode and histograms only: nothing else survives on vLLM's `/metrics` where several
API servers share it. Names and labels are a stable surface; no label holds a schema, and each has few values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal

from prometheus_client import Counter, Gauge, Histogram

PREFIX: Final = "vllm_grammar_"
ALWAYS: Final = ("backend", "model_name")
"""Labels of every metric; `engine`, the data-parallel rank, is one of those that an engine reports."""
SECONDS: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60)
STEP_SECONDS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...] = ()
    """Beside those that all have."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What engines call it, by the value of its last label; of a metric without a label of its own, the only one."""


METRICS: Final = {
    "lookups": Metric(
        "counter",
        "Look-ups of a grammar in an engine.",
        ("engine", "result"),
        {"hit": "hits", "miss": "builds", "join": "joined", "refused": "refused_again"},
    ),
    "turned_away": Metric("counter", "Look-ups answered with 429 or 503.", ("engine",), {"": "turned_away"}),
    "abandoned": Metric("counter", "Compilations nobody waited for any more.", ("engine",), {"": "abandoned"}),
    "faults": Metric("counter", "Compilations that failed by the server's own fault.", ("engine",), {"": "faults"}),
    "evictions": Metric("counter", "Grammars that left the cache.", ("engine",), {"": "cache_evictions"}),
    "store_reads": Metric(
        "counter", "Artefacts found on disk.", ("engine", "result"), {"hit": "store_hits", "reject": "store_rejects"}
    ),
    "store_faults": Metric("counter", "What the disk refused.", ("engine",), {"": "store_faults"}),
    "worker_restarts": Metric("counter", "Workers that ended unasked.", ("engine",), {"": "worker_restarts"}),
    "unmasked_requests": Metric("counter", "Requests whose mask was never applied.", ("engine",), {"": "unmasked"}),
    "workers": Metric("gauge", "Workers that can take a job or have one.", ("engine",), {"": "workers"}),
    "queue_depth": Metric("gauge", "Jobs that wait for a worker.", ("engine",), {"": "waiting"}),
    "cache_entries": Metric("gauge", "Grammars in memory.", ("engine",), {"": "cache_entries"}),
    "cache_bytes": Metric("gauge", "Accounted bytes of them.", ("engine",), {"": "cache_bytes"}),
    "live_bytes": Metric("gauge", "With those in use after eviction.", ("engine",), {"": "cache_live_bytes"}),
    "quarantined_digests": Metric("gauge", "Constraints refused for their cost.", ("engine",), {"": "quarantined"}),
    "compile_seconds": Metric("histogram", "Time of one constraint in a worker.", ("engine", "outcome")),
    "mask_step_seconds": Metric("histogram", "Filling the masks of one step.", ("engine",)),
    "accept_step_seconds": Metric("histogram", "Accepting the tokens of one step.", ("engine",)),
    "backend_info": Metric("gauge", "1 for the library's version in use.", ("engine", "version")),
    "request_wait_seconds": Metric("histogram", "What a request waited for its grammar.", ("result",)),
    "refusals": Metric("counter", "Requests refused, by error code.", ("code",)),
}


@cache
def _collector(name: str) -> Any:
    metric = METRICS[name]
    full, labels = PREFIX + name, (*ALWAYS, *metric.labels)
    if metric.kind == "counter":
        return Counter(full, metric.text, labels)
    if metric.kind == "gauge":
        return Gauge(full, metric.text, labels, multiprocess_mode="mostrecent")
    return Histogram(full, metric.text, labels, buckets=STEP_SECONDS if "step" in name else SECONDS)


class Metrics:
    """The collectors of one front-end process. vLLM's `/metrics` shows whatever is registered in it."""

    def __init__(self, backend: str, model_name: str) -> None:
        self._always = {"backend": backend, "model_name": model_name}
        self._counts: dict[tuple[str, str], int] = {}

    def waited(self, result: str, seconds: float) -> None:
        """A request had its grammar, or its refusal, after so long; `result` is how it was found."""
        self._of("request_wait_seconds", result=result).observe(seconds)

    def refused(self, code: str) -> None:
        self._of("refusals", code=code).inc()

    def engine(self, facts: Mapping[str, Any]) -> None:
        """What an engine reports of itself, `GrammarService.statistics` above all: counts since its start, sizes
        now, and what it observed since it was last asked.
        """
        rank = str(facts["engine"])
        for name, metric in METRICS.items():
            for value, fact in metric.facts.items():
                found = self._of(name, **{metric.labels[-1]: value, "engine": rank})
                if metric.kind == "gauge":
                    found.set(facts[fact])
                else:
                    found.inc(self._more(rank, fact, facts[fact]))
        for outcome, seconds in facts["compiled"]:
            self._of("compile_seconds", engine=rank, outcome=outcome).observe(seconds)
        for fill, accept in facts["steps"]:
            self._of("mask_step_seconds", engine=rank).observe(fill)
            self._of("accept_step_seconds", engine=rank).observe(accept)
        self._of("backend_info", engine=rank, version=facts["version"]).set(1)

    def _more(self, rank: str, fact: str, now: int) -> int:
        """How much a count has grown; a rank that was started again counts from 0."""
        before = self._counts.get((rank, fact), 0)
        self._counts[rank, fact] = now
        return now - before if now >= before else now

    def _of(self, name: str, **labels: str) -> Any:
        return _collector(name).labels(**self._always, **labels)
