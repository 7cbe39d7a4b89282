"""What the routes under /v1/grammars answer."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from vllm_grammar_backend.grammar import GrammarKind


class RankState(BaseModel):
    """What one data-parallel rank has of a constraint; the figures where it is ready."""

    engine: int
    state: Literal["ready", "compiling", "declined", "cold"]
    """`cold`: it is built again when it is asked for."""
    bytes: int | None = None
    compile_ms: float | None = None
    """0 where it came from the store."""
    hits: int | None = None
    idle_s: float | None = None
    """Seconds since its last use."""


class SavedGrammar(BaseModel):
    """A constraint that a tenant has saved under a name."""

    tenant: str
    name: str
    kind: GrammarKind
    digest: str
    saved_at: float
    """Seconds since the epoch."""
    kept: bool
    """It survives a restart: the setting `store.path` names a directory."""
    ranks: list[RankState]


class SavedText(SavedGrammar):
    """With its canonical text."""

    text: str


class SaveAnswer(SavedGrammar):
    """It is enforced as it stands, and ready in every rank."""

    verdict: Literal["enforced"] = "enforced"
    backend: str
    version: str
    compile_ms: float
    """In the slowest rank."""
    bytes: int
    """In the rank where it takes most."""


class Page(BaseModel):
    """Some of the saved constraints, in order of tenant and name."""

    grammars: list[SavedGrammar]
    next: str | None
    """The `cursor` of the next page."""


class Statistics(BaseModel):
    """Counts since start and sizes now, of each rank."""

    ranks: list[dict[str, str | int]]
