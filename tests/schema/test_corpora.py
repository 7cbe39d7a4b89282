"""Real schemas with valid and invalid documents: what is served accepts no invalid one."""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.schema.serving import BACKENDS, accepts, compiled, spec_of
from vllm_grammar_backend.errors import GrammarError
from vllm_grammar_backend.grammar import GrammarKind

FLOOR = {"guidance": 0.80, "xgrammar": 0.75}
"""Least share of the corpus that is admitted with every document judged rightly."""


def verdict(row: dict[str, Any], backend: str) -> str:
    try:
        grammar = compiled(spec_of(row["schema"]), backend)
    except GrammarError:
        return "declined"
    judged = [(t["valid"], accepts(grammar, json.dumps(t["data"], ensure_ascii=False))) for t in row["tests"]]
    if (False, True) in judged:
        return "accepted_invalid"
    return "rejected_valid" if (True, False) in judged else "pass"


def judge(path: Path, backend: str, step: int, seconds: float) -> Counter[str]:
    """Every `step`-th row, as many as the time allows."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines][::step]
    found: Counter[str] = Counter()
    end = time.monotonic() + seconds
    for row in rows:
        if time.monotonic() > end:
            break
        found[verdict(row, backend)] += 1
    return found


def check(found: Counter[str], backend: str) -> None:
    assert found["accepted_invalid"] == 0
    assert found["pass"] >= FLOOR[backend] * found.total()
    assert found["rejected_valid"] <= 0.03 * found.total()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_few_real_schemas(backend: str, maskbench_file: Path) -> None:
    check(judge(maskbench_file, backend, step=70, seconds=20), backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_many_real_schemas(backend: str, maskbench_file: Path) -> None:
    check(judge(maskbench_file, backend, step=3, seconds=90), backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_reported_bugs(backend: str, cases_file: Path) -> None:
    lines = cases_file.read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] != "request"]
    wrong = {row["id"]: problem for row in rows if (problem := _problem(row, backend))}
    assert wrong == {}


def _problem(row: dict[str, Any], backend: str) -> str | None:
    start = time.process_time()
    try:
        grammar = compiled(spec_of(row["spec"], GrammarKind(row["kind"])), backend)
    except GrammarError as error:
        return str(error) if row["expectation"] == "accept" else None
    if row["expectation"] == "reject_with_400":
        # Depth is a limit of admission, which stands before all of this.
        return None if "nested-arrays" in row["id"] else "not refused"
    if row["expectation"] == "compile_under_2s" and time.process_time() - start > 2:
        return "took too long"
    missed = [text for text in row["valid_examples"] if not accepts(grammar, text)]
    passed = [text for text in row["invalid_examples"] if accepts(grammar, text)]
    return f"refused {missed}, let through {passed}" if missed or passed else None
