"""Regexes, choices, grammars and structural tags."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.schema.serving import BACKENDS, accepts, compiled, spec_of
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import GrammarKind

INVALID = ErrorCode.INVALID_GRAMMAR

REGEXES: list[tuple[str, list[str], list[str]]] = [
    ("", [""], ["a"]),
    ("^(|.*)$", ["", "abc"], ["a\nb"]),
    ("a.b", ["axb"], ["a\nb", "xaxb"]),
    (r"^(anon-)?\d{11,}$", ["anon-12345678901"], ["anon-123"]),
    (r"[a-f\d]{3}", ["0f9"], ["0F9", "0f9a"]),
    ("a\nb", ["a\nb"], ["ab"]),
    (r"\x0ab", ["\nb"], ["«"]),
    (r'"[^"]*"', ['"a"'], ['"a""']),
    ("猫|🐈", ["猫", "🐈"], ["犬"]),
    ("^a|b$", ["a", "b"], ["ax"]),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("source", "yes", "no"), REGEXES)
def test_regex(backend: str, source: str, yes: list[str], no: list[str]) -> None:
    grammar = compiled(spec_of(source, GrammarKind.REGEX), backend)
    assert [text for text in yes if not accepts(grammar, text)] == []
    assert [text for text in no if accepts(grammar, text)] == []


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("kind", "text", "code"),
    [
        (GrammarKind.REGEX, "[a-z", INVALID),
        (GrammarKind.REGEX, "(?=a)b", ErrorCode.UNSUPPORTED_SCHEMA),
        (GrammarKind.REGEX, r"(a)\1", ErrorCode.UNSUPPORTED_SCHEMA),
        (GrammarKind.REGEX, "[\0-z]+", ErrorCode.UNSUPPORTED_SCHEMA),
        (GrammarKind.REGEX, "(a{1000}){1000}", ErrorCode.TOO_LARGE),
        (GrammarKind.CHOICE, "[]", INVALID),
        (GrammarKind.CHOICE, '["a", 1]', INVALID),
        (GrammarKind.CHOICE, '"a"', INVALID),
        (GrammarKind.GRAMMAR, " \n", INVALID),
        (GrammarKind.GRAMMAR, 'root ::= "a\0"', INVALID),
        (GrammarKind.GRAMMAR, 'root ::= "a"\nroot ::= "b"', INVALID),
        (GrammarKind.GRAMMAR, "root ::= missing", INVALID),
        (GrammarKind.GRAMMAR, 'top ::= "a"', INVALID),
    ],
)
def test_refused(backend: str, kind: GrammarKind, text: str, code: ErrorCode) -> None:
    with pytest.raises(GrammarError) as caught:
        compiled(spec_of(text, kind), backend)
    assert (caught.value.code, caught.value.keyword) == (code, kind.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_choice(backend: str) -> None:
    grammar = compiled(spec_of(["1", "11", "1", "", 'a"\n'], GrammarKind.CHOICE), backend)
    assert all(accepts(grammar, text) for text in ("1", "11", "", 'a"\n'))
    assert not any(accepts(grammar, text) for text in ("111", "a"))


SCHEMA = {"type": "object", "properties": {"q": {"type": "string", "maxLength": 3}}, "additionalProperties": False}
LEGACY = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f"],
}


def modern(schema: object) -> dict[str, Any]:
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "structural_tag", "format": {"type": "tag", "begin": "<t>", "content": content, "end": "</t>"}}


@pytest.mark.parametrize("backend", BACKENDS)
def test_structural_tags(backend: str) -> None:
    legacy = compiled(spec_of(LEGACY, GrammarKind.STRUCTURAL_TAG), backend)
    assert accepts(legacy, 'text <f>{"q":"a"}</f> more')
    assert not accepts(legacy, '<f>{"q":"abcd"}</f>')
    tag = compiled(spec_of(modern(SCHEMA), GrammarKind.STRUCTURAL_TAG), backend)
    assert accepts(tag, '<t>{"q":"a\\n"}</t>')
    assert not accepts(tag, '<t>{"q":"abcd"}</t>')


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("tag", "pointer"),
    [
        ([], ""),
        ({}, "/structures"),
        ({**LEGACY, "type": "tag"}, "/type"),
        ({**LEGACY, "structures": []}, "/structures"),
        ({**LEGACY, "triggers": []}, "/triggers"),
        ({**LEGACY, "triggers": ["<g"]}, "/structures/0/begin"),
        ({**LEGACY, "structures": [{"begin": "<f"}]}, "/structures/0/end"),
        ({"format": 3}, "/format"),
        (modern({"type": "nope"}), "/format/content/json_schema/type"),
        (modern({"items": {"$ref": "http://x"}}), "/format/content/json_schema/items/$ref"),
        (modern(False), "/format/content/json_schema"),
        ({"format": {"type": "regex", "pattern": "(?=a)"}}, "/format/pattern"),
        ({"format": {"type": "sequence", "elements": [modern(True)["format"], 1]}}, "/format/elements/1"),
        ({"format": {"type": "json_schema", "style": "qwen_xml", "json_schema": True}}, "/format/style"),
    ],
)
def test_refused_tags(backend: str, tag: Any, pointer: str) -> None:
    with pytest.raises(GrammarError) as caught:
        compiled(spec_of(json.dumps(tag), GrammarKind.STRUCTURAL_TAG), backend)
    assert caught.value.pointer == pointer
