"""Constraints with texts in and out of their language, for the contract suite. All hold for every backend."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from vllm_grammar_backend.grammar import GrammarKind, GrammarOptions, GrammarSpec, Whitespace


def spec(kind: GrammarKind, text: str, *, whitespace: Whitespace = Whitespace.BOUNDED) -> GrammarSpec:
    return GrammarSpec(kind, text, GrammarOptions(whitespace=whitespace))


def json_spec(schema: object, whitespace: Whitespace = Whitespace.BOUNDED) -> GrammarSpec:
    return spec(GrammarKind.JSON, json.dumps(schema), whitespace=whitespace)


@dataclass(frozen=True)
class Sample:
    name: str
    spec: GrammarSpec
    valid: tuple[str, ...]
    invalid: tuple[str, ...]


PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PERSON_WITH_EXTRAS: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
TREE: dict[str, Any] = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["value", "children"],
            "additionalProperties": False,
        }
    },
}


def tree(depth: int) -> dict[str, Any]:
    return {"value": depth, "children": [tree(depth - 1)] if depth > 1 else []}


DOCUMENTS: list[object] = [
    {"a": [1, 2, {"b": None}], "c": {"d": {"e": {}}}, "f": []},
    [[[[[[[True, False]]]]]]],
    "text",
    [-0.5, 1e300, 10**30],
    {"": {"\n": '"'}},
]

UNICODE = [
    '{"🐈": "🐈\u200d⬛ 👩\u200d👩\u200d👧 🇨🇭"}',
    '["你好，世界", "日本語テキスト", "한국어", "עברית", "\u0928\u092e\u0938\u094d\u0924\u0947"]',
    '["e\u0301 n\u0303 a\u0308\u0304", "\u1e9e\ufb03", "\u2028\u2029\ufeff"]',
    r'["\n\t\r\b\f", "\"quoted\"", "C:\\temp\\new", "\u0000\u001f"]',
    "[-0.0, 0, -0, 1e10, 1E-7, 1.5e+300, 123456789012345678901234567890, -1, 0.1]",
    r'{"a \"quoted\" key": 1, "back\\slash": 2, "": 3, "a.b/c~d": 4}',
    '[{"deep": [{"deep": [{"deep": [null, true, false, "\U0010ffff"]}]}]}]',
]

ESCAPES = (r'"\u00e9"', r'"\ud83d\udc08"', r'"\uD83D\uDC08x"', r'"\/"', r'"\u0041"')
"""Escapes of characters that need none: JSON, though a backend may leave them out."""

_DOCUMENT_TEXTS = ("{}", '{"a": 1}', '{"a":[1,{"b":null}],"é":"猫"}', '{"a": {"b": "\\"}"}}')
_NOT_OBJECTS = ("", "[]", "1", '"a"', "{", '{"a"}', '{"a":1,}', "{a:1}", '{"a":01}', '{"a":"\n"}', "{}{}", "null")

ACCEPTED = [
    Sample("object", spec(GrammarKind.JSON_OBJECT, ""), _DOCUMENT_TEXTS, _NOT_OBJECTS),
    Sample("anything", json_spec({}), ("[]", "-1.5e3", "null", *_DOCUMENT_TEXTS), ("", "nul", "[1,]")),
    Sample(
        "person",
        json_spec(PERSON),
        ('{"name":"ada","age":36}', '{"name": "猫\\n🐈", "age": -1}', '{\n  "name": "",\n  "age": 0\n}'),
        ('{"name":"ada"}', '{"name":"ada","age":"36"}', '{"name":"ada","age":1,"b":2}', '{"name":"ada","age":1.5}'),
    ),
    Sample(
        "open object",
        json_spec(PERSON_WITH_EXTRAS),
        ('{"name":"a","age":1,"more":[{}]}', '{"name":"a","age":1, "b":{"c": null}, "d": "é"}'),
        ('{"name":"a","age":1,"more"}', '{"more":1}'),
    ),
    Sample(
        "tree",
        json_spec(TREE),
        (json.dumps(tree(1)), json.dumps(tree(4)), json.dumps(tree(20))),
        ('{"value":1}', '{"value":1,"children":[1]}', '{"value":1,"children":[]}}'),
    ),
    Sample(
        "enum",
        json_spec({"enum": ["a", "ab", 'quo"te', 1, None, "猫"]}),
        ('"a"', '"ab"', '"quo\\"te"', "1", "null", '"猫"'),
        ('"abc"', "11", "true", "a"),
    ),
    Sample(
        "optional",
        json_spec({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}}}),
        ("{}", '{"a":true}', '{"b":null}', '{"a":false, "b":null}', '{"a":true,"z":1}'),
        ('{"a":1}', '{"b":true}'),
    ),
    Sample(
        "array",
        json_spec({"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3}),
        ("[1]", "[1, -2.5, 3e2]"),
        ("[]", "[1,2,3,4]", '["a"]'),
    ),
    Sample(
        "pattern",
        json_spec({"type": "string", "pattern": "^[a-c]{2,4}$"}),
        ('"ab"', '"abca"'),
        ('"a"', '"abcab"', '"ad"', "ab"),
    ),
    Sample(
        "regex",
        spec(GrammarKind.REGEX, "(ab|c)*é?[0-9]{1,3}"),
        ("1", "ab12", "cabcé123"),
        ("", "ab", "é", "1234", "é1é"),
    ),
    Sample("regex of all texts", spec(GrammarKind.REGEX, "[^a]*"), ("", "b\n🐈", "}<t>"), ("a", "ba")),
    Sample("empty regex", spec(GrammarKind.REGEX, ""), ("",), ("a", " ")),
    Sample(
        "choice",
        spec(
            GrammarKind.CHOICE,
            json.dumps(["1", "11", "111", "11", 'say "hi"', "C:\\temp", "no\nplease", "🐈", "🐕\u0000"]),
        ),
        ("1", "11", "111", 'say "hi"', "C:\\temp", "no\nplease", "🐈", "🐕\u0000"),
        ("", "1111", "say hi", "C:temp", "no", "🐕"),
    ),
    Sample("choice with nothing", spec(GrammarKind.CHOICE, '["", "a"]'), ("", "a"), ("aa", "b")),
    Sample(
        "grammar",
        spec(
            GrammarKind.GRAMMAR,
            '# numbers\nroot ::= sum\nsum ::= num | num [+-] num\nnum ::= [0-9]+ ("." [0-9]{1,2})?\n',
        ),
        ("1", "12+3.5", "0-9"),
        ("", "1+", "1.234", "1+2+3"),
    ),
    Sample(
        "grammar whose parts overlap",
        spec(GrammarKind.GRAMMAR, 'root ::= [a-z]+ "end"'),
        ("aend", "aenxend", "endend"),
        ("end", "aen", "ende"),
    ),
    Sample(
        "recursive grammar",
        spec(GrammarKind.GRAMMAR, 'root ::= "(" inner* ")"\ninner ::= root | [a-z]+ "end" | "\\x41\\u00e9\\U0001F408"'),
        ("()", "((()))", "(aend(endend)Aé🐈)"),
        ("", "(", "())", "(end)", "(aen)"),
    ),
    Sample("left recursion", spec(GrammarKind.GRAMMAR, 'root ::= root "a" | "b"'), ("b", "baa"), ("a", "ab", "")),
    Sample(
        "backslash",
        spec(GrammarKind.GRAMMAR, 'root ::= [a-z]+ "\\\\" "\\"" [\\]\\-^]'),
        ('a\\"]', 'zz\\"^'),
        ('a"]', "a/"),
    ),
    Sample(
        "lark", spec(GrammarKind.GRAMMAR, 'start: "#" foo\nfoo: "x \\" y" | "don\'t"'), ('#x " y', "#don't"), ("x", "#")
    ),
    Sample(
        "lark with recursion",
        spec(GrammarKind.GRAMMAR, 'start: item ("," item)*\nitem: NUMBER | "[" start "]"\nNUMBER: /[0-9]+/'),
        ("1", "1,[2,[3]],45"),
        ("", "1,", "[1", "[]"),
    ),
]

_CALL = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
_OPEN_CALL = {"type": "object", "properties": {"city": {"type": "string"}}}


def _tag(begin: str, content: object, end: object) -> dict[str, object]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _schema(schema: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": schema}


def _const(value: str) -> dict[str, object]:
    return {"type": "const_string", "value": value}


def _triggered(**options: object) -> dict[str, object]:
    tags = [_tag("<f=a>", _const("x"), "</f>"), _tag("<f=b>", _schema(_CALL), "</f>")]
    return {"type": "triggered_tags", "triggers": ["<f"], "tags": tags, **options}


def _format(name: str, node: object, valid: tuple[str, ...], invalid: tuple[str, ...]) -> Sample:
    text = json.dumps({"type": "structural_tag", "format": node})
    return Sample(name, spec(GrammarKind.STRUCTURAL_TAG, text), valid, invalid)


_OLD = {
    "type": "structural_tag",
    "structures": [{"begin": "<function=get_weather>", "schema": _CALL, "end": "</function>"}],
    "triggers": ["<function="],
}
_CITY = '{"city": "Oslo"}'

TAGS = [
    Sample(
        "old form",
        spec(GrammarKind.STRUCTURAL_TAG, json.dumps(_OLD)),
        (
            f"<function=get_weather>{_CITY}</function>",
            "plain text <t>",
            "",
            f"é <function=get_weather>{_CITY}</function>🐈",
        ),
        (
            "<function=get_weather>{}</function>",
            "<function=other>{}</function>",
            "a <function=",
            f"<function=get_weather>{_CITY}",
        ),
    ),
    _format(
        "tag",
        _tag("<t>\n", _schema(_CALL), "\n</t>"),
        (f"<t>\n{_CITY}\n</t>", '<t>\n{"city":"</t>\\n"}\n</t>'),
        (f"<t>{_CITY}</t>", _CITY, f"<t>\n{_CITY} \n</t>", f"<t>\n{_CITY}\n</t> "),
    ),
    _format(
        "tag around what the schema leaves open",
        _tag("<t>", _schema(_OPEN_CALL), "</t>"),
        ('<t>{"city": "Oslo", "b": [1, {"c": null}]}</t>', "<t>{}</t>"),
        ('<t>{"city": 1}</t>',),
    ),
    _format(
        "tag around a string",
        _tag("<t>", _schema({"type": "string"}), "</t>"),
        ('<t>"a\\n"</t>', '<t>"</t>"</t>'),
        ("<t>a</t>",),
    ),
    _format(
        "tag around a number",
        _tag("<t>", _schema({"type": "integer"}), "\n</t>"),
        ("<t>5\n</t>", "<t>-12\n</t>"),
        ("<t>\n</t>", "<t>1.5\n</t>"),
    ),
    _format(
        "tag around text",
        _tag("<t>", {"type": "any_text"}, "</t>"),
        ("<t>a<é</t>", "<t></t>"),
        ("<t>a</t>b</t>", "<t>a"),
    ),
    _format(
        "tag with two ends",
        _tag("<t>", {"type": "regex", "pattern": "[a-z]*"}, ["</t>", "z"]),
        ("<t>az", "<t>zz", "<t>a</t>"),
        ("<t>a", "<t>A</t>"),
    ),
    _format(
        "triggered",
        _triggered(),
        ("", "hi", "hi<f=a>x</f>yo<f=a>x</f>", f"<<f=b>{_CITY}</f>", "hi<"),
        ("<f=c>", "hi<f", "<f=a>y</f>", "<f=b>{}</f>"),
    ),
    _format(
        "at least one",
        _triggered(at_least_one=True),
        ("<f=a>x</f>", "<f=a>x</f>yo<f=a>x</f>"),
        ("", "hi", "hi<f=a>x</f>"),
    ),
    _format(
        "stop after first",
        _triggered(stop_after_first=True),
        ("", "hi", "hi<f=a>x</f>"),
        ("<f=a>x</f>yo", "<f=a>x</f><f=a>x</f>"),
    ),
    _format(
        "excluded text",
        _triggered(excludes=["bad"]),
        ("good<f=a>x</f>", "ba"),
        ("bad", "a bad<f=a>x</f>", "<f=a>x</f>bad"),
    ),
    _format(
        "separated",
        {"type": "tags_with_separator", "separator": ",", "tags": _triggered()["tags"]},
        ("", "<f=a>x</f>", f"<f=a>x</f>,<f=b>{_CITY}</f>,<f=a>x</f>"),
        ("<f=a>x</f>,", "<f=a>x</f><f=a>x</f>", "x"),
    ),
    _format(
        "one of",
        {
            "type": "or",
            "elements": [_const("ok"), _tag("<t>", _schema(_CALL), "</t>"), _tag("<u>", _schema(_CALL), "</u>")],
        },
        ("ok", f"<t>{_CITY}</t>", f"<u>{_CITY}</u>"),
        ("", "okok", f"<t>{_CITY}</u>"),
    ),
    _format(
        "one or more",
        {"type": "plus", "content": _tag("<t>", _schema(_CALL), "</t>")},
        (f"<t>{_CITY}</t>" * 2, f"<t>{_CITY}</t>"),
        ("", "<t>"),
    ),
    _format("at most one", {"type": "optional", "content": _const("x")}, ("", "x"), ("xx",)),
    _format("any number", {"type": "star", "content": _const("x")}, ("", "xxx"), ("xy",)),
    _format("counted", {"type": "repeat", "min": 1, "max": 2, "content": _const("x")}, ("x", "xx"), ("", "xxx")),
    _format(
        "sequence",
        {"type": "sequence", "elements": [_const("<t>"), {"type": "regex", "pattern": "[bc]*"}, _const("b")]},
        ("<t>b", "<t>bcb"),
        ("<t>", "<t>c"),
    ),
]

_BAD_TAG = {"type": "structural_tag", "format": {"type": "s3cret"}}
_BAD_TRIGGER = {**_OLD, "triggers": ["<s3cret"]}

MALFORMED: list[tuple[GrammarSpec, str]] = [
    (spec(GrammarKind.REGEX, "s3cret[a-z"), "invalid_grammar"),
    (spec(GrammarKind.REGEX, "s3cret(a"), "invalid_grammar"),
    (spec(GrammarKind.REGEX, "(?=s3cret)a"), "invalid_grammar"),
    (spec(GrammarKind.REGEX, "s3cret\\"), "invalid_grammar"),
    (spec(GrammarKind.REGEX, "(s3cret)\\1"), "invalid_grammar"),
    (spec(GrammarKind.REGEX, "s3cret\ud800"), "invalid_grammar"),
    (spec(GrammarKind.CHOICE, "[]"), "invalid_grammar"),
    (spec(GrammarKind.CHOICE, '["s3cret", 1]'), "invalid_grammar"),
    (spec(GrammarKind.CHOICE, '"s3cret"'), "invalid_grammar"),
    (spec(GrammarKind.CHOICE, '["s3cret\\ud800"]'), "invalid_grammar"),
    (spec(GrammarKind.GRAMMAR, ""), "invalid_grammar"),
    (spec(GrammarKind.GRAMMAR, "root ::= s3cret"), "invalid_grammar"),
    (spec(GrammarKind.GRAMMAR, 's3cret ::= "a"'), "invalid_grammar"),
    (spec(GrammarKind.GRAMMAR, 'root ::= "a"\nroot ::= "s3cret"'), "invalid_grammar"),
    (spec(GrammarKind.GRAMMAR, 'root ::= "s3cret'), "invalid_grammar"),
    (spec(GrammarKind.GRAMMAR, 'root ::= "s3cret" )'), "invalid_grammar"),
    (spec(GrammarKind.GRAMMAR, "start: s3cret"), "invalid_grammar"),
    (spec(GrammarKind.GRAMMAR, 's3cret: "a"'), "invalid_grammar"),
    (spec(GrammarKind.GRAMMAR, 'start: "s3cret'), "invalid_grammar"),
    (spec(GrammarKind.GRAMMAR, "s3cret \u0000 é"), "invalid_grammar"),
    (
        spec(GrammarKind.GRAMMAR, 'start: %json {"x-guidance": {"lenient": true}, "not": {"const": "s3cret"}}'),
        "unsupported_kind",
    ),
    (spec(GrammarKind.GRAMMAR, 'start: %json {"const": -9223372036854775808}'), "unsupported_kind"),
    (
        spec(GrammarKind.GRAMMAR, r'start: %json {"x-\u0067uidance": {"lenient": true}, "uniqueItems": true}'),
        "unsupported_kind",
    ),
    (spec(GrammarKind.STRUCTURAL_TAG, json.dumps(_BAD_TAG)), "invalid_grammar"),
    (spec(GrammarKind.STRUCTURAL_TAG, json.dumps(_BAD_TRIGGER)), "invalid_grammar"),
    (spec(GrammarKind.STRUCTURAL_TAG, '{"s3cret": 1}'), "invalid_grammar"),
    (spec(GrammarKind.STRUCTURAL_TAG, '["s3cret"]'), "invalid_grammar"),
    (spec(GrammarKind.STRUCTURAL_TAG, '{"format": {"type": "token", "token": "s3cret"}}'), "unsupported_kind"),
    (spec(GrammarKind.STRUCTURAL_TAG, '{"format": {"type": "sequence", "elements": "s3cret"}}'), "invalid_grammar"),
    (json_spec({"enum": [], "title": "s3cret"}), "unsatisfiable_schema"),
]
