"""Which draft a schema is written in, and whether it is a schema of that draft."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import jsonschema

from vllm_grammar_backend.errors import ErrorCode, GrammarError, pointer
from vllm_grammar_backend.schema.document import keyword_at


class Draft(IntEnum):
    """Ordered, so that `draft <= Draft.D7` reads as it should."""

    D4 = 4
    D6 = 6
    D7 = 7
    D2019 = 2019
    D2020 = 2020


_URIS: Final = {
    "json-schema.org/draft-04/schema": Draft.D4,
    "json-schema.org/draft-06/schema": Draft.D6,
    "json-schema.org/draft-07/schema": Draft.D7,
    "json-schema.org/draft/2019-09/schema": Draft.D2019,
    "json-schema.org/draft/2020-12/schema": Draft.D2020,
    "json-schema.org/schema": Draft.D2020,
}
_VALIDATORS: Final[dict[Draft, Any]] = {
    Draft.D4: jsonschema.Draft4Validator,
    Draft.D6: jsonschema.Draft6Validator,
    Draft.D7: jsonschema.Draft7Validator,
    Draft.D2019: jsonschema.Draft201909Validator,
    Draft.D2020: jsonschema.Draft202012Validator,
}
_EXPECTED: Final = {
    "type": "must be of type {}",
    "minimum": "must be at least {}",
    "exclusiveMinimum": "must be greater than {}",
    "minItems": "must have at least {} item(s)",
    "minProperties": "must have at least {} member(s)",
    "uniqueItems": "must not repeat an item",
    "enum": "must be one of {}",
    "pattern": "must match {}",
}


def draft_of(schema: object) -> Draft:
    """The draft named by `$schema`, 2020-12 where there is none.

    Raises:
        GrammarError: `$schema` names a draft or dialect that is not known here.
    """
    if not isinstance(schema, dict) or "$schema" not in schema:
        return Draft.D2020
    uri = schema["$schema"]
    place = pointer("$schema")
    if not isinstance(uri, str):
        raise GrammarError(ErrorCode.INVALID_SCHEMA, "must be of type string", place, "$schema")
    draft = _URIS.get(uri.strip().removesuffix("#").removeprefix("http://").removeprefix("https://"))
    if draft is None:
        hint = "Known drafts: 4, 6, 7, 2019-09, 2020-12."
        raise GrammarError(ErrorCode.UNSUPPORTED_SCHEMA, "names an unknown dialect", place, "$schema", hint)
    return draft


def check(schema: object, draft: Draft) -> None:
    """Raise `INVALID_SCHEMA`, pointing at the first of the deepest problems, unless `schema` obeys its metaschema."""
    if not isinstance(schema, (dict, bool)) or (draft is Draft.D4 and isinstance(schema, bool)):
        raise GrammarError(ErrorCode.INVALID_SCHEMA, "a schema must be an object or a boolean", "")
    validator = _VALIDATORS[draft]
    try:
        errors = list(validator(validator.META_SCHEMA).iter_errors(schema))
    except RecursionError:
        raise GrammarError(ErrorCode.TOO_LARGE, "nested too deeply to be checked") from None
    if errors:
        error = max(errors, key=lambda e: len(e.absolute_path))
        path = list(error.absolute_path)
        expected = _EXPECTED.get(str(error.validator), "is not what the metaschema allows")
        reason = expected.format(error.validator_value)
        raise GrammarError(
            ErrorCode.INVALID_SCHEMA, reason, pointer(*path), keyword_at(path), _hint(path, error.instance, draft)
        )


def _hint(path: list[str | int], value: object, draft: Draft) -> str | None:
    last = path[-1] if path else None
    if draft is Draft.D2020 and last == "items" and isinstance(value, list):
        return "A list here is older than 2020-12: use prefixItems, or name the draft in $schema."
    if last in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
        return "A boolean here is draft 4: name it in $schema, or give the bound itself."
    if last == "required" and isinstance(value, bool):
        return "A boolean here is draft 3: list the names in the object's own required."
    return None
