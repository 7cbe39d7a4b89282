"""Bounds and the canonical form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_grammar_backend.admission import admit, check_bounds, is_small
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import GrammarKind, GrammarOptions, GrammarSpec, Whitespace, canonical_schema
from vllm_grammar_backend.settings import Limits

LIMITS = Limits()
OPTIONS = GrammarOptions()


def refused(kind: GrammarKind, value: object, limits: Limits = LIMITS) -> GrammarError:
    with pytest.raises(GrammarError) as caught:
        admit(kind, value, OPTIONS, limits)
    return caught.value


def admitted(value: object, options: GrammarOptions = OPTIONS) -> GrammarSpec:
    return admit(GrammarKind.JSON, value, options, LIMITS)


def nested(levels: int) -> dict[str, Any]:
    tree: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        tree = {"items": tree}
    return tree


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        (nested(500), "depth"),
        (json.dumps(nested(500)), "depth"),
        ("[" * 100_000, "depth"),
        ({"enum": ["x" * 300_000]}, "bytes"),
        ('{"enum": ["' + "x" * 2_000_000 + '"]}', "bytes"),
        ({"enum": list(range(50_001))}, "enum"),
        ({"enum": [10**4300] * 1000}, "bytes"),
        ({"properties": {str(i): {"type": "string"} for i in range(30_000)}}, "nodes"),
    ],
)
def test_each_limit_is_named(value: object, limit: str) -> None:
    error = refused(GrammarKind.JSON, value)
    assert error.code is ErrorCode.TOO_LARGE
    assert f"limits.{limit}" in str(error)


def test_limits_are_inclusive() -> None:
    assert admitted(nested(LIMITS.depth - 1)).kind is GrammarKind.JSON
    assert refused(GrammarKind.JSON, nested(LIMITS.depth)).code is ErrorCode.TOO_LARGE


@pytest.mark.parametrize("text", ["", "{", "nope", '{"a": NaN}', '{"type": "str\ud800"}'])
def test_text_that_is_not_json_is_an_invalid_schema(text: str) -> None:
    assert refused(GrammarKind.JSON, text).code is ErrorCode.INVALID_SCHEMA


def test_keys_of_other_types_are_refused() -> None:
    assert refused(GrammarKind.JSON, {"properties": {1: {}}}).code is ErrorCode.INVALID_SCHEMA


def test_a_long_regex_is_too_large_and_a_long_grammar_is_not() -> None:
    assert refused(GrammarKind.REGEX, "a" * 5000).code is ErrorCode.TOO_LARGE
    assert admit(GrammarKind.GRAMMAR, "a" * 5000, OPTIONS, LIMITS).text == "a" * 5000


def test_object_and_text_have_one_digest() -> None:
    schema = {"type": "object", "properties": {"b": {"const": 1.5}, "a": {"enum": ["é", None]}}}
    assert admitted(schema).digest == admitted(json.dumps(schema, indent=3)).digest


def test_property_order_and_options_are_part_of_the_digest() -> None:
    ab, ba = ({"properties": dict.fromkeys(order, True)} for order in ("ab", "ba"))
    assert admitted(ab).digest != admitted(ba).digest
    assert admitted(ab).digest != admitted(ab, GrammarOptions(Whitespace.COMPACT)).digest


def test_annotations_are_left_out_by_position_only() -> None:
    schema = {
        "title": "gone",
        "properties": {"title": {"description": "gone", "type": "string"}, "examples": {"const": {"title": "stays"}}},
        "items": [{"$comment": "gone"}, {"enum": [{"description": "stays"}]}],
        "x-vendor": {"title": "stays"},
        "default": {"title": "stays"},
    }
    assert canonical_schema(schema) == {
        "properties": {"title": {"type": "string"}, "examples": {"const": {"title": "stays"}}},
        "items": [{}, {"enum": [{"description": "stays"}]}],
        "x-vendor": {"title": "stays"},
        "default": {"title": "stays"},
    }


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["title", "properties", "items", "enum", "allOf", "not", "x"]) | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_canonical_form_is_stable_under_itself(value: object) -> None:
    once = canonical_schema(value)
    assert canonical_schema(once) == once


@given(JSON_VALUES)
def test_small_bounds_agree_with_a_direct_count(value: object) -> None:
    def depth(node: object) -> int:
        inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        return 1 + max(map(depth, inner), default=-1)

    limits = Limits(depth=3)
    if depth(value) > 3:
        with pytest.raises(GrammarError):
            check_bounds(value, limits)
    else:
        check_bounds(value, limits)
    assert is_small(value)


def test_a_large_constraint_is_not_small() -> None:
    assert not is_small({"enum": list(range(5000))})
    assert not is_small("x" * 100_000)
    assert not is_small({"pattern": "x" * 200_000})
    assert not is_small({"enum": [10**4300] * 50})
