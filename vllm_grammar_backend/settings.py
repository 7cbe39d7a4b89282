"""One frozen settings tree: a YAML file, overridden by the environment, over defaults. Unknown keys are errors.

GRAMMAR_BACKEND_CACHE__BYTES=2147483648 overrides `cache: {bytes: ...}` of the file.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from vllm_grammar_backend.errors import StartupError
from vllm_grammar_backend.grammar import Formats, GrammarKind, Whitespace

ENVIRONMENT_PREFIX: Final = "GRAMMAR_BACKEND_"
_HIDDEN: Final = ("control", "fixed_schemas")
"""Keys and schemas: their values are not quoted in messages, which are logged."""

NONE: Final = "none"
XARGS: Final = "xargs"
HEADER: Final = "header:"
"""What `tenant_from` may be; a header's name follows the last."""
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def _tenant_source(text: str) -> str:
    named = text.startswith(HEADER) and _HEADER_NAME.fullmatch(text.removeprefix(HEADER))
    if text not in (NONE, XARGS) and not named:
        raise ValueError(f"one of {NONE}, {XARGS}, {HEADER}NAME")
    return text


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(f"not a PEP 440 version specifier: {error}") from None
    return text


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ColdRequests(StrEnum):
    """What becomes of a request whose grammar is not ready."""

    WAIT = "wait"
    REJECT = "reject"


class Limits(_Section):
    """Bounds on one constraint, checked on the request path before anything else looks at it."""

    bytes: int = Field(256 * 1024, gt=0, description="bytes of one schema, grammar or tag as compact UTF-8")
    depth: int = Field(64, gt=0, le=200, description="nested objects and arrays; each level costs a stack frame")
    nodes: int = Field(50_000, gt=0, description="JSON values in one schema; about 1 µs each on the request path")
    enum: int = Field(50_000, gt=0, description="entries of one array, `enum` above all")
    regex_bytes: int = Field(4096, gt=0, description="bytes of one regular expression")


class Compile(_Section):
    """Work on schemas nobody has seen yet."""

    workers: int = Field(2, gt=0, le=256, description="worker processes, so many schemas at once, per rank")
    deadline_s: float = Field(10.0, gt=0, description="seconds one schema may take; it may wait three times as long")
    memory_mb: int = Field(1024, gt=0, description="MiB one schema may take while it is worked on")
    queue: int = Field(256, gt=0, description="schemas that may wait, at most a quarter of them one tenant's")


class Masks(_Section):
    """Token masks."""

    budget_ms: float = Field(20.0, gt=0, description="CPU milliseconds one token mask may take")


class Cache(_Section):
    """Compiled grammars in memory."""

    bytes: int = Field(1024**3, gt=0, description="bytes of compiled grammars kept, per rank")
    tenant_share: float = Field(0.5, gt=0, le=1, description="of them, what one tenant may take from the others")
    ttl: float | None = Field(None, gt=0, description="seconds after its last use at which a grammar goes; none: never")


class Store(_Section):
    """Compiled grammars on disk."""

    path: str | None = Field(None, description="directory of artefacts, local or shared; none: nothing is kept")
    bytes: int = Field(10 * 1024**3, gt=0, description="bytes of artefacts kept there")


class FixedSchema(_Section):
    """A constraint that is ready before the first request, and stays so: `file` or `value`, and of which kind."""

    kind: GrammarKind = GrammarKind.JSON
    file: str | None = None
    """Relative to the settings file."""
    value: Any = None
    """What would be the value of the request's field of that name."""

    @field_validator("file")
    @classmethod
    def _beside_the_settings(cls, file: str | None, info: ValidationInfo) -> str | None:
        folder = (info.context or {}).get("folder", "")
        return None if file is None else str(Path(folder, file))

    @model_validator(mode="after")
    def _one_of_them(self) -> FixedSchema:
        if (self.file is None) == (self.value is None):
            raise ValueError("give either `file` or `value`")
        return self


class Control(_Section):
    """The HTTP control plane."""

    admin_key: SecretStr | None = Field(None, description="key asked for in X-Admin-Key; none: no control plane")


class Settings(_Section):
    """Everything an operator can set. The backend itself is pinned on the command line."""

    backend_version: Annotated[str, AfterValidator(_specifier)] = Field(
        "", description="PEP 440 specifier the backend library must match; empty for any"
    )
    whitespace: Whitespace = Field(Whitespace.BOUNDED, description="where JSON whitespace may stand")
    formats: Formats = Field(Formats.ASSERT, description="whether `format` is enforced or an annotation")
    limits: Limits = Limits()
    compile: Compile = Compile()
    masks: Masks = Masks()
    cache: Cache = Cache()
    store: Store = Store()
    tenant_from: Annotated[str, AfterValidator(_tenant_source)] = Field(
        NONE, description="whose a request is: `none`, `xargs`, or `header:NAME` set by a trusted gateway"
    )
    cold_requests: ColdRequests = Field(
        ColdRequests.WAIT, description="`wait` for a grammar to be compiled, or `reject` with 503 and compile on"
    )
    fixed_schemas: tuple[FixedSchema, ...] = Field(
        (), description="`{file: F}` or `{value: V}`, maybe with `kind`; ready before the server is, and kept"
    )
    control: Control = Control()

    @property
    def digest(self) -> str:
        """Hex SHA-256; ranks of one deployment must agree on it.

        `fixed_schemas` are left out: they change no answer, and their files may lie elsewhere on another machine.
        """
        return hashlib.sha256(self.model_dump_json(exclude={"fixed_schemas"}).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Origin:
    """One leaf of the tree: dotted key, value in force, and where it came from."""

    key: str
    value: object
    source: str


def load(file: str | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings file and the environment.

    Raises:
        StartupError: unreadable file, unknown key or bad value; names the key and what is allowed.
    """
    settings, _ = load_with_origins(file, environment)
    return settings


def load_with_origins(
    file: str | None = None, environment: Mapping[str, str] | None = None
) -> tuple[Settings, list[Origin]]:
    """As `load`, with the source of every value, for `vllm-grammar doctor`."""
    from_file = _read_file(file) if file else {}
    from_environment = _read_environment(os.environ if environment is None else environment)
    try:
        folder = Path(file).resolve().parent if file else Path()
        settings = Settings.model_validate(_merge(from_file, from_environment), context={"folder": folder})
    except ValidationError as error:
        raise StartupError(_explain(error, from_environment, file)) from None
    sources = {key: f"file {file}" for key, _ in _leaves(from_file)}
    sources |= {key: "environment " + _variable(key) for key, _ in _leaves(from_environment)}
    leaves = _leaves(settings.model_dump(mode="json"))
    return settings, [Origin(key, value, sources.get(key, "default")) for key, value in leaves]


def _variable(key: str) -> str:
    return ENVIRONMENT_PREFIX + key.upper().replace(".", "__")


def _read_file(file: str) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"The settings file {file!r} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        # The library's own text quotes the line, which may hold a key.
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "its start"
        raise StartupError(f"The settings file {file!r} cannot be read: not YAML at {place}.") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise StartupError(f"The settings file {file!r} must hold a mapping of settings, not a {type(tree).__name__}.")
    return tree


def environment_without_threads() -> dict[str, str]:
    """This process's own, for a child that forks: numpy's linear algebra would start a thread for each core."""
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in environment.items():
        if name.startswith(ENVIRONMENT_PREFIX):
            branch: Any = tree
            *sections, leaf = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
            for section in sections:
                branch = branch.setdefault(section, {}) if isinstance(branch, dict) else branch
            if not isinstance(branch, dict) or isinstance(branch.get(leaf), dict):
                raise StartupError(f"The environment sets {name} both as a section and as a value; unset one.")
            branch[leaf] = value
    return tree


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        base = merged.get(key)
        merged[key] = _merge(base, value) if isinstance(base, dict) and isinstance(value, dict) else value
    return merged


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _explain(error: ValidationError, from_environment: dict[str, Any], file: str | None) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    overridden = key in {leaf for leaf, _ in _leaves(from_environment)}
    place = f"environment variable {_variable(key)}" if overridden else f"settings file {file!r}"
    if first["type"] == "extra_forbidden":
        known = ", ".join(name for name, _ in _leaves(Settings().model_dump(mode="json")))
        return f"Unknown setting {key!r} in {place}; the settings are: {known}."
    shown = "(hidden)" if key.startswith(_HIDDEN) else repr(first["input"])
    return f"Bad value {shown} for setting {key!r} in {place}: {first['msg']}."
