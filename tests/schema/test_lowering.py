"""What is served is what the schema says: each row on both backends, through the engines themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.schema.serving import BACKENDS, accepts, compiled, lowered, spec_of
from vllm_grammar_backend.errors import GrammarError
from vllm_grammar_backend.grammar import Formats

D4, D7 = "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"

Row = tuple[str, Any, list[Any], list[Any]]
ROWS: list[Row] = [
    ("bounded string", {"type": "string", "maxLength": 3}, ["", 'a"\n', "\\\\\\", "\x01", "猫🐈é"], ["abcd", 1]),
    ("long bound", {"type": "string", "maxLength": 1000}, ["", "x" * 1000, '"' * 1000], ["x" * 1001]),
    ("pattern is unanchored", {"type": "string", "pattern": "b"}, ["b", 'a"b\n'], ["", "a"]),
    ("pattern with quotes", {"type": "string", "pattern": '^"a\\\\[\\n]$'}, ['"a\\\n'], ["a", '"a\\']),
    ("alternatives and anchors", {"type": "string", "pattern": "^a|b$"}, ["ax", "xb"], ["xa", "bx"]),
    ("dot is no newline", {"type": "string", "pattern": "^a.b$"}, ["axb", 'a"b'], ["a\nb", "ab", "a\u2028b"]),
    ("digits are ASCII", {"type": "string", "pattern": r"^\d+$"}, ["12"], ["٣", ""]),
    ("ECMA space", {"type": "string", "pattern": r"^\s$"}, ["\ufeff", "\u3000", "\t"], ["a"]),
    ("hexadecimal escapes", {"type": "string", "pattern": r"^\x0ab$"}, ["\nb"], ["b"]),
    ("control in a class", {"type": "string", "pattern": r"^[\x01a]+$"}, ["\x01a", "a"], ["\x1a", "1"]),
    ("pattern and length", {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}, ["a", "abc"], ["", "abcd", "A"]),
    ("fixed part and length", {"type": "string", "pattern": "^x-[a-z]*$", "minLength": 4}, ["x-ab"], ["x-a", "x-"]),
    ("string but one", {"type": "string", "not": {"const": "no"}}, ["", "n", "noo", "yes"], ["no", 1]),
    ("not a type", {"not": {"type": ["string", "object"]}}, [1, None, [1], True], ["a", {}]),
    ("integer bounds", {"type": "integer", "minimum": -5, "exclusiveMaximum": 11}, [-5, 0, 10], [-6, 11, 100]),
    ("number bounds", {"type": "number", "minimum": -0.5, "maximum": 5}, [-0.5, 0, 4.9, 5], [-0.6, 5.1, 50]),
    ("typeless bound", {"minimum": 3}, [3, "a", None, {}], [2]),
    ("typeless properties", {"properties": {"a": {"type": "integer"}}}, [{"a": 1}, 5, "a", []], [{"a": "x"}]),
    ("nullable", {"type": ["string", "null"], "maxLength": 1}, [None, "a"], ["ab", 1]),
    (
        "enum with siblings",
        {"enum": ["a", 1, "bcd", None], "type": ["string", "null"], "maxLength": 2},
        ["a", None],
        [1],
    ),
    ("enum of containers", {"enum": [{"a": [1, "x"]}, [], {}]}, [{"a": [1, "x"]}, [], {}], [{"a": [1]}, [1]]),
    ("const and enum", {"const": "a", "enum": ["a", "b"]}, ["a"], ["b"]),
    (
        "open object",
        {"type": "object", "properties": {"a": {"type": "integer"}}},
        [{}, {"a": 1, "b": "x"}],
        [{"a": "x"}],
    ),
    (
        "required without properties",
        {"type": "object", "required": ["z"]},
        [{"z": 1}, {"b": 1, "z": 2}][:1],
        [{}, {"b": 1}],
    ),
    ("forbidden property", {"type": "object", "properties": {"a": False}}, [{}, {"b": 1}], [{"a": 1}]),
    ("names that need escapes", {"properties": {'a"\n': {"type": "null"}}}, [{'a"\n': None}, {"a": 1}], [{'a"\n': 1}]),
    (
        "long name",
        {"type": "object", "properties": {"n" * 100: {"type": "null"}}},
        [{"n" * 100: None}],
        [{"n" * 100: 1}],
    ),
    (
        "closed",
        {"type": "object", "properties": {"a": True}, "additionalProperties": False},
        [{"a": 1}, {}],
        [{"b": 1}],
    ),
    ("map", {"type": "object", "additionalProperties": {"type": "integer"}}, [{"x": 1}], [{"x": "a"}]),
    ("names by pattern", {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, [{"ab": 1}, {}], [{"A": 1}]),
    ("names by list", {"type": "object", "propertyNames": {"enum": ["a", "b"]}}, [{"a": 1}], [{"c": 1}]),
    (
        "properties and patterns",
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "patternProperties": {"^x-": {"type": "string"}},
            "additionalProperties": False,
        },
        [{"a": 1, "x-b": "s"}],
        [{"x-b": 1}, {"b": 1}, {"a": "s"}],
    ),
    (
        "array bounds",
        {"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2},
        [[None]],
        [[], [None] * 3],
    ),
    (
        "tuple",
        {"prefixItems": [{"type": "null"}, {"type": "string"}], "items": False},
        [[], [None, "a"], 1],
        [[None, "a", 1]],
    ),
    ("tuple with a dead end", {"type": "array", "prefixItems": [True, False]}, [[], [1]], [[1, 1]]),
    ("allOf", {"allOf": [{"type": "string"}, {"enum": ["yes", 1]}]}, ["yes"], ["no", 1]),
    (
        "anyOf with siblings",
        {
            "type": "object",
            "properties": {"k": {"type": "string"}, "m": {"type": "string"}},
            "additionalProperties": False,
            "anyOf": [{"required": ["k"]}, {"required": ["m"]}],
        },
        [{"k": "a"}, {"m": "a"}, {"k": "a", "m": "b"}],
        [{}, {"o": 1}, 5],
    ),
    (
        "oneOf told apart by a constant",
        {
            "type": "object",
            "properties": {"t": {"enum": ["a", "b"]}},
            "required": ["t"],
            "oneOf": [
                {"properties": {"t": {"const": "a"}, "n": {"type": "integer"}}, "required": ["n"]},
                {"properties": {"t": {"const": "b"}}},
            ],
        },
        [{"t": "a", "n": 1}, {"t": "b"}],
        [{"t": "a"}, {"t": "c"}, {"n": 1}],
    ),
    (
        "if",
        {
            "type": "object",
            "properties": {"k": {"enum": ["a", "b"]}, "v": {"type": "integer"}},
            "required": ["k"],
            "if": {"properties": {"k": {"const": "a"}}},
            "then": {"required": ["v"]},
        },
        [{"k": "b"}, {"k": "a", "v": 1}],
        [{"k": "a"}, {"k": "c"}],
    ),
    (
        "dependentRequired",
        {"type": "object", "properties": {"c": {}, "v": {}}, "dependentRequired": {"c": ["v"]}},
        [{}, {"v": 1}, {"c": 1, "v": 2}],
        [{"c": 1}],
    ),
    (
        "sibling of a reference",
        {"$ref": "#/$defs/s", "minLength": 2, "$defs": {"s": {"type": "string"}}},
        ["ab"],
        ["a", 1],
    ),
    (
        "sibling of a reference in draft 7",
        {"$schema": D7, "$ref": "#/definitions/s", "minLength": 2, "definitions": {"s": {"type": "string"}}},
        ["a"],
        [1],
    ),
    ("draft 4 bound", {"$schema": D4, "type": "integer", "minimum": 3, "exclusiveMinimum": True}, [4], [3]),
    ("draft 4 has no const", {"$schema": D4, "const": 1}, ["anything"], []),
    (
        "draft 7 tuple",
        {"$schema": D7, "items": [{"type": "null"}], "additionalItems": False},
        [[None]],
        [[None, 1], [1]],
    ),
    ("dependencies", {"$schema": D7, "type": "object", "dependencies": {"a": ["b"]}}, [{}, {"b": 1}], [{"a": 1}]),
    ("anchor", {"items": {"$ref": "#n"}, "$defs": {"x": {"$anchor": "n", "type": "null"}}}, [[None]], [[1]]),
    (
        "identified part",
        {"$id": "https://a.b/c", "items": {"$ref": "d"}, "$defs": {"x": {"$id": "/d", "type": "null"}}},
        [[None]],
        [[1]],
    ),
    ("escaped pointer", {"items": {"$ref": "#/$defs/a~1b%25"}, "$defs": {"a/b%": {"type": "null"}}}, [[None]], [[1]]),
    ("unknown place", {"items": {"$ref": "#/components/N"}, "components": {"N": {"type": "null"}}}, [[None]], [[1]]),
    ("date", {"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29", "2024-13-01", "x"]),
    (
        "date-time",
        {"type": "string", "format": "date-time"},
        ["2024-02-29T10:00:00.5Z"],
        ["2024-02-29", "2024-02-29T10:00:00"],
    ),
    ("ipv6", {"type": "string", "format": "ipv6"}, ["::1", "1:2:3:4:5:6:7:8"], ["1:2", ":::"]),
    ("unknown format", {"type": "string", "format": "colour"}, ["x"], [1]),
    ("vendor options", {"type": "null", "x-guidance": {"lenient": True, "whitespace_flexible": False}}, [None], [1]),
    (
        "properties named like keywords",
        {
            "type": "object",
            "properties": {"title": {"type": "null"}, "$ref": {"type": "null"}, "format": {"type": "null"}},
        },
        [{"title": None, "$ref": None, "format": None}],
        [{"title": 1}, {"$ref": 1}, {"format": 1}],
    ),
    ("data that looks like a schema", {"const": {"title": "a", "$ref": "#/x"}}, [{"title": "a", "$ref": "#/x"}], [{}]),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("schema", "valid", "invalid"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_served_as_written(schema: Any, valid: list[Any], invalid: list[Any], backend: str) -> None:
    grammar = compiled(spec_of(schema), backend)
    assert [v for v in valid if not accepts(grammar, json.dumps(v, ensure_ascii=False))] == []
    assert [v for v in invalid if accepts(grammar, json.dumps(v, ensure_ascii=False))] == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_name_cannot_hide_behind_an_escape(backend: str) -> None:
    grammar = compiled(spec_of({"type": "object", "properties": {"ab": {"type": "integer"}}}), backend)
    for key in ('"\\u0061b"', '"a\\u0062"', '"\\u0061\\u0062"'):
        assert not accepts(grammar, f'{{{key}: "x"}}')
    assert not accepts(grammar, '{"ab": 1, "ab": "x"}')


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_raw_quote_or_control_character_gets_into_a_string(backend: str) -> None:
    for schema in ({"maxLength": 2000}, {"pattern": "x"}, {"pattern": '"[x]'}, {"pattern": "^[^a]{0,900}$"}):
        grammar = compiled(spec_of({"type": "string", **schema}), backend)
        for text in ('"x"x"', '"x\nx"', '"x\\x"', '"x\x00x"'):
            assert not accepts(grammar, text)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("noise", ["title", "description", "default", "examples", "$comment", "contentEncoding", "x-y"])
def test_annotations_never_decline_anything(backend: str, noise: str) -> None:
    value = [{"type": "integer", "not": 3}] if noise == "examples" else "base64"
    assert lowered({"type": "null", noise: value}, backend) == {"type": "null"}


def test_format_as_annotation() -> None:
    for backend in BACKENDS:
        grammar = compiled(spec_of({"type": "string", "format": "date"}, formats=Formats.ANNOTATE), backend)
        assert accepts(grammar, '"whenever"')


def test_what_nothing_refers_to_is_not_looked_at() -> None:
    unused = {"x": {"type": "array", "uniqueItems": True}, "y": {"$ref": "https://example.com"}}
    for backend in BACKENDS:
        assert lowered({"type": "null", "$defs": unused}, backend) == {"type": "null"}


def test_deep_but_ordinary() -> None:
    schema: dict[str, Any] = {"type": "null"}
    text = "null"
    for _ in range(30):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
        text = f'{{"a":{text}}}'
    for backend in BACKENDS:
        assert accepts(compiled(spec_of(schema), backend), text)


def test_errors_do_not_quote_the_schema() -> None:
    for schema in ({"type": "secret"}, {"const": 1, "$ref": "secret"}, {"pattern": "(secret"}, {"enum": "secret"}):
        with pytest.raises(GrammarError) as caught:
            compiled(spec_of(schema), "guidance")
        assert "secret" not in str(caught.value)
