"""Constraints the server tests ask for. The bounded ones end by themselves, whatever the model's logits are."""

from __future__ import annotations

import json
from typing import Any, Final

Constraint = tuple[str, Any]
"""Kind and value, as in `structured_outputs`."""


def _closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


BOUNDED: Final[dict[str, dict[str, Any]]] = {
    "person": _closed(name={"type": "string", "maxLength": 12}, age={"type": "integer", "minimum": 0, "maximum": 130}),
    "colour": {"enum": ["red", "green", "blue"]},
    "flags": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 5},
    "nested": _closed(a=_closed(b=_closed(c={"type": "null"}))),
    "either": {"anyOf": [_closed(ok={"const": True}), _closed(error={"enum": ["timeout", "refused"]})]},
    "optional": {
        "type": "object",
        "properties": {"x": {"enum": [1, 2]}, "y": {"enum": [3, 4]}},
        "additionalProperties": False,
    },
    "scripts": {"enum": ["🐈‍⬛", "猫", "кот", "e\u0301", "\u200bzero", "𝄞"]},
    "escapes": {"enum": ['say "hi"', "C:\\temp", "tab\there", "nul\u0000", "line\nbreak", "\u007f"]},
    "keys": _closed(**{'quo"ted': {"enum": [0]}, "läng\u00e9": {"enum": [1]}}),
    "more keys": _closed(**{"a/b~c": {"enum": [2]}, "": {"enum": [3]}}),
    "numbers": {"enum": [-0.5, 1e-7, 1e15, 9007199254740991, 0]},
    "big integer": {"type": "integer", "minimum": 9007199254740000, "maximum": 9007199254740991},
    "code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
    "date": _closed(day={"type": "string", "format": "date"}),
    "reference": {
        "$defs": {"point": _closed(x={"enum": [0, 1]}, y={"enum": [0, 1]})},
        "type": "array",
        "items": {"$ref": "#/$defs/point"},
        "minItems": 1,
        "maxItems": 3,
    },
}
"""Name -> JSON Schema, each with a longest document."""

ENOUGH: Final = 1500
"""Tokens for each of these, if every gap that may hold whitespace is filled to the bound a character at a time."""

OPEN: Final[dict[str, dict[str, Any]]] = {
    "object": {"type": "object"},
    "text": _closed(text={"type": "string"}),
    "list": {"type": "array", "items": {"type": "string"}},
    "tree": {
        "$defs": {
            "node": _closed(value={"type": "integer"}, children={"type": "array", "items": {"$ref": "#/$defs/node"}})
        },
        "$ref": "#/$defs/node",
    },
    "number": {"type": "number"},
}
"""Name -> JSON Schema, each with documents of any length."""

TAG: Final = json.dumps(
    {
        "type": "structural_tag",
        "format": {
            "type": "tag",
            "begin": "<call>",
            "content": {"type": "json_schema", "json_schema": BOUNDED["person"]},
            "end": "</call>",
        },
    }
)
TRIGGER: Final = "<"
"""One byte, which is one token of every vocabulary here: a bias can bring it about for certain."""
LEGACY_TAG: Final = json.dumps(
    {
        "type": "structural_tag",
        "structures": [{"begin": TRIGGER, "schema": BOUNDED["person"], "end": "</f>"}],
        "triggers": [TRIGGER],
    }
)

KINDS: Final[dict[str, Constraint]] = {
    "regex": ("regex", r"[a-z]{2,8}@[a-z]{2,8}\.(com|org)"),
    "regex-unicode": ("regex", "[α-ω]{3}🐈"),
    "choice": ("choice", ["yes", "no", "perhaps\nlater"]),
    "choice-prefixes": ("choice", ["1", "11", "111"]),
    "choice-emoji": ("choice", ["🐈", "🐕"]),
    "ebnf": ("grammar", 'root ::= "SELECT " col " from " tab\ncol ::= "c1" | "c2"\ntab ::= "t1" | "t2"'),
    "lark": ("grammar", 'start: "SELECT " COL ("," COL)?\nCOL: /c[0-9]/'),
    "tag": ("structural_tag", TAG),
}
"""Name -> constraint of another kind than JSON Schema; all bounded."""
