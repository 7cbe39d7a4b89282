"""What the control plane does, whatever carries it: tenants save constraints under names, ahead of any request."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from time import time
from types import SimpleNamespace
from typing import Any, Final

from vllm_grammar_backend.desk import CALL, ERROR, NAME, ROWS, SAVED_AT, Verb
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.gate import Gate
from vllm_grammar_backend.grammar import GrammarKind
from vllm_grammar_backend.tenant import check_name

OPTION: Final = "disable_any_whitespace"
"""The one field of a saved constraint beside its kind; as in `structured_outputs`."""
FIELDS: Final = (*(kind.value for kind in GrammarKind), OPTION)
PAGE: Final = 200
"""Most names of one page: an engine reads each of them, text and all."""


class Control:
    """One front-end process's; the engines hold what is saved, so that all front ends see the same."""

    def __init__(self, gate: Gate, client: Any) -> None:
        self._gate = gate
        self._client = client

    @property
    def most_bytes(self) -> int:
        """Of a request's body: JSON text may write a character of the constraint in six."""
        return 6 * self._gate.settings.limits.bytes + 1024

    async def save(self, tenant: str, name: str, constraint: Mapping[str, Any]) -> dict[str, Any]:
        """Compile a constraint in every rank, and only then put it over what the name stood for.

        Args:
            tenant: whose it is, and on whose account it is compiled and kept.
            name: what the tenant calls it.
            constraint: one kind and its value, as in `structured_outputs`.

        Returns:
            a row as of `find` without its text, and `change` (`new`, `changed` or `same`), `backend`, its `version`,
            `compile_ms` of the slowest rank (0 from the store), `bytes` of the one where it takes most.

        Raises:
            GrammarError: the verdict, or what else went wrong; the name then stands for what it stood for.
        """
        check_place(tenant, name)
        unknown = constraint.keys() - set(FIELDS)
        if unknown:
            reason = f"the fields are: {', '.join(FIELDS)}"
            raise GrammarError(ErrorCode.UNSUPPORTED_OPTION, reason, keyword=ascii(min(unknown))[1:41])
        if not isinstance(constraint.get(OPTION, False), bool):
            raise GrammarError(ErrorCode.UNSUPPORTED_OPTION, "it must be true or false", keyword=OPTION)
        given = SimpleNamespace(**{**dict.fromkeys(FIELDS), **constraint})
        asked = await self._gate.issue(given, tenant)
        await self._gate.ensure(asked, self._client)
        answers = await self._ask(Verb.SAVE, {**asked, NAME: name, SAVED_AT: str(time())})
        changes = {answer["change"] for answer in answers}
        change = next(each for each in ("new", "changed", "same") if each in changes)
        (row,) = joined(answers)
        most = {figure: max(rank.get(figure, 0) for rank in row["ranks"]) for figure in ("compile_ms", "bytes")}
        return {**row, **most, **{key: answers[0][key] for key in ("backend", "version")}, "change": change}

    async def find(self, tenant: str, name: str) -> dict[str, Any] | None:
        """What is saved under a name, with its text; None where nothing is."""
        check_place(tenant, name)
        rows = joined(await self._ask(Verb.LIST, {"tenant": tenant, NAME: name}))
        return rows[0] if rows else None

    async def page(self, tenant: str | None, cursor: str | None, limit: int) -> tuple[list[dict[str, Any]], str | None]:
        """Rows in order of tenant and name, and the cursor behind the last if there may be more.

        Raises:
            GrammarError: the cursor is none that was given out.
        """
        if tenant is not None:
            check_name(tenant, "tenant")
        asked = {"tenant": tenant, "after": read_cursor(cursor) if cursor else None, "limit": limit}
        rows = joined(await self._ask(Verb.LIST, asked))[:limit]
        return rows, write_cursor(rows[-1]["tenant"], rows[-1][NAME]) if len(rows) == limit else None

    async def forget(self, tenant: str, name: str) -> bool:
        """False where there was no such name. Requests that run keep their grammar."""
        check_place(tenant, name)
        answers = await self._ask(Verb.FORGET, [tenant, name])
        return any(answer["known"] for answer in answers)

    async def statistics(self) -> list[dict[str, Any]]:
        """Counts and sizes of every rank."""
        found: list[dict[str, Any]] = await self._client.call_utility_all_async(CALL, Verb.STATISTICS)
        return found

    async def _ask(self, verb: Verb, data: Any) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = await self._client.call_utility_all_async(CALL, verb, data)
        for answer in answers:
            if answer[ERROR]:
                raise GrammarError.from_data(answer[ERROR])
        return answers


def check_place(tenant: str, name: str) -> None:
    """Raise `UNSUPPORTED_OPTION` where either is no name."""
    check_name(tenant, "tenant")
    check_name(name, "name")


def joined(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of all ranks, one for each place, its `rank` facts in a list."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for answer in answers:
        for row in answer[ROWS]:
            rank = row.pop("rank")
            rows.setdefault((row["tenant"], row[NAME]), {**row, "ranks": []})["ranks"].append(rank)
    return [rows[place] for place in sorted(rows)]


def write_cursor(tenant: str, name: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([tenant, name]).encode()).decode()


def read_cursor(cursor: str) -> list[str]:
    """Tenant and name.

    Raises:
        GrammarError: it is none of `write_cursor`.
    """
    try:
        tenant, name = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        check_place(tenant, name)
    except (ValueError, TypeError, RecursionError, binascii.Error, GrammarError):
        raise GrammarError(ErrorCode.UNSUPPORTED_OPTION, "it is none that was given out", keyword="cursor") from None
    return [tenant, name]
