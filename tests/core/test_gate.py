"""The front end's gate, with a real service behind it instead of vLLM's sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.core.engine import Engine
from vllm_grammar_backend import settings as settings_file
from vllm_grammar_backend.admission import admit as admitted
from vllm_grammar_backend.desk import COLD, ERROR, FOUND, WAITER, Desk
from vllm_grammar_backend.engines.vocabulary import byte_vocabulary
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.gate import Gate, check_companions
from vllm_grammar_backend.grammar import GrammarKind, GrammarOptions
from vllm_grammar_backend.pin import KEY, Pin
from vllm_grammar_backend.service import GrammarService
from vllm_grammar_backend.settings import ColdRequests, Compile, Settings
from vllm_grammar_backend.tenant import ARGUMENT, TenantHeader
from vllm_grammar_backend.ticket import Ticket

Start = Callable[..., GrammarService]


class Characters:
    """A tokenizer of the words given and single characters."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def encode(self, text: str, *, add_special_tokens: bool) -> list[str]:
        assert not add_special_tokens
        return [text] if text in self._words else list(text)

    def decode(self, ids: list[str]) -> str:
        return "".join(ids)


def request(**fields: Any) -> Any:
    empty: dict[str, Any] = dict.fromkeys(GrammarKind)
    options = {"allowed_token_ids": None, "vllm_xargs": None, **{k: v for k, v in fields.items() if k not in empty}}
    params = SimpleNamespace(**{**empty, **{k: v for k, v in fields.items() if k in empty}})
    return SimpleNamespace(extract_structured_outputs=lambda: params, **options)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts services, and ends them."""
    started: list[GrammarService] = []

    def begin(settings: Settings | None = None) -> GrammarService:
        started.append(GrammarService.start("guidance", byte_vocabulary(), settings or Settings()))
        return started[-1]

    yield begin
    for service in started:
        service.close()


def admit(gate: Gate, engine: Engine, wanted: Any, tokenizer: Any = None) -> GrammarError | None:
    try:
        asyncio.run(gate.admit_request(wanted, tokenizer, engine))
    except GrammarError as error:
        return error
    return None


def test_a_known_verdict_is_not_asked_for_again(start: Start) -> None:
    gate, engine = Gate(Pin("guidance"), None), Engine(start())
    for _ in range(3):
        wanted = request(json={"type": "boolean"})
        assert admit(gate, engine, wanted) is None
        assert isinstance(wanted.vllm_xargs[KEY], Ticket)
    assert engine.asked == 1
    refusals = [admit(gate, engine, request(json={"type": "integer", "minimum": 2, "maximum": 1})) for _ in range(3)]
    assert engine.asked == 2
    assert {error.code for error in refusals if error} == {ErrorCode.UNSATISFIABLE}
    assert len({id(error) for error in refusals}) == 3, "raised again, an exception keeps every request's frames"


def test_ranks_that_disagree_are_refused(start: Start) -> None:
    other = Settings(compile=Compile(workers=1))
    for ranks in ((start(), start(other)), (start(other),)):
        error = admit(Gate(Pin("guidance"), None), Engine(*ranks), request(regex="a"))
        assert error is not None
        assert error.http_status == 503
        assert "disagree" in error.reason
    assert admit(Gate(Pin("guidance"), None), Engine(start(), start()), request(regex="a")) is None


def test_a_client_that_leaves_gives_its_place_up(start: Start) -> None:
    service = start(Settings(compile=Compile(workers=1, deadline_s=300)))
    gate, engine = Gate(Pin("guidance"), None), Engine(service)
    gate._ranks_agree = True
    dear = request(json={"type": "string", "allOf": [{"pattern": f"a.*b{i}.*c"} for i in range(30)]})

    async def leave() -> None:
        task = asyncio.create_task(gate.admit_request(dear, None, engine))
        await engine.told.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while gate._tasks:
            await asyncio.wait(gate._tasks)

    asyncio.run(leave())
    assert service.statistics()["abandoned"] == 1
    assert admit(gate, engine, request(regex="a")) is None
    assert service.statistics()["in_flight"] == 0


def test_a_large_constraint_is_admitted_off_the_loop(start: Start) -> None:
    gate, engine = Gate(Pin("guidance"), None), Engine(start())
    assert admit(gate, engine, request(choice=[f"c{i}" for i in range(5000)])) is None


def test_the_reserved_key_is_refused(start: Start) -> None:
    error = admit(Gate(Pin("guidance"), None), Engine(start()), request(regex="a", vllm_xargs={KEY: "x"}))
    assert error is not None
    assert error.code is ErrorCode.UNSUPPORTED_OPTION


Configure = Callable[[str], tuple[Gate, Engine]]


@pytest.fixture
def configure(start: Start, tmp_path: Path) -> Configure:
    """Gate and engine of one settings file with the text given."""

    def begin(text: str) -> tuple[Gate, Engine]:
        file = tmp_path / "grammar.yaml"
        file.write_text(text)
        return Gate(Pin("guidance", str(file)), None), Engine(start(settings_file.load(str(file), {})))

    return begin


def test_the_request_says_whose_it_is(configure: Configure) -> None:
    gate, engine = configure("tenant_from: xargs")
    mine, nobodys = request(regex="a", vllm_xargs={ARGUMENT: "acme"}), request(regex="b")
    assert admit(gate, engine, mine) is admit(gate, engine, nobodys) is None
    assert (mine.vllm_xargs[KEY].tenant, nobodys.vllm_xargs[KEY].tenant) == ("acme", "default")
    assert {entry.tenant for entry in engine.desks[0].service.entries()} == {"acme", "default"}
    bad = admit(gate, engine, request(regex="a", vllm_xargs={ARGUMENT: "not a name"}))
    assert bad is not None
    assert (bad.http_status, bad.keyword) == (400, ARGUMENT)


def test_the_same_schema_of_another_tenant_is_a_hit(configure: Configure) -> None:
    gate, engine = configure("tenant_from: xargs")
    for name in ("acme", "zeta"):
        assert admit(gate, engine, request(regex="a", vllm_xargs={ARGUMENT: name})) is None
    assert (engine.asked, engine.desks[0].service.statistics()["builds"]) == (1, 1)


@pytest.mark.parametrize("large", [False, True])
def test_a_header_says_whose_it_is(configure: Configure, large: bool) -> None:
    """Large constraints are admitted on a thread, and the header is known there too."""
    gate, engine = configure("tenant_from: header:X-Tenant")
    wanted = request(choice=[f"c{i}" for i in range(5000 if large else 2)], vllm_xargs={ARGUMENT: "ignored"})

    async def serve(*_: Any) -> None:
        await gate.admit_request(wanted, None, engine)

    async def arrive(name: bytes) -> None:
        scope = {"type": "http", "headers": [(b"x-tenant", name)]}
        await TenantHeader(serve, "header:X-Tenant")(scope, None, None)  # type: ignore[arg-type]

    asyncio.run(arrive(b"acme"))
    assert wanted.vllm_xargs[KEY].tenant == "acme"
    del wanted.vllm_xargs[KEY]
    with pytest.raises(GrammarError, match="X-Tenant"):
        asyncio.run(arrive(b"../acme"))


def test_without_the_setting_all_belong_to_default(configure: Configure) -> None:
    gate, engine = configure("")
    wanted = request(regex="a", vllm_xargs={ARGUMENT: "not a name"})
    assert admit(gate, engine, wanted) is None
    assert wanted.vllm_xargs[KEY].tenant == "default"


def settle(engine: Engine, value: object) -> None:
    """Wait until a build that goes on is done."""
    service = engine.desks[0].service
    service.ensure(admitted(GrammarKind.JSON, value, GrammarOptions(), service.settings.limits)).result(60)


def test_a_cold_request_is_turned_away_and_its_schema_compiled_on(configure: Configure) -> None:
    gate, engine = configure("cold_requests: reject")
    schema = {"type": "object", "properties": {"cold": {"type": "integer"}}}
    cold = admit(gate, engine, request(json=schema))
    assert cold is not None
    assert (cold.code, cold.http_status, cold.retryable) == (ErrorCode.UNAVAILABLE, 503, True)
    settle(engine, schema)
    assert admit(gate, engine, request(json=schema)) is None
    found = engine.desks[0].service.statistics()
    assert (found["builds"], found["abandoned"], found["faults"]) == (1, 0, 0)


def test_what_is_turned_away_is_not_given_up_with_its_client(start: Start) -> None:
    service = start(Settings(compile=Compile(workers=1, deadline_s=300), cold_requests=ColdRequests.REJECT))
    desk = Desk(service)
    dear = {"type": "string", "allOf": [{"pattern": f"a.*b{i}.*c"} for i in range(30)]}
    spec = admitted(GrammarKind.JSON, dear, GrammarOptions(), service.settings.limits)
    for found in ("miss", "join"):
        answer = desk.ensure({**Ticket(spec), WAITER: "one", COLD: ColdRequests.REJECT}).result(0)
        assert (answer[FOUND], answer[ERROR]["code"]) == (found, ErrorCode.UNAVAILABLE)
        desk.release("one")
    assert (service.statistics()["in_flight"], service.statistics()["abandoned"]) == (1, 0)


def test_a_cold_request_is_refused_for_good_once_that_is_known(configure: Configure) -> None:
    gate, engine = configure("cold_requests: reject")
    schema = {"type": "integer", "minimum": 2, "maximum": 1}
    first = admit(gate, engine, request(json=schema))
    assert first is not None
    assert first.http_status == 503
    settle(engine, schema)
    assert [error.code for _ in range(2) if (error := admit(gate, engine, request(json=schema)))] == [
        ErrorCode.UNSATISFIABLE,
        ErrorCode.UNSATISFIABLE,
    ]


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        ({"use_beam_search": True}, "use_beam_search"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"bad_words": ["fine", "x"]}, "bad_words"),
        ({"bad_words": ["no!"]}, "bad_words"),
        ({"bad_words": ["\ufffd"]}, "bad_words"),
        ({"bad_words": ["fine"]}, None),
        ({"bad_words": []}, None),
    ],
)
def test_options_that_can_leave_no_token_are_refused_by_name(fields: dict[str, Any], option: str | None) -> None:
    tokenizer = Characters("fine", " fine")
    if option is None:
        check_companions(SimpleNamespace(**fields), tokenizer)
        return
    with pytest.raises(GrammarError) as caught:
        check_companions(SimpleNamespace(**fields), tokenizer)
    assert (caught.value.code, caught.value.keyword) == (ErrorCode.UNSUPPORTED_OPTION, option)
