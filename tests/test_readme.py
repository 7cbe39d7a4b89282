"""What the README says is what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_grammar_backend import engines
from vllm_grammar_backend.admission import admit
from vllm_grammar_backend.cli import main
from vllm_grammar_backend.compile.job import build
from vllm_grammar_backend.engines.base import CompiledGrammar
from vllm_grammar_backend.engines.vocabulary import byte_vocabulary
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.gate import check_companions
from vllm_grammar_backend.grammar import GrammarKind, GrammarOptions
from vllm_grammar_backend.settings import Limits, Settings
from vllm_grammar_backend.ticket import constraint, request_options

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
BACKENDS = ("guidance", "xgrammar")
EOS = 256

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
LEGACY_TAG = {"triggers": ["<f"], "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}]}
FORMAT_TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<f>",
        "content": {"type": "json_schema", "json_schema": SCHEMA},
        "end": "</f>",
    },
}
JSON_DOCUMENTS = (['{"a": 1}', '{"a":-20,"b":null}'], ['{"a": "1"}', '{"b": 1}', "[]", '{"a": 1} '])
OBJECT_DOCUMENTS = (["{}", '{"a": [1, {"b": "x"}]}'], ["[]", '"a"', '{"a"}', "{'a': 1}"])
DOCUMENTS: dict[str, tuple[list[str], list[str]]] = {
    "`response_format: json_schema`": JSON_DOCUMENTS,
    "`response_format: json_object`": OBJECT_DOCUMENTS,
    "`structured_outputs.json`": JSON_DOCUMENTS,
    "`structured_outputs.json_object`": OBJECT_DOCUMENTS,
    "`structured_outputs.regex`": (["a", "xyz"], ["", "A", "a1"]),
    "`structured_outputs.choice`": (["yes", "no"], ["", "yesno", "maybe"]),
    "`structured_outputs.grammar` (EBNF)": (["a", "b"], ["", "ab", "c"]),
    "`structured_outputs.grammar` (Lark)": (["a", "b"], ["", "ab", "c"]),
    "`structured_outputs.structural_tag` (`structures`, `triggers`)": (
        ["plain", '<f>{"a": 1}</f>', 'x <f>{"a": 1}</f> y'],
        ["<f>{}</f>", '<f>{"a": 1}</g>', "<fx>"],
    ),
    "`structured_outputs.structural_tag` (`format`)": (['<f>{"a": 1}</f>'], ["plain", "<f>{}</f>", '<f>{"a": 1}']),
    "`structured_outputs.disable_any_whitespace`": ([], ['{  "a": 1}', '{"a":\n1}', '{ "a": 1 }']),
}
"""For each row that says yes, documents that must be taken and documents that must not be."""
EXAMPLES: dict[str, dict[str, Any]] = {
    "`response_format: json_schema`": {"json": SCHEMA},
    "`response_format: json_object`": {"json_object": True},
    "`structured_outputs.json`": {"json": SCHEMA},
    "`structured_outputs.json_object`": {"json_object": True},
    "`structured_outputs.regex`": {"regex": "[a-z]+"},
    "`structured_outputs.choice`": {"choice": ["yes", "no"]},
    "`structured_outputs.grammar` (EBNF)": {"grammar": 'root ::= "a" | "b"'},
    "`structured_outputs.grammar` (Lark)": {"grammar": 'start: "a" | "b"'},
    "`structured_outputs.structural_tag` (`structures`, `triggers`)": {"structural_tag": json.dumps(LEGACY_TAG)},
    "`structured_outputs.structural_tag` (`format`)": {"structural_tag": json.dumps(FORMAT_TAG)},
    "`structured_outputs.disable_any_whitespace`": {"json": SCHEMA, "disable_any_whitespace": True},
    "`structured_outputs.whitespace_pattern`": {"json": SCHEMA, "whitespace_pattern": " "},
    "`structured_outputs.disable_additional_properties`": {"json": SCHEMA, "disable_additional_properties": True},
    "`use_beam_search` beside a constraint": {"json": SCHEMA, "use_beam_search": True},
    "`allowed_token_ids` beside a constraint": {"json": SCHEMA, "allowed_token_ids": [1]},
}


def table(header: str) -> list[list[str]]:
    """The rows of the README's table that begins with `header`, cells stripped."""
    block = README[README.index(header) :].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()[2:]]


def takes(grammar: CompiledGrammar, text: str) -> bool:
    matcher = grammar.matcher([EOS])
    return matcher.accept([*text.encode(), EOS])


def answer(backend: str, field: str) -> str:
    """What a pinned server does with such a request: `yes` where it is enforced, or the code of its refusal."""
    request = EXAMPLES[field]
    empty: dict[str, Any] = dict.fromkeys(GrammarKind)
    params = SimpleNamespace(**{**empty, **request})
    try:
        check_companions(params)
        kind, value = constraint(params)
        spec = admit(kind, value, request_options(params, GrammarOptions()), Limits())
        grammar = build(spec, engines.load(backend, byte_vocabulary()))
    except GrammarError as error:
        return f"`{error.code}`"
    good, bad = DOCUMENTS[field]
    wrong = [text for text in good if not takes(grammar, text)] + [text for text in bad if takes(grammar, text)]
    return f"wrong about {wrong}" if wrong else "yes"


def test_the_table_of_fields_is_complete() -> None:
    assert [row[0] for row in table("| request field |")] == list(EXAMPLES)


@pytest.mark.parametrize("row", table("| request field |"), ids=lambda row: row[0].replace("`", ""))
def test_each_field_works_as_the_table_says(row: list[str]) -> None:
    field, *claims = row
    assert claims == [answer(backend, field) for backend in BACKENDS]


def test_the_example_of_a_refusal_is_one() -> None:
    spec = admit(
        GrammarKind.JSON,
        {"properties": {"tags": {"type": "array", "uniqueItems": True}}},
        GrammarOptions(),
        Limits(),
    )
    with pytest.raises(GrammarError) as refused:
        build(spec, engines.load("guidance", byte_vocabulary()))
    assert f'"message": "{refused.value}"' in README
    assert f'"param": "{refused.value.pointer}"' in README


def test_the_table_of_errors_is_the_codes() -> None:
    rows = table("| error code |")
    assert [row[0].strip("`") for row in rows] == list(ErrorCode)
    assert [int(row[1]) for row in rows] == [GrammarError(code, "").http_status for code in ErrorCode]


def test_the_table_of_settings_is_the_settings() -> None:
    def leaves(model: Any, prefix: str = "") -> list[list[str]]:
        rows = []
        for name, info in type(model).model_fields.items():
            value = getattr(model, name)
            if hasattr(type(value), "model_fields"):
                rows += leaves(value, f"{prefix}{name}.")
            else:
                default = json.dumps(value) if not isinstance(value, str) or value == "" else str(value)
                rows.append([f"`{prefix}{name}`", f"`{default}`", str(info.description)])
        return rows

    assert table("| key |") == leaves(Settings())


def test_its_commands_exist() -> None:
    root = Path(__file__).resolve().parents[1]
    for script in re.findall(r"bash ((?:deploy|tests)/\S+\.sh)", README):
        assert (root / script).is_file()
    assert set(re.findall(r"vllm-grammar ([a-z]+)", README)) <= set(main.commands)
