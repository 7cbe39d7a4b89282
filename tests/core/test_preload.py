"""Ready before the first request, and kept; or no start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_grammar_backend import settings
from vllm_grammar_backend.admission import admit
from vllm_grammar_backend.engines.vocabulary import byte_vocabulary
from vllm_grammar_backend.errors import StartupError
from vllm_grammar_backend.grammar import GrammarKind, GrammarOptions
from vllm_grammar_backend.preload import preload
from vllm_grammar_backend.service import GrammarService, Ready

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}}


@contextmanager
def started(folder: Path, *fixed: Any, **more: Any) -> Iterator[GrammarService]:
    """A service of a settings file in `folder`."""
    file = folder / "grammar.yaml"
    file.write_text(yaml.safe_dump({"fixed_schemas": list(fixed), **more}))
    with closing(GrammarService.start("guidance", byte_vocabulary(), settings.load(str(file), {}))) as service:
        yield service


def test_they_are_ready_and_kept(tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text(json.dumps(OBJECT))
    (tmp_path / "code.txt").write_text("[a-z]{3}\n")
    fixed = [{"file": "order.json"}, {"file": "code.txt", "kind": "regex"}, {"kind": "choice", "value": ["a", "b"]}]
    with started(tmp_path, *fixed, cache={"bytes": 400_000}) as service:
        preload(service, GrammarOptions())
        limits = service.settings.limits
        for kind, value in (("json", OBJECT), ("regex", "[a-z]{3}"), ("choice", ["a", "b"])):
            assert isinstance(service.lookup(admit(GrammarKind(kind), value, GrammarOptions(), limits)), Ready)
        assert [entry.pinned for entry in service.entries()] == [True] * 3
        for number in range(20):
            other = admit(GrammarKind.JSON, {"const": number}, GrammarOptions(), limits)
            service.ensure(other).result(60)
        assert sum(entry.pinned for entry in service.entries()) == 3
        assert service.statistics()["cache_evictions"]


def test_five_in_the_ready_made_file(root: Path) -> None:
    found = settings.load(str(root / "configs" / "fixed-schemas.yaml"), {})
    with closing(GrammarService.start("guidance", byte_vocabulary(), found)) as service:
        preload(service, GrammarOptions())
        assert len(service.entries()) == 5


def test_more_than_a_queue_holds(tmp_path: Path) -> None:
    fixed = [{"value": {"const": number}} for number in range(40)]
    with started(tmp_path, *fixed, compile={"queue": 8}) as service:
        preload(service, GrammarOptions())
        assert len(service.entries()) == 40


@pytest.mark.parametrize(
    ("fixed", "said"),
    [
        ({"value": {"contains": 1}}, ["fixed_schemas[1]", "invalid_schema", "'contains'"]),
        ({"value": {"type": "integer", "minimum": 2, "maximum": 1}}, ["fixed_schemas[1]", "unsatisfiable_schema"]),
        ({"file": "missing.json"}, ["missing.json", "cannot be read"]),
        ({"file": "not.json"}, ["not.json", "invalid_schema"]),
    ],
)
def test_one_that_is_declined_refuses_to_start(tmp_path: Path, fixed: Any, said: list[str]) -> None:
    (tmp_path / "not.json").write_text("{")
    with started(tmp_path, {"value": OBJECT}, fixed) as service, pytest.raises(StartupError) as caught:
        preload(service, GrammarOptions())
    assert all(words in str(caught.value) for words in said), str(caught.value)


@pytest.mark.parametrize("fixed", [{}, {"file": "a", "value": 1}, {"kind": "xml", "value": 1}, {"schema": {}}])
def test_a_malformed_entry_is_named(tmp_path: Path, fixed: Any) -> None:
    with pytest.raises(StartupError, match=r"fixed_schemas\.1"), started(tmp_path, {"value": OBJECT}, fixed):
        pass


def test_none_is_no_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with started(tmp_path) as service:
        preload(service, GrammarOptions())
    assert capsys.readouterr() == ("", "")
