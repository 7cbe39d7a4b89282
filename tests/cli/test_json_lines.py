"""`vllm-grammar prewarm` on JSON lines as other programs write them."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from deploy.prepare_model import prepare
from vllm_grammar_backend.cli import main


def test_lines_end_where_json_lines_end(tmp_path: Path) -> None:
    """Strings may hold what Python takes for line ends; empty lines are nothing, and numbers are the file's."""
    config, lines = tmp_path / "grammar.yaml", tmp_path / "all.jsonl"
    config.write_text(json.dumps({"store": {"path": str(tmp_path / "store")}}))
    schemas = [{"const": "a\u2028b\u0085c"}, {"const": 1}, {"contains": {}}]
    texts = [json.dumps(schema, ensure_ascii=False) for schema in schemas]
    lines.write_bytes(f"{texts[0]}\r\n\n{texts[1]}\n{texts[2]}\n\n".encode())
    options = ["--config", str(config), "--backend", "guidance", "--model", str(prepare("noise")), "--json"]
    done = CliRunner().invoke(main, ["prewarm", *options, str(lines)])
    rows = [json.loads(row) for row in done.stdout.splitlines()]
    assert [(row["name"], row["verdict"]) for row in rows] == [
        (f"{lines}:1", "enforced"),
        (f"{lines}:3", "enforced"),
        (f"{lines}:4", "declined"),
    ]
    assert done.exit_code == 1
    assert len(list((tmp_path / "store").glob("*.grammar"))) == 2
