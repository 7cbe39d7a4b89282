"""Random schemas: the lowered text is valid for the same values as the original, by the `jsonschema` library."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.schema.serving import BACKENDS, accepts, compiled, lowered, spec_of
from vllm_grammar_backend.errors import ErrorCode, GrammarError

pytestmark = pytest.mark.slow
NAMES = st.sampled_from(["a", "b", "ab"])
SCALARS = st.sampled_from([None, True, False, 0, 1, 2, -1, 1.5, "", "a", "ab", "b"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=5,
)
_TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
_LEAVES = st.one_of(
    st.booleans(),
    st.builds(lambda t: {"type": t}, _TYPES),
    st.builds(lambda t: {"type": t}, st.lists(_TYPES, min_size=1, max_size=3, unique=True)),
    st.builds(lambda v: {"const": v}, VALUES),
    st.builds(lambda v: {"enum": v}, st.lists(SCALARS, min_size=1, max_size=4)),
    st.fixed_dictionaries({}, optional={"minLength": st.integers(0, 2), "maxLength": st.integers(0, 2)}),
    st.fixed_dictionaries({}, optional={"minimum": st.integers(-1, 2), "exclusiveMaximum": st.integers(-1, 3)}),
    st.fixed_dictionaries({"required": st.lists(NAMES, max_size=2, unique=True)}),
    st.builds(lambda p: {"pattern": p}, st.sampled_from(["a", "^a", "b$", "^[ab]*$", "^.$"])),
)


def _combine(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": _TYPES,
            "properties": st.dictionaries(NAMES, inner, max_size=2),
            "additionalProperties": inner,
            "required": st.lists(NAMES, max_size=2, unique=True),
            "items": inner,
            "prefixItems": several,
            "maxItems": st.integers(0, 2),
            "allOf": several,
            "anyOf": several,
            "oneOf": several,
            "not": inner,
            "if": inner,
            "then": inner,
            "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=1), max_size=1),
            "propertyNames": inner,
            "$ref": st.just("#/$defs/d"),
        },
    ).map(_thinned)


def _thinned(schema: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(schema.items(), key=lambda item: len(json.dumps(item[1])))[:4])


SCHEMAS = st.recursive(_LEAVES, _combine, max_leaves=6)
BARE = st.recursive(_LEAVES, _combine, max_leaves=3).filter(lambda schema: "$ref" not in json.dumps(schema))


def rooted(schema: Any, definition: Any) -> Any:
    return {**schema, "$defs": {"d": definition}} if isinstance(schema, dict) else schema


def spelt_out(schema: Any) -> Any:
    """`propertyNames` as the lowering for xgrammar means it: only for names that are not in `properties`."""
    if isinstance(schema, list):
        return [spelt_out(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: value if key in ("enum", "const") else spelt_out(value) for key, value in schema.items()}
    names = out.pop("propertyNames", None) if isinstance(schema.get("propertyNames"), dict) else None
    if names is not None and "not" in names:
        forbidden = {name: False for name in names["not"]["enum"] if name not in out.get("properties", {})}
        out["properties"] = {**out.get("properties", {}), **forbidden}
    elif names is not None:
        out["patternProperties"] = {names["pattern"]: out.get("additionalProperties", True)}
        out["additionalProperties"] = False
    return out


def valid(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


SLOWLY = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("backend", BACKENDS)
@SLOWLY
@given(schema=SCHEMAS, definition=BARE, values=st.lists(VALUES, min_size=3, max_size=8))
def test_validity_before_is_validity_after(backend: str, schema: Any, definition: Any, values: list[Any]) -> None:
    whole = rooted(schema, definition)
    try:
        after = lowered(whole, backend)
    except GrammarError as error:
        if error.code is ErrorCode.UNSATISFIABLE:
            assert not any(valid(whole, value) for value in values)
        return
    for value in values:
        assert valid(spelt_out(after), value) == valid(whole, value)


@pytest.mark.parametrize("backend", BACKENDS)
@SLOWLY
@given(schema=SCHEMAS, definition=BARE, values=st.lists(VALUES, min_size=3, max_size=8))
def test_nothing_invalid_is_served(backend: str, schema: Any, definition: Any, values: list[Any]) -> None:
    whole = rooted(schema, definition)
    try:
        grammar = compiled(spec_of(whole), backend)
    except GrammarError:
        assume(False)
    for value in values:
        if accepts(grammar, json.dumps(value)):
            assert valid(whole, value)
