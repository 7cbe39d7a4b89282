"""What must be refused, and how: the worst inputs a client can send, with the code, keyword and pointer to expect."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from vllm_grammar_backend.errors import ErrorCode

MARKER: Final = "Zq9SecretZq9"
"""Stands in every text that must come back in no response and no log."""


@dataclass(frozen=True)
class Refusal:
    """A request's fields, and what its 400 must say. None: not looked at."""

    fields: dict[str, Any] = field(repr=False)
    code: ErrorCode | None = None
    keyword: str | None = None
    pointer: str | None = None


def nested(levels: int, inner: Any) -> Any:
    """`inner` below `levels` JSON objects."""
    for _ in range(levels):
        inner = {"properties": {"a": inner}}
    return inner


def _json(schema: Any, code: ErrorCode, keyword: str | None = None, pointer: str | None = None) -> Refusal:
    return Refusal({"structured_outputs": {"json": schema}}, code, keyword, pointer)


def _kind(kind: str, value: Any, code: ErrorCode = ErrorCode.INVALID_GRAMMAR) -> Refusal:
    return Refusal({"structured_outputs": {kind: value}}, code)


def _regex(value: str) -> Refusal:
    # What one backend cannot read, another cannot enforce: either code will do.
    return Refusal({"structured_outputs": {"regex": value}}, None, "regex")


_HUGE: Final = {"enum": [f"{MARKER}{index:0100}" for index in range(18_000)]}
"""2 MB."""
_LIKE_PATHS: Final = {"properties": {"root": {"properties": {"tmp": {"properties": {"a.b": {"minLength": MARKER}}}}}}}
_LIKE_PATHS_POINTER: Final = "/properties/root/properties/tmp/properties/a.b/minLength"
_ANY: Final[dict[str, Any]] = {"structured_outputs": {"json": {"type": "object"}}}

SCHEMAS: Final[dict[str, Refusal]] = {
    "malformed": _json({"type": "strin"}, ErrorCode.INVALID_SCHEMA, "type", "/type"),
    "malformed-deep": _json(_LIKE_PATHS, ErrorCode.INVALID_SCHEMA, "minLength", _LIKE_PATHS_POINTER),
    "escaped-pointer": _json(
        {"properties": {"a/b~c": {"type": 1}}}, ErrorCode.INVALID_SCHEMA, "type", "/properties/a~1b~0c/type"
    ),
    "not-json": _json("{" + MARKER, ErrorCode.INVALID_SCHEMA),
    "empty-text": _json("", ErrorCode.INVALID_SCHEMA),
    "list": _json(json.dumps([MARKER]), ErrorCode.INVALID_SCHEMA, pointer=""),
    "number": _json("17", ErrorCode.INVALID_SCHEMA, pointer=""),
    "false": _json("false", ErrorCode.UNSATISFIABLE),
    "2-MB": _json(_HUGE, ErrorCode.TOO_LARGE),
    "2-MB-text": _json(json.dumps(_HUGE), ErrorCode.TOO_LARGE),
    "500-levels": _json(nested(250, {"type": "string"}), ErrorCode.TOO_LARGE),
    "500-levels-text": _json(json.dumps(nested(250, {"type": "string"})), ErrorCode.TOO_LARGE),
    "100000-levels-text": _json("[" * 100_000 + "]" * 100_000, ErrorCode.TOO_LARGE),
    "dangling": _json({"$ref": "#/$defs/" + MARKER}, ErrorCode.INVALID_SCHEMA, "$ref", "/$ref"),
    "remote": _json({"$ref": "https://example.com/" + MARKER}, ErrorCode.INVALID_SCHEMA, "$ref", "/$ref"),
    "file": _json({"items": {"$ref": "file:///etc/passwd"}}, ErrorCode.INVALID_SCHEMA, "$ref", "/items/$ref"),
    "self": _json({"$ref": "#"}, ErrorCode.INVALID_SCHEMA, "$ref", "/$ref"),
    "circle": _json(
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        ErrorCode.INVALID_SCHEMA,
        "$ref",
    ),
    "empty-enum": _json({"enum": []}, ErrorCode.UNSATISFIABLE),
    "unsatisfiable": _json({"type": "integer", "minimum": 5, "maximum": 3}, ErrorCode.UNSATISFIABLE),
    "unsatisfiable-deep": _json(
        {"type": "object", "properties": {"a": {"type": "string", "minLength": 3, "maxLength": 2}}, "required": ["a"]},
        ErrorCode.UNSATISFIABLE,
    ),
    "look-around": _json({"pattern": "^(?=a)b"}, ErrorCode.UNSUPPORTED_SCHEMA, "pattern", "/pattern"),
    "broken-pattern": _json({"pattern": "[" + MARKER}, ErrorCode.INVALID_SCHEMA, "pattern", "/pattern"),
    "catastrophic": Refusal({"structured_outputs": {"json": {"pattern": "^(a{1000}){1000}$"}}}, None, "pattern"),
    "surrogate": _json({"const": "\ud800"}, ErrorCode.INVALID_SCHEMA),
    "contains": _json(
        {"properties": {"tmp": {"type": "array", "contains": {"const": MARKER}}}},
        ErrorCode.UNSUPPORTED_SCHEMA,
        "contains",
        "/properties/tmp/contains",
    ),
}

OTHER_KINDS: Final[dict[str, Refusal]] = {
    "nul": _regex("a\0" + MARKER),
    "nul-class": _regex("[\0-\u2e7f]+"),
    "regex-look-ahead": _regex(r"^(?=.*\d)[a-z0-9]{4}$"),
    "regex-look-behind": _regex("(?<=x)y"),
    "regex-unclosed": _regex("[a-z" + MARKER),
    "regex-back-reference": _regex(r"(a)\1"),
    "regex-surrogate": _kind("regex", "\ud800"),
    "regex-long": _kind("regex", MARKER * 10_000, ErrorCode.TOO_LARGE),
    "choice-empty": _kind("choice", []),
    "grammar-no-root": _kind("grammar", 'other ::= "a"'),
    "grammar-two-roots": _kind("grammar", 'root ::= "a"\nroot ::= "b"'),
    "grammar-undefined": _kind("grammar", "root ::= " + MARKER),
    "grammar-empty": _kind("grammar", ""),
    "grammar-long": _kind("grammar", 'root ::= "' + MARKER * 30_000 + '"', ErrorCode.TOO_LARGE),
    "tag-not-json": _kind("structural_tag", "{" + MARKER),
    "tag-unknown": _kind(
        "structural_tag", json.dumps({"type": "structural_tag", "format": {"type": MARKER}}), ErrorCode.INVALID_GRAMMAR
    ),
    "json-object-false": _kind("json_object", False),
}

OPTIONS: Final[dict[str, Refusal]] = {
    "beam-search": Refusal({**_ANY, "use_beam_search": True, "n": 2}, ErrorCode.UNSUPPORTED_OPTION, "use_beam_search"),
    "allowed-tokens": Refusal({**_ANY, "allowed_token_ids": [5]}, ErrorCode.UNSUPPORTED_OPTION, "allowed_token_ids"),
    "whitespace": Refusal(
        {"structured_outputs": {"json": {}, "whitespace_pattern": MARKER}},
        ErrorCode.UNSUPPORTED_OPTION,
        "whitespace_pattern",
    ),
    "additional": Refusal(
        {"structured_outputs": {"json": {}, "disable_additional_properties": True}},
        ErrorCode.UNSUPPORTED_OPTION,
        "disable_additional_properties",
    ),
    "reserved": Refusal({**_ANY, "vllm_xargs": {"grammar_backend": MARKER}}, ErrorCode.UNSUPPORTED_OPTION),
    "reserved-alone": Refusal({"vllm_xargs": {"grammar_backend": MARKER}}, ErrorCode.UNSUPPORTED_OPTION),
    "two-forms": Refusal(
        {"structured_outputs": {"regex": MARKER}, "response_format": {"type": "json_object"}},
        ErrorCode.INVALID_GRAMMAR,
    ),
    "no-kind": Refusal({"structured_outputs": {}}, ErrorCode.INVALID_GRAMMAR),
    # vLLM's own checks of types and of the fields beside each other answer these, in its words.
    "two-kinds": Refusal({"structured_outputs": {"json": {"title": MARKER}, "regex": MARKER}}),
    "schema-as-list": Refusal({"structured_outputs": {"json": [MARKER]}}),
    "schema-as-text": Refusal(
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": json.dumps({MARKER * 20: 1})},
            }
        }
    ),
    "choice-as-text": Refusal({"structured_outputs": {"choice": MARKER * 20}}),
    "regex-as-number": Refusal({"structured_outputs": {"regex": 5}}),
}
"""Chat and completions only: the responses endpoint has not all of these fields."""
