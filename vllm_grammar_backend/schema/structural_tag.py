"""Structural tags: every schema and regex inside is vetted and lowered as if it stood alone.

The shape of the formats themselves is the engines' to check; here it only matters where constraints stand in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vllm_grammar_backend.errors import ErrorCode, GrammarError, pointer
from vllm_grammar_backend.schema import kinds
from vllm_grammar_backend.schema.document import parse

LowerSchema = Callable[[Any], Any]
LowerRegex = Callable[[str, str], str]


def lower_tag(text: str, schema: LowerSchema, regex: LowerRegex) -> Any:
    """The tag with its constraints lowered, in the form (`format`, or `structures` and `triggers`) it came in.

    Args:
        schema: lowers a JSON schema; the pointers of its errors are relative to that schema.
        regex: lowers a regular expression, given the pointer to it.

    Raises:
        GrammarError: neither of the two forms, or anything that is refused about a constraint inside.
    """
    tag = parse(text, ErrorCode.INVALID_GRAMMAR)
    if not isinstance(tag, dict):
        raise _malformed("a structural tag is an object", "")
    if tag.get("type", "structural_tag") != "structural_tag":
        raise _malformed("its type must be structural_tag", "/type")
    walker = _Walker(schema, regex)
    if "format" in tag:
        if "structures" in tag or "triggers" in tag:
            raise _malformed("a structural tag has either `format` or `structures`", "")
        return {**tag, "format": walker.format(tag["format"], "/format")}
    return walker.legacy(tag)


class _Walker:
    def __init__(self, schema: LowerSchema, regex: LowerRegex) -> None:
        self._schema = schema
        self._regex = regex

    def legacy(self, tag: dict[str, Any]) -> dict[str, Any]:
        structures, triggers = tag.get("structures"), tag.get("triggers")
        if not isinstance(structures, list) or not structures:
            raise _malformed("`structures` must be a list of at least one", "/structures")
        if not isinstance(triggers, list) or not triggers or not all(isinstance(t, str) and t for t in triggers):
            raise _malformed("`triggers` must be a list of strings, none of them empty", "/triggers")
        lowered = [self._structure(item, triggers, pointer("structures", i)) for i, item in enumerate(structures)]
        return {**tag, "structures": lowered}

    def _structure(self, item: Any, triggers: list[str], place: str) -> dict[str, Any]:
        if not isinstance(item, dict):
            raise _malformed("a structure is an object", place)
        for key in ("begin", "end"):
            if not isinstance(item.get(key), str):
                raise _malformed(f"`{key}` must be a string", f"{place}/{key}")
        if not any(item["begin"].startswith(trigger) for trigger in triggers):
            raise _malformed("`begin` starts with none of the triggers", f"{place}/begin")
        schema = item.get("schema", True)
        if isinstance(schema, str):
            schema = parse(schema)
        return {**item, "schema": self._lowered(schema, f"{place}/schema")}

    def _lowered(self, schema: Any, place: str) -> Any:
        with _placed(place):
            return self._schema(schema)

    def format(self, node: Any, place: str) -> Any:
        """A copy of one format and all below it."""
        if not isinstance(node, dict) or not isinstance(node.get("type"), str):
            raise _malformed("a format is an object with a type", place)
        out = dict(node)
        if "json_schema" in node:
            if node.get("style", "json") != "json" or node["type"] == "qwen_xml_parameter":
                reason = "only JSON can be enforced, not XML"
                raise GrammarError(ErrorCode.UNSUPPORTED_KIND, reason, f"{place}/style", "structural_tag")
            out["json_schema"] = self._lowered(node["json_schema"], f"{place}/json_schema")
        if node["type"] == "regex" and isinstance(node.get("pattern"), str):
            out["pattern"] = self._regex(node["pattern"], f"{place}/pattern")
        if node["type"] == "grammar" and isinstance(node.get("grammar"), str):
            with _placed(f"{place}/grammar"):
                out["grammar"] = kinds.grammar(node["grammar"])
        if "content" in node:
            out["content"] = self.format(node["content"], f"{place}/content")
        for key in ("elements", "tags"):
            if isinstance(node.get(key), list):
                out[key] = [self.format(item, f"{place}/{key}/{i}") for i, item in enumerate(node[key])]
        if isinstance(node.get("rules"), list):
            out["rules"] = [self._rule(item, f"{place}/rules/{i}") for i, item in enumerate(node["rules"])]
        return out

    def _rule(self, rule: Any, place: str) -> list[Any]:
        if not isinstance(rule, list) or len(rule) != 2:
            raise _malformed("a rule is a pair of a pattern and a format", place)
        return [rule[0], self.format(rule[1], f"{place}/1")]


@contextmanager
def _placed(place: str) -> Iterator[None]:
    """Errors of a constraint inside of a tag, with pointers from the tag's own root."""
    try:
        yield
    except GrammarError as e:
        raise GrammarError(e.code, e.reason, place + (e.pointer or ""), e.keyword, e.hint) from None


def _malformed(reason: str, place: str) -> GrammarError:
    return GrammarError(ErrorCode.INVALID_GRAMMAR, reason, place, "structural_tag")
