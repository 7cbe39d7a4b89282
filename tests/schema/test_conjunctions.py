"""Keywords that meet in one place all hold, and a boolean is no number: what is said twice is never said once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.schema.serving import BACKENDS, accepts, compiled, spec_of
from vllm_grammar_backend.engines.base import CompiledGrammar
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.schema import prepare


def _closed(*names: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {n: {"enum": [1]} for n in names}, "additionalProperties": False, **more}


_ONE_A = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
CASES: list[tuple[Any, list[str], list[str]]] = [
    ({"enum": [1, 2], "const": 1, "allOf": [{"type": "integer"}]}, ["1"], ["2", "7"]),
    ({"allOf": [{"type": "integer"}], "enum": [1, 2], "const": 1}, ["1"], ["2", "7"]),
    (
        _closed("a", "b", "c", dependentRequired={"a": ["b"]}, dependencies={"a": ["c"]}),
        ["{}", '{"a":1,"b":1,"c":1}'],
        ['{"a":1,"c":1}', '{"a":1,"b":1}', '{"a":1}'],
    ),
    (
        _closed("a", "b", "c", dependencies={"a": ["c"]}, dependentRequired={"a": ["b"]}),
        ["{}", '{"a":1,"b":1,"c":1}'],
        ['{"a":1,"c":1}', '{"a":1,"b":1}'],
    ),
    (
        _closed("a", "b", "c", dependentSchemas={"a": {"required": ["b"]}}, dependencies={"a": {"required": ["c"]}}),
        ["{}", '{"a":1,"b":1,"c":1}'],
        ['{"a":1,"c":1}', '{"a":1,"b":1}'],
    ),
    ({"oneOf": [{"not": {"const": 1}, "type": "boolean"}, {"const": True}]}, ["false"], ["true", "1"]),
    ({"allOf": [_ONE_A, {"properties": {"a": {"const": True}}}]}, [], ['{"a":true}', '{"a":1}']),
    (
        {
            "type": "object",
            "patternProperties": {"^a": {"const": 1}, "^b": {"const": True}},
            "additionalProperties": False,
        },
        ['{"a":1}', '{"b":true}'],
        ['{"b":1}', '{"a":true}'],
    ),
    ({"anyOf": [{"const": 1}, {"const": True}]}, ["1", "true"], ["false", "0"]),
    ({"anyOf": [{"const": 0}, {"const": False}, {"const": [0]}, {"const": [False]}]}, ["0", "false", "[false]"], ["1"]),
    (
        {"type": "array", "allOf": [{"contains": {"const": 1}}, {"contains": {"const": 1}, "minContains": 0}]},
        ["[1]"],
        ["[]", "[2]"],
    ),
    ({"type": "string", "pattern": r"^\ud83d\ude00$"}, ['"\U0001f600"'], ['"a"']),
    ({"type": "string", "pattern": r"^\ud83d\u0041$"}, [], ['"\U00011841"']),
]


def _verdict(schema: Any, backend: str) -> CompiledGrammar | ErrorCode:
    try:
        return compiled(spec_of(schema), backend)
    except GrammarError as refused:
        return refused.code


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("schema", "valid", "invalid"), CASES, ids=range(len(CASES)))
def test_enforced_or_declined(backend: str, schema: Any, valid: list[str], invalid: list[str]) -> None:
    verdict = _verdict(schema, backend)
    if isinstance(verdict, ErrorCode):
        # As good as enforced, but nothing that can be satisfied may be called unsatisfiable.
        assert verdict is ErrorCode.UNSUPPORTED_SCHEMA or (verdict is ErrorCode.UNSATISFIABLE and not valid)
        return
    assert [text for text in valid if not accepts(verdict, text)] == []
    assert [text for text in invalid if accepts(verdict, text)] == []


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pattern", [r"^\ud83d\u0041$", r"^\udbff\uffff$", r"\ud800", r"[\udc00]"])
def test_half_a_surrogate_pair_is_declined_by_name(backend: str, pattern: str) -> None:
    with pytest.raises(GrammarError) as caught:
        prepare(spec_of({"type": "string", "pattern": pattern}), backend)
    assert (caught.value.code, caught.value.pointer) == (ErrorCode.UNSUPPORTED_SCHEMA, "/pattern")
