"""What is refused before any library sees it: code, pointer and keyword, exactly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.schema.serving import BACKENDS, spec_of
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import Formats, GrammarKind, GrammarSpec
from vllm_grammar_backend.schema import prepare

INVALID, UNSUPPORTED = ErrorCode.INVALID_SCHEMA, ErrorCode.UNSUPPORTED_SCHEMA
UNSATISFIABLE = ErrorCode.UNSATISFIABLE
D4, D7 = "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"


def refusal(text: object, backend: str) -> GrammarError:
    with pytest.raises(GrammarError) as caught:
        prepare(spec_of(text), backend)
    return caught.value


def nested(levels: int) -> str:
    return '{"items":' * levels + "{}" + "}" * levels


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", INVALID),
        ("", INVALID),
        ('{"a": NaN}', INVALID),
        ('{"maximum": 1e999}', INVALID),
        ('{"type": "string", "type": "null"}', INVALID),
        ('{"title": "\\ud800"}', INVALID),
        ('{"maximum": ' + "9" * 5000 + "}", INVALID),
        (nested(200), ErrorCode.TOO_LARGE),
        ("[" * 100_000, ErrorCode.TOO_LARGE),
    ],
)
def test_unreadable(backend: str, text: str, code: ErrorCode) -> None:
    assert refusal(text, backend).code is code


def test_brackets_in_strings_are_no_depth() -> None:
    assert prepare(spec_of({"const": "[{" * 500}), "guidance").text


METASCHEMA: list[tuple[Any, str, str | None]] = [
    (5, "", None),
    ([], "", None),
    ({"type": "strnig"}, "/type", "type"),
    ({"properties": []}, "/properties", "properties"),
    ({"properties": {"a": 5}}, "/properties/a", "properties"),
    ({"properties": {"minLength": {"minLength": -1}}}, "/properties/minLength/minLength", "minLength"),
    ({"properties": {"a/b~c": {"required": "x"}}}, "/properties/a~1b~0c/required", "required"),
    ({"items": {"anyOf": []}}, "/items/anyOf", "anyOf"),
    ({"anyOf": [{}, {"enum": 3}]}, "/anyOf/1/enum", "enum"),
    ({"items": [{}]}, "/items", "items"),
    ({"exclusiveMinimum": True}, "/exclusiveMinimum", "exclusiveMinimum"),
    ({"$schema": D4, "exclusiveMinimum": 3}, "/exclusiveMinimum", "exclusiveMinimum"),
    ({"$schema": D4, "const": 1, "minimum": "x"}, "/minimum", "minimum"),
]


@pytest.mark.parametrize(("schema", "pointer", "keyword"), METASCHEMA)
def test_metaschema(schema: Any, pointer: str, keyword: str | None) -> None:
    error = refusal(schema, "guidance")
    assert (error.code, error.pointer, error.keyword) == (INVALID, pointer, keyword)


def test_unknown_dialect() -> None:
    error = refusal({"$schema": "http://json-schema.org/draft-03/schema#"}, "guidance")
    assert (error.code, error.pointer, error.keyword) == (UNSUPPORTED, "/$schema", "$schema")


REFERENCES: list[tuple[Any, str]] = [
    ({"$ref": "#"}, "/$ref"),
    ({"$ref": "https://example.com/s.json"}, "/$ref"),
    ({"properties": {"s": {"$ref": "/$defs/S"}}, "$defs": {"S": {}}}, "/properties/s/$ref"),
    ({"items": {"$ref": "#/$defs/missing"}}, "/items/$ref"),
    ({"items": {"$ref": "#missing"}}, "/items/$ref"),
    ({"items": {"$ref": "#/enum/0"}, "enum": [{}]}, "/items/$ref"),
    ({"$ref": "#/default", "default": {"type": "string"}}, "/$ref"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "/$defs/b/$ref"),
    ({"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "/anyOf/1/$ref"),
    ({"$defs": {"a": {"not": {"$ref": "#/$defs/a"}}}, "items": {"$ref": "#/$defs/a"}}, "/$defs/a/not/$ref"),
    ({"$defs": {"a": {"if": {"$ref": "#/$defs/a"}, "then": {}}}, "$ref": "#/$defs/a"}, "/$defs/a/if/$ref"),
]


@pytest.mark.parametrize(("schema", "pointer"), REFERENCES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_references(schema: Any, pointer: str, backend: str) -> None:
    error = refusal(schema, backend)
    assert (error.code, error.pointer, error.keyword) == (INVALID, pointer, "$ref")


PATTERNS: list[tuple[str, ErrorCode]] = [
    ("[a-z", INVALID),
    ("(a", INVALID),
    ("a)", INVALID),
    ("*a", INVALID),
    ("a{3,2}", INVALID),
    ("[z-a]", INVALID),
    (r"\q", INVALID),
    ("(?<=a)b", UNSUPPORTED),
    ("a(?!b)", UNSUPPORTED),
    (r"(a)\1", UNSUPPORTED),
    (r"\bfoo", UNSUPPORTED),
    (r"\p{L}+", UNSUPPORTED),
    ("(?i)a", UNSUPPORTED),
    ("a^b", UNSUPPORTED),
    ("a\0b", UNSUPPORTED),
    ("(" * 100 + ")" * 100, UNSUPPORTED),
    ("(a{1000}){1000}", ErrorCode.TOO_LARGE),
    ("[]", UNSATISFIABLE),
]


@pytest.mark.parametrize(("pattern", "code"), PATTERNS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_patterns(pattern: str, code: ErrorCode, backend: str) -> None:
    error = refusal({"items": {"type": "string", "pattern": pattern}}, backend)
    assert (error.code, error.pointer, error.keyword) == (code, "/items/pattern", "pattern")
    assert pattern not in str(error)
    names = refusal({"type": "object", "patternProperties": {pattern: {}}}, backend)
    assert (names.code, names.keyword) == (code, "patternProperties")


NOTHING: list[tuple[Any, str, str | None]] = [
    (False, "", None),
    ({"enum": []}, "/enum", "enum"),
    ({"type": "string", "enum": [1, 2]}, "/enum", "enum"),
    ({"type": "object", "properties": {"x": {"enum": []}}, "required": ["x"]}, "/properties/x/enum", "enum"),
    ({"type": "object", "properties": {"x": False}, "required": ["x"]}, "/properties/x", None),
]
BOUNDS: list[tuple[Any, str, str | None]] = [
    ({"type": "string", "minLength": 3, "maxLength": 2}, "/minLength", "minLength"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "/minimum", "minimum"),
    ({"type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 3}, "/exclusiveMinimum", "exclusiveMinimum"),
    ({"type": "array", "minItems": 2, "maxItems": 1}, "/minItems", "minItems"),
]


@pytest.mark.parametrize(
    ("schema", "pointer", "keyword", "backend"),
    [(*row, backend) for row in NOTHING for backend in BACKENDS] + [(*row, "xgrammar") for row in BOUNDS],
)
def test_unsatisfiable(schema: Any, pointer: str, keyword: str | None, backend: str) -> None:
    error = refusal(schema, backend)
    assert (error.code, error.pointer, error.keyword) == (UNSATISFIABLE, pointer, keyword)


def test_endless_values() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}, "required": ["next"]}
    for backend in BACKENDS:
        assert refusal({"$ref": "#/$defs/n", "$defs": {"n": node}}, backend).code is UNSATISFIABLE


LACKING: list[tuple[str, Any, str]] = [
    ("guidance", {"type": "array", "uniqueItems": True}, "uniqueItems"),
    ("guidance", {"type": "array", "contains": {"const": 1}}, "contains"),
    ("guidance", {"type": "object", "minProperties": 1}, "minProperties"),
    ("guidance", {"type": "string", "not": {"pattern": "a"}}, "not"),
    ("guidance", {"type": "integer", "multipleOf": 5}, "multipleOf"),
    ("xgrammar", {"type": "array", "uniqueItems": True}, "uniqueItems"),
    ("xgrammar", {"type": "array", "contains": {"const": 1}}, "contains"),
    ("xgrammar", {"type": "object", "minProperties": 2}, "minProperties"),
    ("xgrammar", {"type": "integer", "multipleOf": 5}, "multipleOf"),
    ("xgrammar", {"type": "number", "minimum": 0.12345678}, "minimum"),
    ("xgrammar", {"oneOf": [{"minimum": 1}, {"maximum": 2}]}, "oneOf"),
    ("xgrammar", {"type": "string", "pattern": "^a*b*$", "maxLength": 3}, "maxLength"),
    ("xgrammar", {"type": "object", "patternProperties": {"a": {"type": "null"}}}, "patternProperties"),
    ("xgrammar", {"type": "string", "format": "iri"}, "format"),
]


@pytest.mark.parametrize(("backend", "schema", "keyword"), LACKING)
def test_named_place_of_what_a_backend_lacks(backend: str, schema: Any, keyword: str) -> None:
    error = refusal({"type": "object", "properties": {"a~/": schema}}, backend)
    assert (error.code, error.pointer) == (UNSUPPORTED, f"/properties/a~0~1/{keyword}")
    assert error.keyword == keyword


@pytest.mark.parametrize("backend", BACKENDS)
def test_blow_ups_end_soon(backend: str) -> None:
    doubled: dict[str, Any] = {"d0": {"type": "string", "minLength": 1}}
    for i in range(1, 60):
        doubled[f"d{i}"] = {"anyOf": [{"$ref": f"#/$defs/d{i - 1}"}, {"$ref": f"#/$defs/d{i - 1}"}]}
    schema = {"not": {"$ref": "#/$defs/d59"}, "$defs": doubled}
    assert refusal(schema, backend).code in (ErrorCode.TOO_COSTLY, UNSUPPORTED)


def test_formats_may_be_annotations() -> None:
    schema = {"type": "string", "format": "iri"}
    assert "format" not in prepare(spec_of(schema, formats=Formats.ANNOTATE), "guidance").text


@pytest.mark.parametrize(
    ("backend", "schema", "code", "where"),
    [
        ("guidance", {"items": {"maxItems": 10**9}}, ErrorCode.TOO_COSTLY, "/items/maxItems"),
        ("guidance", {"type": "array", "minItems": 10**9}, ErrorCode.TOO_COSTLY, "/minItems"),
        ("xgrammar", {"properties": {"x" * 20_000: {"type": "null"}}}, ErrorCode.UNSUPPORTED_SCHEMA, "/properties"),
    ],
)
def test_what_would_end_the_librarys_process_is_refused_first(
    backend: str, schema: Any, code: ErrorCode, where: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        prepare(GrammarSpec(GrammarKind.JSON, json.dumps(schema)), backend)
    assert (caught.value.code, caught.value.pointer) == (code, where)


@pytest.mark.parametrize("line", ["r{i} ::= r{j}", "r{i}: r{j}", "?r{i}.2: r{j}", "R{i}[lazy]: R{j}", "  r{i} : r{j}"])
def test_a_grammar_of_thousands_of_rules_is_refused_first(line: str) -> None:
    def text(rules: int) -> str:
        return "\n".join(line.format(i=i, j=i + 1) for i in range(rules))

    assert prepare(GrammarSpec(GrammarKind.GRAMMAR, text(1000)), "guidance").text == text(1000)
    with pytest.raises(GrammarError) as caught:
        prepare(GrammarSpec(GrammarKind.GRAMMAR, text(1001)), "guidance")
    assert caught.value.code is ErrorCode.TOO_LARGE


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "reference", ["#/%ff", "#/allOf/0000000001", "#/allOf/01", "#/allOf/99999999999", "#/allOf/-1"]
)
def test_a_reference_that_leads_nowhere_has_a_place(backend: str, reference: str) -> None:
    found = refusal({"allOf": [{"type": "null"}], "$ref": reference}, backend)
    assert (found.code, found.pointer, found.keyword) == (INVALID, "/$ref", "$ref")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_grammar_inside_of_a_tag_has_the_bounds_of_one_alone(backend: str) -> None:
    rules = "".join(f'r{i} ::= "a"\n' for i in range(2_000))
    tag = {"format": {"type": "sequence", "elements": [{"type": "grammar", "grammar": f"root ::= r0\n{rules}"}]}}
    with pytest.raises(GrammarError) as caught:
        prepare(spec_of(tag, GrammarKind.STRUCTURAL_TAG), backend)
    assert (caught.value.code, caught.value.pointer) == (ErrorCode.TOO_LARGE, "/format/elements/0/grammar")
