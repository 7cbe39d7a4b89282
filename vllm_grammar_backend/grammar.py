"""What a request asks for, as a value: kind, canonical text, options, digest, key."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final

DEFAULT_TENANT: Final = "default"
"""On whose account a constraint waits and is kept that belongs to nobody in particular."""
SCHEMA_MAPS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
"""Keywords whose value maps names to schemas (`dependencies`: to schemas or lists of names)."""
SCHEMA_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
"""Keywords whose value is a list of schemas."""
SCHEMA_VALUES: Final = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
"""Keywords whose value is one schema. `items` is one schema or, up to draft 2019-09, a list."""
ANNOTATIONS: Final = frozenset({"title", "description", "examples", "$comment"})
"""Left out of the canonical text: editing them makes no new grammar."""


def canonical_schema(schema: object) -> object:
    """A JSON Schema without its annotations.

    Goes by schema position: a property that happens to be called `title` stays, and nothing inside `enum`,
    `const`, `default` or an unknown keyword is touched. Property order is kept, since it is the order of output.
    Depth must have been bounded.
    """
    if not isinstance(schema, dict):
        return schema
    return {key: _canonical_value(key, value) for key, value in schema.items() if key not in ANNOTATIONS}


def _canonical_value(key: str, value: object) -> object:
    if key in SCHEMA_VALUES or (key == "items" and isinstance(value, dict)):
        return canonical_schema(value)
    if key in SCHEMA_MAPS and isinstance(value, dict):
        return {name: canonical_schema(inner) for name, inner in value.items()}
    if (key in SCHEMA_LISTS or key == "items") and isinstance(value, list):
        return [canonical_schema(inner) for inner in value]
    return value


class GrammarKind(StrEnum):
    JSON = "json"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    STRUCTURAL_TAG = "structural_tag"


class Whitespace(StrEnum):
    """Where JSON whitespace may stand, beyond what a backend always writes."""

    BOUNDED = "bounded"
    """Between tokens, a short run at most; none around the document. Stops endless whitespace."""
    FLEXIBLE = "flexible"
    """Between tokens, any amount, as JSON has it."""
    COMPACT = "compact"
    """No choice: the backend's fixed separators only."""


class Formats(StrEnum):
    """What `format` means: an assertion for the formats the specification names, or an annotation."""

    ASSERT = "assert"
    ANNOTATE = "annotate"


@dataclass(frozen=True, slots=True)
class GrammarOptions:
    """What changes the language of a constraint besides its text; part of the digest."""

    whitespace: Whitespace = Whitespace.BOUNDED
    formats: Formats = Formats.ASSERT


@dataclass(frozen=True)
class GrammarSpec:
    """An admitted constraint. `admission.py` makes these; nothing downstream takes raw text.

    `text` is canonical: JSON Schema without annotations in compact JSON with the property order kept,
    choices and structural tags as compact JSON, a regex or a grammar verbatim, "" for `json_object`.
    """

    kind: GrammarKind
    text: str = field(repr=False)
    options: GrammarOptions = GrammarOptions()

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over kind, options and text: the name of this constraint in logs and metrics."""
        head = f"{self.kind}\0{self.options.whitespace}\0{self.options.formats}\0"
        return hashlib.sha256(head.encode() + self.text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class GrammarKey:
    """Names one compiled grammar. Stop tokens belong to the matcher, never to the key."""

    digest: str
    backend: str
    version: str
    vocabulary: str
    """`Vocabulary.digest`."""
