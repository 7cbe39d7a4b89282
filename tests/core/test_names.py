"""What is saved under a name is what is found there, in memory and on disk alike."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_grammar_backend import preload
from vllm_grammar_backend.admission import admit
from vllm_grammar_backend.cache.names import Names, NamesInMemory, NamesOnDisk, Saved, page
from vllm_grammar_backend.engines.vocabulary import byte_vocabulary
from vllm_grammar_backend.errors import ErrorCode, GrammarError
from vllm_grammar_backend.grammar import Formats, GrammarKind, GrammarOptions, GrammarSpec, Whitespace
from vllm_grammar_backend.service import GrammarService, Ready
from vllm_grammar_backend.settings import Cache, Limits, Settings

Make = Callable[..., Names]


@pytest.fixture(params=["memory", "disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes names of one of the two sorts, with bounds on their number."""
    if request.param == "memory":
        return NamesInMemory
    return lambda *bounds: NamesOnDisk(tmp_path / "names", Limits(), *bounds)


def spec(number: int = 0, kind: GrammarKind = GrammarKind.JSON) -> GrammarSpec:
    values = {"json": {"const": number}, "json_object": True, "choice": [f"c{number}"], "structural_tag": "{}"}
    return admit(kind, values.get(kind, f"a{{{number}}}"), GrammarOptions(), Limits())


def saved(name: str, number: int = 0, tenant: str = "acme", saved_at: float = 1.0) -> Saved:
    return Saved(tenant, name, spec(number), saved_at)


@pytest.mark.parametrize("kind", GrammarKind)
def test_found_as_saved(make: Make, kind: GrammarKind) -> None:
    names = make()
    options = GrammarOptions(Whitespace.COMPACT, Formats.ANNOTATE)
    one = Saved("acme", "order", GrammarSpec(kind, spec(3, kind).text, options), 1764.5)
    assert names.save(one) == "new"
    found = names.find(("acme", "order"))
    assert found == one
    assert found.spec.digest == one.spec.digest


def test_text_of_any_script(make: Make) -> None:
    names, text = make(), admit(GrammarKind.CHOICE, ["猫", "🐈‍⬛", 'q"', "\u2028", "\x7f"], GrammarOptions(), Limits())
    names.save(Saved("acme", "cats", text, 1.0))
    found = names.find(("acme", "cats"))
    assert found
    assert found.spec == text


def test_over_a_name(make: Make) -> None:
    names = make()
    assert [names.save(saved("a", number)) for number in (1, 1, 2)] == ["new", "same", "changed"]
    assert names.save(saved("a", 1, tenant="other")) == "new"
    assert names.forget(("acme", "a"))
    assert not names.forget(("acme", "a"))
    assert names.find(("acme", "a")) is None
    assert names.places() == [("other", "a")]


def test_ranks_that_hear_two_writers_in_different_order_agree(make: Make) -> None:
    names, first, second = make(), saved("a", 1, saved_at=1.0), saved("a", 2, saved_at=1.5)
    for order in ((first, second), (second, first)):
        for write in order:
            names.save(write)
        assert names.find(("acme", "a")) == second


def test_a_clock_that_was_ahead_keeps_nobody_out(make: Make) -> None:
    names, later = make(), saved("a", 2, saved_at=1000.0)
    names.save(saved("a", 1, saved_at=2000.0))
    assert names.save(later) == "changed"
    assert names.find(("acme", "a")) == later


def test_pages_are_all_of_them_in_order(make: Make) -> None:
    names = make()
    wanted = sorted((tenant, name) for tenant in ("b", "a-1", "a") for name in ("x", "x-1", "x.1", "Z", "y_"))
    for tenant, name in wanted:
        names.save(saved(name, tenant=tenant))
    seen: list[tuple[str, str]] = []
    while some := list(page(names, None, seen[-1] if seen else None, 4)):
        assert len(some) <= 4
        seen += [each.place for each in some]
    assert seen == wanted
    assert [each.place for each in page(names, "a", None, 100)] == [place for place in wanted if place[0] == "a"]
    assert list(page(names, "nobody", None, 100)) == []


def test_no_more_than_there_may_be(make: Make) -> None:
    names = make(2, 3)
    for place in (("a", "x"), ("a", "y"), ("b", "x")):
        names.save(saved(place[1], tenant=place[0]))
    for tenant in ("a", "b"):
        with pytest.raises(GrammarError, match="saved names") as caught:
            names.save(saved("z", tenant=tenant))
        assert caught.value.http_status == 429
    assert names.save(saved("x", 9, tenant="a")) == "changed", "over a name there is room"
    names.forget(("a", "y"))
    assert names.save(saved("z", tenant="b")) == "new"


def test_no_more_bytes_than_memory_has() -> None:
    names = NamesInMemory(most_bytes=100)
    small, large = saved("a"), Saved("acme", "b", admit(GrammarKind.REGEX, "a" * 95, GrammarOptions(), Limits()), 1.0)
    names.save(small)
    with pytest.raises(GrammarError, match="100 bytes"):
        names.save(large)
    names.forget(small.place)
    assert names.save(large) == "new"


def damages(content: bytes) -> dict[str, bytes]:
    record = json.loads(content)
    return {
        "empty": b"",
        "cut": content[:-9],
        "bits": b"\xff" + content[1:],
        "a list": b"[]",
        "deep": b"[" * 100_000,
        "another format": json.dumps({**record, "format": 2}).encode(),
        "another text": json.dumps({**record, "text": '{"const":7}'}).encode(),
        "another kind": json.dumps({**record, "kind": "regex"}).encode(),
        "no kind": json.dumps({**record, "kind": "sql"}).encode(),
        "no text": json.dumps({key: value for key, value in record.items() if key != "text"}).encode(),
        "no number": json.dumps({**record, "saved_at": "x"}).encode(),
        "too long": json.dumps({**record, "text": "[" + "1," * 200_000 + "1]"}).encode(),
    }


@pytest.mark.parametrize("damage", damages(b"{}"))
def test_a_damaged_file_is_ignored_and_put_right(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    names = NamesOnDisk(tmp_path, Limits())
    names.save(saved("a"))
    names.save(saved("b"))
    (tmp_path / "acme" / "a.json").write_bytes(damages((tmp_path / "acme" / "a.json").read_bytes())[damage])
    with caplog.at_level(logging.WARNING, "vllm.grammar_backend"):
        assert names.find(("acme", "a")) is None
        assert [each.name for each in page(names, None, None, 9)] == ["b"]
    assert "acme/a is ignored" in caplog.text
    assert names.save(saved("a", 5)) == "new"
    assert names.find(("acme", "a")) == saved("a", 5)


def test_foreign_files_are_nothing(tmp_path: Path) -> None:
    names = NamesOnDisk(tmp_path, Limits())
    names.save(saved("a"))
    for other in ("acme/.hidden.json", "acme/a b.json", "acme/x.txt", "acme/half.part", "acme/dir.json/x.json"):
        (tmp_path / other).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / other).write_text("{}")
    (tmp_path / "file").write_text("")
    (tmp_path / "dir with blank").mkdir()
    assert [each.name for each in page(names, None, None, 9) if each.name != "dir"] == ["a"]
    assert names.find(("file", "a")) is None
    assert names.places("file") == []


def test_a_disk_that_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "in the way").write_text("")
    names = NamesOnDisk(tmp_path / "in the way", Limits())
    with pytest.raises(GrammarError, match="the disk of the saved names") as caught:
        names.save(saved("a"))
    assert caught.value.http_status == 503
    assert names.places() == []
    assert names.find(("acme", "a")) is None
    assert not names.forget(("acme", "a"))


PLACES = st.tuples(st.sampled_from("ab"), st.sampled_from(["x", "y", "z"]))


Step = tuple[str, tuple[str, str], int]
STEPS = st.lists(st.tuples(st.sampled_from(["save", "forget"]), PLACES, st.integers(0, 2)), max_size=20)


@given(STEPS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_disk_and_memory_do_the_same(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, tuple[str, str], int]]
) -> None:
    both: tuple[Names, Names] = NamesInMemory(2, 4), NamesOnDisk(tmp_path_factory.mktemp("names"), Limits(), 2, 4)

    def act(names: Names, verb: str, place: tuple[str, str], number: int) -> object:
        try:
            return names.forget(place) if verb == "forget" else names.save(saved(place[1], number, place[0]))
        except GrammarError as error:
            return error.code

    for step in steps:
        assert act(both[0], *step) == act(both[1], *step)
        assert both[0].places() == both[1].places()
    for place in both[0].places():
        assert both[0].find(place) == both[1].find(place)


def test_ready_again_as_far_as_memory_reaches() -> None:
    names = NamesInMemory()
    for number in range(12):
        names.save(saved(f"n{number:02}", number))
    names.save(Saved("acme", "bad", admit(GrammarKind.JSON, {"type": 7}, GrammarOptions(), Limits()), 1.0))

    def ready(settings: Settings) -> int:
        with closing(GrammarService.start("guidance", byte_vocabulary(), settings)) as service:
            preload.warm_up(service, names)
            assert {entry.tenant for entry in service.entries()} == {"acme"}
            return sum(isinstance(service.lookup(spec(number)), Ready) for number in range(12))

    assert ready(Settings()) == 12
    assert 0 < ready(Settings(cache=Cache(bytes=50_000))) < 12


def test_nothing_is_made_ready_for_a_service_that_has_ended() -> None:
    names = NamesInMemory()
    names.save(saved("a"))
    service = GrammarService.start("guidance", byte_vocabulary(), Settings())
    service.close()
    preload.warm_up(service, names)
    assert service.statistics()["builds"] == 0


def test_over_quota_is_told_apart() -> None:
    names = NamesInMemory(0)
    with pytest.raises(GrammarError) as caught:
        names.save(saved("a"))
    assert caught.value.code is ErrorCode.OVER_QUOTA
