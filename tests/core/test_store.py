"""What comes out of the store is what was put in, or nothing."""

from __future__ import annotations

import os
import resource
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_grammar_backend.cache.store import SUFFIX, SWEPT_TO, ArtefactStore
from vllm_grammar_backend.grammar import GrammarKey

KEY = GrammarKey("d1", "guidance", "1.7", "v1")
OTHERS = [
    GrammarKey("d2", "guidance", "1.7", "v1"),
    GrammarKey("d1", "xgrammar", "1.7", "v1"),
    GrammarKey("d1", "guidance", "1.8", "v1"),
    GrammarKey("d1", "guidance", "1.7", "v2"),
]
MIB = 1024 * 1024


@pytest.fixture
def store(tmp_path: Path) -> ArtefactStore:
    return ArtefactStore(str(tmp_path / "new" / "store"), MIB)


def only_file(tmp_path: Path) -> Path:
    (path,) = tmp_path.rglob(f"*{SUFFIX}")
    return path


def test_another_server_reads_what_one_wrote(store: ArtefactStore, tmp_path: Path) -> None:
    assert store.get(KEY) is None
    assert store.put(KEY, b"line\nand\x00more")
    assert ArtefactStore(str(tmp_path / "new" / "store"), MIB).get(KEY) == b"line\nand\x00more"
    assert store.hits + store.rejects + store.faults == 0


@pytest.mark.parametrize("other", OTHERS)
def test_nothing_else_has_its_name(store: ArtefactStore, other: GrammarKey) -> None:
    store.put(KEY, b"artefact")
    assert store.get(other) is None


@given(st.data())
def test_damage_is_seen_and_replaced(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = ArtefactStore(str(folder), MIB)
    store.put(KEY, b"an artefact")
    content = bytearray(only_file(folder).read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    only_file(folder).write_bytes(content)
    assert store.get(KEY) in (None, b"an artefact")  # a bit of the header's own spelling may not matter
    assert store.put(KEY, b"an artefact")
    assert store.get(KEY) == b"an artefact"


@pytest.mark.parametrize("content", [b"", b"\n", b"[]\n", b"{}\nx", b"null", b"\xff" * 9000, b"[" * 9000])
def test_what_is_no_artefact_is_rejected(store: ArtefactStore, tmp_path: Path, content: bytes) -> None:
    store.put(KEY, b"artefact")
    only_file(tmp_path).write_bytes(content)
    assert store.get(KEY) is None
    assert store.rejects == 1
    assert list(tmp_path.rglob(f"*{SUFFIX}")) == []


def test_another_ones_file_under_its_name_is_rejected(store: ArtefactStore, tmp_path: Path) -> None:
    store.put(KEY, b"artefact")
    path = only_file(tmp_path)
    store.put(OTHERS[0], b"another")
    (other,) = (found for found in tmp_path.rglob(f"*{SUFFIX}") if found != path)
    path.write_bytes(other.read_bytes())
    assert store.get(KEY) is None


def test_the_bound_holds_and_what_was_used_stays(tmp_path: Path) -> None:
    store = ArtefactStore(str(tmp_path), 20_000)
    keys = [GrammarKey(f"d{i}", "guidance", "1", "v") for i in range(60)]
    for age, key in enumerate(keys):
        assert store.put(key, bytes(1000))
        path = store._path(key)
        os.utime(path, (1_000_000 + age, 1_000_000 + age))
        assert store.get(keys[0]), "the one in use was swept"
        assert sum(found.stat().st_size for found in tmp_path.iterdir()) <= 20_000
    assert len(list(tmp_path.iterdir())) > 20_000 * SWEPT_TO / 1300 - 3
    assert not store.put(keys[0], bytes(30_000))


def test_an_unfinished_file_is_never_read_and_goes(tmp_path: Path) -> None:
    (tmp_path / "dead.part").write_bytes(bytes(15_000))
    os.utime(tmp_path / "dead.part", (1, 1))
    store = ArtefactStore(str(tmp_path), 20_000)
    for i in range(10):
        store.put(GrammarKey(f"d{i}", "guidance", "1", "v"), bytes(1000))
    assert not (tmp_path / "dead.part").exists()


def test_a_disk_that_takes_nothing_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("not a directory")
    store = ArtefactStore(str(tmp_path / "file"), MIB)
    assert not store.put(KEY, b"artefact")
    assert not store.put(KEY, b"artefact")
    assert store.get(KEY) is None
    assert store.faults == 3
    assert caplog.text.count("cannot be") == 1


def test_a_full_disk_leaves_nothing_behind(store: ArtefactStore, tmp_path: Path) -> None:
    """A limit on the size of files fails the write in its middle, as a full disk does."""
    folder = tmp_path / "new" / "store"
    store.put(KEY, b"old")
    only = only_file(tmp_path)
    limit = 100_000
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        assert not store.put(KEY, bytes(2 * limit))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(folder.iterdir()) == [only]
    assert store.get(KEY) == b"old"


def test_many_at_once(store: ArtefactStore) -> None:
    wrong: list[bytes] = []

    def work() -> None:
        for _ in range(50):
            store.put(KEY, b"same" * 1000)
            found = store.get(KEY)
            if found not in (None, b"same" * 1000):
                wrong.append(found or b"")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert store.rejects == 0
    assert store.get(KEY) == b"same" * 1000
