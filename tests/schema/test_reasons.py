"""Every further reason is one: with all other places taken out, the schema is still refused for it."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.schema import lower_schema
from vllm_grammar_backend.schema.reasons import MOST, _take_out, every

Lower = Callable[[Any], Any]


def refusals(schema: Any, lower: Lower) -> tuple[GrammarError, ...]:
    try:
        every(schema, lower)
    except GrammarError as error:
        return error.reasons
    return ()


def lowering(backend: str) -> Lower:
    return lambda schema: lower_schema(schema, backend, formats=True)


def check(schema: Any, lower: Lower) -> int:
    """The law; how many reasons there are."""
    before, reasons = copy.deepcopy(schema), refusals(schema, lower)
    assert schema == before
    assert len(reasons) <= MOST
    assert len({reason.pointer for reason in reasons}) == len(reasons)
    for reason in reasons[1:]:
        rest = copy.deepcopy(schema)
        for other in reasons:
            assert other.pointer is not None
            # What lies inside of a place that is taken out is gone with it.
            if other.pointer != reason.pointer and not reason.pointer.startswith(other.pointer + "/"):  # type: ignore[union-attr]
                _take_out(rest, other.pointer)
        assert reason.pointer in {alone.pointer for alone in refusals(rest, lower)}
    return len(reasons)


@pytest.mark.parametrize("backend", ["guidance", "xgrammar"])
@pytest.mark.parametrize(
    ("schema", "count"),
    [
        ({"type": "string"}, 0),
        ({"contains": {}}, 1),
        ({"properties": {str(i): {"contains": {}} for i in range(5)}}, 5),
        ({"properties": {str(i): {"contains": {}} for i in range(50)}}, MOST),
        ({"properties": {"a/b": {"type": 7}, "~": {"required": "x"}, "": {"$ref": "#/nowhere"}}}, 3),
        ({"anyOf": [{"contains": {}}, {"contains": {}}], "allOf": [5]}, 3),
        ({"$defs": {"a": {"contains": {}}}, "properties": {"x": {"$ref": "#/$defs/a"}, "y": {"$ref": "#/$defs/a"}}}, 1),
        ({"enum": []}, 1),
        (5, 1),
    ],
)
def test_all_of_them(backend: str, schema: Any, count: int) -> None:
    assert check(schema, lowering(backend)) == count


def test_a_refusal_that_is_of_no_one_place_stands_alone() -> None:
    schema = {"properties": {"a": {"contains": {}}}, "required": ["a"]}

    def lower(schema: Any) -> Any:
        if "a" in json.dumps(schema.get("properties", {})) and "contains" in json.dumps(schema):
            raise GrammarError(ErrorCode.UNSUPPORTED_SCHEMA, "no", "/properties/a/contains")
        raise GrammarError(ErrorCode.UNSATISFIABLE, "no value is valid", "")

    assert len(refusals(schema, lower)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["guidance", "xgrammar"])
def test_of_real_schemas(backend: str, maskbench_file: Path) -> None:
    with gzip.open(maskbench_file, "rt", encoding="utf-8") as lines:
        schemas = [json.loads(line)["schema"] for line in lines]
    counts = [check(schema, lowering(backend)) for schema in schemas[:500]]
    assert max(counts) > 1
