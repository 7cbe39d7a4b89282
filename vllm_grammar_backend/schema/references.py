"""Where `$ref` leads, inside one document and nowhere else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

from vllm_grammar_backend.errors import ErrorCode, GrammarError, pointer
from vllm_grammar_backend.schema.document import children, is_schema
from vllm_grammar_backend.schema.metaschema import Draft, check

_DATA: Final = frozenset({"enum", "const", "default", "examples", "example", "$vocabulary", "required", "type"})
"""Keywords whose value is data: what looks like a schema in there is none."""
_INDEX: Final = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)
"""Of an item in an array, as RFC 6901 has it."""
_ANCHOR: Final = re.compile(r"[A-Za-z_][-A-Za-z0-9._]*\Z")


@dataclass(frozen=True, slots=True)
class Place:
    """A schema, and what is needed to read on from it."""

    schema: Any
    path: tuple[str | int, ...]
    base: str
    """The URI that references in it are relative to; "" where no `$id` gives one."""

    @property
    def pointer(self) -> str:
        return pointer(*self.path)

    def child(self, *path: str | int, schema: Any, draft: Draft) -> Place:
        return Place(schema, (*self.path, *path), _base(schema, self.base, draft))


class References:
    """An index over the `$id`s and anchors of one document."""

    def __init__(self, schema: Any, draft: Draft) -> None:
        self.root = Place(schema, (), _base(schema, "", draft))
        self._draft = draft
        self._resources: dict[str, Place] = {"": self.root, self.root.base: self.root}
        self._anchors: dict[tuple[str, str], Place] = {}
        self._positions: dict[tuple[str | int, ...], Place] = {}
        self._index()

    def _index(self) -> None:
        stack = [self.root]
        while stack:
            place = stack.pop()
            self._positions[place.path] = place
            if not isinstance(place.schema, dict):
                continue
            self._enter(place)
            for path, child in children(place.schema):
                stack.append(place.child(*path, schema=child, draft=self._draft))

    def _enter(self, place: Place) -> None:
        schema = place.schema
        if self._draft <= Draft.D7 and "$ref" in schema:
            return
        name = schema.get("id" if self._draft is Draft.D4 else "$id")
        if isinstance(name, str) and place.path:
            if name.startswith("#"):
                self._anchors.setdefault((place.base, name[1:]), place)
            else:
                self._resources.setdefault(place.base, place)
        for keyword in ("$anchor", "$dynamicAnchor"):
            anchor = schema.get(keyword)
            if self._draft >= Draft.D2019 and isinstance(anchor, str):
                self._anchors.setdefault((place.base, anchor), place)

    def resolve(self, reference: object, origin: Place) -> Place:
        """The schema that `reference`, standing in the schema `origin`, names.

        Raises:
            GrammarError: it leads out of the document, or to nothing, or to something that is no schema.
        """
        where = pointer(*origin.path, "$ref")
        if not isinstance(reference, str):
            raise GrammarError(ErrorCode.INVALID_SCHEMA, "must be of type string", where, "$ref")
        try:
            uri, fragment = urldefrag(
                urljoin(origin.base, reference) if reference[:1] != "#" else origin.base + reference
            )
            fragment = unquote(fragment, errors="strict") if "%" in fragment else fragment
        except ValueError:
            raise GrammarError(ErrorCode.INVALID_SCHEMA, "is not a URI reference", where, "$ref") from None
        resource = self._resources.get(uri)
        if resource is None:
            raise _remote(reference, where)
        if fragment and not fragment.startswith("/"):
            return self._anchored(resource.base, fragment, where)
        return self._pointed(resource, fragment, where)

    def _anchored(self, base: str, fragment: str, where: str) -> Place:
        place = self._anchors.get((base, fragment))
        if place is None:
            hint = None if _ANCHOR.match(fragment) else "A JSON pointer begins with '#/'."
            raise GrammarError(ErrorCode.INVALID_SCHEMA, "names an anchor that does not exist", where, "$ref", hint)
        return place

    def _pointed(self, resource: Place, fragment: str, where: str) -> Place:
        place = resource
        value, path = resource.schema, resource.path
        for token in fragment.split("/")[1:]:
            step = _step(value, token.replace("~1", "/").replace("~0", "~"))
            if step is None:
                raise GrammarError(ErrorCode.INVALID_SCHEMA, "points to nothing in this document", where, "$ref")
            path = (*path, step)
            value = value[step]
            place = self._positions.get(path, place)
        if place.path == path:
            return place
        return self._unindexed(value, path, place, where)

    def _unindexed(self, value: Any, path: tuple[str | int, ...], around: Place, where: str) -> Place:
        """A target under an unknown keyword, e.g. `#/components/schemas/X`: taken if it is a schema at all."""
        if not is_schema(value) or not _DATA.isdisjoint(map(str, path[len(around.path) :])):
            raise GrammarError(ErrorCode.INVALID_SCHEMA, "points to something that is no schema", where, "$ref")
        try:
            check(value, self._draft)
        except GrammarError as e:
            raise GrammarError(e.code, e.reason, pointer(*path) + (e.pointer or ""), e.keyword, e.hint) from None
        return Place(value, path, around.base)


def _base(schema: Any, base: str, draft: Draft) -> str:
    if not isinstance(schema, dict) or (draft <= Draft.D7 and "$ref" in schema):
        return base
    name = schema.get("id" if draft is Draft.D4 else "$id")
    if not isinstance(name, str) or name.startswith("#"):
        return base
    try:
        return urldefrag(urljoin(base, name))[0]
    except ValueError:
        return base


def _step(value: Any, token: str) -> str | int | None:
    if isinstance(value, dict):
        return token if token in value else None
    if isinstance(value, list) and _INDEX.fullmatch(token) and int(token) < len(value):
        return int(token)
    return None


def _remote(reference: str, where: str) -> GrammarError:
    hint = "Only references into this document are followed, never fetched."
    if reference.startswith(("/$defs", "/definitions", "/properties")):
        hint = "A pointer into this document begins with '#'."
    return GrammarError(ErrorCode.INVALID_SCHEMA, "leads out of this document", where, "$ref", hint)
