"""File, environment, defaults; errors that name the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_grammar_backend.errors import StartupError
from vllm_grammar_backend.grammar import Whitespace
from vllm_grammar_backend.settings import Settings, load, load_with_origins


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "grammar.yaml"
    path.write_text("whitespace: compact\ncache:\n  bytes: 1000\nlimits:\n  depth: 10\n")
    return path


def test_environment_over_file_over_default(file: Path) -> None:
    settings, origins = load_with_origins(str(file), {"GRAMMAR_BACKEND_CACHE__BYTES": "2000", "OTHER": "x"})
    assert (settings.cache.bytes, settings.whitespace, settings.limits.depth) == (2000, Whitespace.COMPACT, 10)
    sources = {origin.key: origin.source for origin in origins}
    assert sources["cache.bytes"] == "environment GRAMMAR_BACKEND_CACHE__BYTES"
    assert sources["limits.depth"] == f"file {file}"
    assert sources["limits.nodes"] == "default"


def test_an_empty_file_means_defaults(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing yet\n")
    assert load(str(tmp_path / "empty.yaml"), {}) == Settings()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("cache: {byte: 1}", ["'cache.byte'", "cache.bytes"]),
        ("limits: {depth: many}", ["'limits.depth'", "'many'"]),
        ("limits: {depth: 0}", ["'limits.depth'", "greater than 0"]),
        ("backend_version: newest", ["'backend_version'", "PEP 440"]),
        ("whitespace: some", ["'whitespace'", "bounded"]),
        ("tenant_from: header", ["'tenant_from'", "header:NAME"]),
        ("tenant_from: 'header:X Tenant'", ["'tenant_from'", "header:NAME"]),
        ("cold_requests: never", ["'cold_requests'", "'wait' or 'reject'"]),
        ("- a list", ["mapping", "list"]),
        ("a: [", ["cannot be read"]),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, text: str, names: list[str]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(StartupError) as caught:
        load(str(path), {})
    assert all(name in str(caught.value) for name in names), str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "control: {admin_key: 8675309}",
        "control:\n  admin_key: 'secret-8675309\n",
        "fixed_schemas: [{file: a, value: {const: 8675309}}]",
        "fixed_schemas: {value: {const: 8675309}}",
    ],
)
def test_keys_and_schemas_are_not_shown_in_a_message(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(StartupError) as caught:
        load(str(path), {})
    assert "8675309" not in str(caught.value)


def test_a_section_is_not_a_value() -> None:
    clash = {"GRAMMAR_BACKEND_CACHE": "5", "GRAMMAR_BACKEND_CACHE__BYTES": "6"}
    for environment in (clash, dict(reversed(clash.items()))):
        with pytest.raises(StartupError, match="GRAMMAR_BACKEND_CACHE"):
            load(None, environment)


def test_a_missing_file_and_a_bad_variable_are_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"missing\.yaml"):
        load(str(tmp_path / "missing.yaml"), {})
    with pytest.raises(StartupError, match=r"environment variable GRAMMAR_BACKEND_COMPILE__WORKER"):
        load(None, {"GRAMMAR_BACKEND_COMPILE__WORKER": "3"})


def test_the_digest_changes_with_any_setting(file: Path) -> None:
    assert load(str(file), {}).digest != Settings().digest == load(None, {}).digest


def test_what_is_ready_beforehand_may_lie_elsewhere_on_another_machine(tmp_path: Path) -> None:
    def found(folder: str, fixed: str) -> Settings:
        file = tmp_path / folder / "grammar.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"whitespace: compact\nfixed_schemas: [{fixed}]\n")
        return load(str(file), {})

    one, other = found("one", "{file: a.json}"), found("other", "{file: a.json}")
    assert one.fixed_schemas[0].file == str(tmp_path / "one" / "a.json")
    assert one.digest == other.digest
