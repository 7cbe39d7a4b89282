"""What the API server tells the engine about an admitted constraint, under one reserved key of `extra_args`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from vllm_grammar_backend.admission import admit
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import DEFAULT_TENANT, Formats, GrammarKind, GrammarOptions, GrammarSpec, Whitespace
from vllm_grammar_backend.pin import KEY
from vllm_grammar_backend.settings import Limits

_KINDS = tuple(kind for kind in GrammarKind)


class Ticket(dict[str, str]):
    """A dictionary on the wire. Its class is the proof that no client wrote it: JSON cannot make one."""

    __slots__ = ("spec",)

    def __init__(self, spec: GrammarSpec, tenant: str = DEFAULT_TENANT) -> None:
        options = spec.options
        super().__init__(
            kind=spec.kind,
            text=spec.text,
            whitespace=options.whitespace,
            formats=options.formats,
            digest=spec.digest,
            tenant=tenant,
        )
        self.spec = spec

    @property
    def tenant(self) -> str:
        """On whose account the constraint waits and is kept."""
        return self["tenant"]

    def __repr__(self) -> str:
        return f"<{self.spec.kind} {self.spec.digest[:16]}>"

    @classmethod
    def of(cls, extra_args: Mapping[str, Any] | None) -> Self | None:
        """The ticket in `extra_args`.

        Raises:
            GrammarError: a client set the reserved key.
        """
        entry = (extra_args or {}).get(KEY)
        if entry is not None and not isinstance(entry, cls):
            raise GrammarError(ErrorCode.UNSUPPORTED_OPTION, f"the extra argument {KEY!r} is reserved")
        return entry


def read(data: Mapping[str, str]) -> Ticket:
    """A ticket that crossed a process boundary."""
    options = GrammarOptions(Whitespace(data["whitespace"]), Formats(data["formats"]))
    spec = GrammarSpec(GrammarKind(data["kind"]), data["text"], options)
    vars(spec)["digest"] = data["digest"]  # counted on the other side; of a long text it is most of what a hit costs
    return Ticket(spec, data["tenant"])


def constraint(params: Any) -> tuple[GrammarKind, object]:
    """Kind and value of vLLM's StructuredOutputsParams.

    Raises:
        GrammarError: none or several kinds, or a `json_object` that is not true.
    """
    given = [(kind, value) for kind in _KINDS if (value := getattr(params, kind)) is not None]
    if len(given) != 1:
        names = ", ".join(kind for kind, _ in given) or "none"
        raise GrammarError(ErrorCode.INVALID_GRAMMAR, f"exactly one kind of constraint must be given, not {names}")
    if given[0][0] is GrammarKind.JSON_OBJECT and given[0][1] is not True:
        raise GrammarError(ErrorCode.INVALID_GRAMMAR, "json_object must be true where it is given")
    return given[0]


def request_options(params: Any, defaults: GrammarOptions) -> GrammarOptions:
    """The server's options, changed by those of the request that can be honoured.

    Raises:
        GrammarError: an option that would change what the schema means.
    """
    for name, hint in (
        ("whitespace_pattern", "Use disable_any_whitespace, or the setting `whitespace`."),
        ("disable_additional_properties", 'Write "additionalProperties": false in the schema.'),
    ):
        if getattr(params, name, None) not in (None, False):
            raise GrammarError(
                ErrorCode.UNSUPPORTED_OPTION, f"the request option {name} is not supported", None, name, hint
            )
    if getattr(params, "disable_any_whitespace", False):
        return GrammarOptions(Whitespace.COMPACT, defaults.formats)
    return defaults


def ticket_of(sampling_params: Any, defaults: GrammarOptions, limits: Limits) -> Ticket:
    """The ticket of a request in the engine, or, where its front end made none, one admitted now.

    Raises:
        GrammarError: as `admission.admit`.
    """
    data = (sampling_params.extra_args or {}).get(KEY)
    if data is not None:
        return read(data)
    params = sampling_params.structured_outputs
    kind, value = constraint(params)
    return Ticket(admit(kind, value, request_options(params, defaults), limits))
