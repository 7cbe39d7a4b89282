"""Structural tags: free text with constrained parts. Both the form with `structures` and `triggers` and the newer
`format` tree, whose meaning is xgrammar's.

    read -> a tree in the newer form -> `to_xgrammar` (JSON for xgrammar) or `tag_lark.to_lark` (Lark for llguidance)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from vllm_grammar_backend.errors import ErrorCode, GrammarError, pointer

_BY_TOKEN: Final = frozenset({"token", "exclude_token", "any_tokens", "token_triggered_tags", "token_dispatch"})
"""Formats over token ids. Special tokens never match anything here, so these cannot be served."""
_ONE_CHILD: Final = frozenset({"tag", "optional", "plus", "star", "repeat"})
_LISTS: Final = {"sequence": "elements", "or": "elements", "triggered_tags": "tags", "tags_with_separator": "tags"}
_LEAVES: Final = frozenset({"const_string", "any_text", "json_schema", "qwen_xml_parameter", "grammar", "regex"})

Format = dict[str, Any]
"""One node of a `format` tree."""


def read(tag: object) -> Format:
    """The `format` tree of a structural tag, the older form turned into the newer.

    Raises:
        GrammarError: neither of the two forms.
    """
    if not isinstance(tag, dict):
        raise malformed("a structural tag is an object", "")
    if isinstance(tag.get("format"), dict):
        return dict(tag["format"])
    structures, triggers = tag.get("structures"), tag.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list):
        raise malformed("a structural tag has `format`, or `structures` and `triggers`", "")
    return {
        "type": "triggered_tags",
        "triggers": triggers,
        "tags": [_modern(item, pointer("structures", index)) for index, item in enumerate(structures)],
    }


def _modern(item: object, where: str) -> Format:
    if not isinstance(item, dict) or not all(isinstance(item.get(key), str) for key in ("begin", "end")):
        raise malformed("a structure has `begin`, `schema` and `end`", where)
    schema = item.get("schema", {})
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError:
            raise malformed("a structure's schema is not JSON", where) from None
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": item["begin"], "content": content, "end": item["end"]}


def malformed(reason: str, where: str) -> GrammarError:
    return GrammarError(ErrorCode.INVALID_GRAMMAR, reason, where, "structural_tag")


def unsupported(backend: str, what: str, where: str) -> GrammarError:
    """`what` names a format or an option of one, never a client's text."""
    reason = f"{backend} does not serve {what} in a structural tag"
    return GrammarError(ErrorCode.UNSUPPORTED_KIND, reason, where, "structural_tag")


def kind_of(node: object, where: str) -> str:
    """The type of a format, checked to be one that exists and is not about token ids."""
    name = node.get("type") if isinstance(node, dict) else None
    if not isinstance(name, str):
        raise malformed("a format is an object with a `type`", where)
    if name in _BY_TOKEN:
        raise unsupported("this server", f"the format {name}", where)
    if name not in _ONE_CHILD and name not in _LISTS and name not in _LEAVES and name != "dispatch":
        raise malformed("a format has an unknown type", f"{where}/type")
    return name


OpenSchema = Callable[[object], str]
"""From a JSON schema to EBNF in which all that the schema leaves open stays open."""


def to_xgrammar(tag: object, open_schema: OpenSchema) -> str:
    """The tag as xgrammar reads it, with every JSON schema in it replaced by its grammar.

    Left to itself the library closes objects that a schema inside of a tag leaves open.

    Raises:
        GrammarError: malformed, or a format over token ids.
    """
    tree = _lower(read(tag), pointer("format"), open_schema)
    return json.dumps({"type": "structural_tag", "format": tree})


def _lower(node: Format, where: str, open_schema: OpenSchema) -> Format:
    name = kind_of(node, where)
    if name == "json_schema" and node.get("style", "json") == "json":
        refuse_options("xgrammar", node, where, ("any_order", "excludes", "max_whitespace_cnt"))
        return {"type": "grammar", "grammar": open_schema(schema_of(node, where))}
    lowered = dict(node)
    if name in _ONE_CHILD:
        for key in ("begin", "end"):
            if isinstance(node.get(key), Mapping):
                raise unsupported("this server", f"a token as the {key} of a tag", f"{where}/{key}")
        lowered["content"] = _lower(child_of(node, where), f"{where}/content", open_schema)
    elif name in _LISTS:
        key = _LISTS[name]
        lowered[key] = [_lower(child, f"{where}/{key}/{rank}", open_schema) for rank, child in children(node, where)]
    elif name == "dispatch":
        lowered["rules"] = _lower_rules(node, where, open_schema)
    return lowered


def _lower_rules(node: Format, where: str, open_schema: OpenSchema) -> list[list[object]]:
    rules = node.get("rules")
    if not isinstance(rules, list):
        raise malformed("`rules` is a list of pairs", f"{where}/rules")
    lowered: list[list[object]] = []
    for rank, rule in enumerate(rules):
        match rule:
            case [str() as pattern, dict() as content]:
                lowered.append([pattern, _lower(content, f"{where}/rules/{rank}/1", open_schema)])
            case _:
                raise malformed("a rule is a pair of a text and a format", f"{where}/rules/{rank}")
    return lowered


def refuse_options(backend: str, node: Format, where: str, names: tuple[str, ...]) -> None:
    """Decline options of a format that are set to anything but their empty default."""
    for name in names:
        if node.get(name):
            raise unsupported(backend, f"the option {name} of the format {node['type']}", f"{where}/{name}")


def schema_of(node: Format, where: str) -> object:
    schema = node.get("json_schema")
    if not isinstance(schema, (dict, bool)):
        raise malformed("`json_schema` is an object or a boolean", f"{where}/json_schema")
    return schema


def child_of(node: Format, where: str) -> Format:
    content = node.get("content")
    if not isinstance(content, dict):
        raise malformed("`content` is a format", f"{where}/content")
    return content


def children(node: Format, where: str) -> list[tuple[int, Format]]:
    """The formats in a node's list, numbered."""
    key = _LISTS[node["type"]]
    found = node.get(key)
    if not isinstance(found, list) or not found or not all(isinstance(item, dict) for item in found):
        raise malformed(f"`{key}` is a list of formats", f"{where}/{key}")
    return list(enumerate(found))


def text_of(node: Format, key: str, where: str) -> str:
    """A string member of a node."""
    if not isinstance(node.get(key), str):
        raise malformed(f"`{key}` is a string", f"{where}/{key}")
    return str(node[key])


def texts_of(node: Format, key: str, where: str) -> list[str]:
    """A member that is a list of strings, absent meaning none."""
    found = node.get(key) or []
    if not isinstance(found, list) or not all(isinstance(item, str) and item for item in found):
        raise malformed(f"`{key}` is a list of strings, none of them empty", f"{where}/{key}")
    return [str(item) for item in found]
