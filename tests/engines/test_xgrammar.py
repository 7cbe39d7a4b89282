"""The contract suite on the xgrammar backend."""

from __future__ import annotations

import json
from math import inf

import numpy as np
import pytest

from tests import tokenizers
from tests.engines.contract import EngineContract
from tests.engines.vocabularies import SMALL, spell
from vllm_grammar_backend.admission import admit
from vllm_grammar_backend.engines import xgrammar
from vllm_grammar_backend.engines.xgrammar import XgrammarEngine
from vllm_grammar_backend.engines.xgrammar_trie import library_info, subtree_ends, tokenizer_info
from vllm_grammar_backend.grammar import GrammarKind, GrammarOptions, Whitespace
from vllm_grammar_backend.schema import prepare
from vllm_grammar_backend.settings import Limits


class TestXgrammar(EngineContract):
    backend = "xgrammar"


def test_a_small_grammar_is_no_large_artefact() -> None:
    """The library writes the whole automaton once for each of its rules: 1,000 properties took 635 MB and a minute."""
    properties = {f"p{number}": {"type": "integer"} for number in range(300)}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    engine = XgrammarEngine(SMALL)
    spec = prepare(admit(GrammarKind.JSON, schema, GrammarOptions(Whitespace.COMPACT), Limits()), "xgrammar")
    grammar = engine.compile(spec)
    assert grammar.source is not None
    assert len(grammar.artefact()) < 20_000
    loaded = engine.load(grammar.artefact())
    assert loaded.nbytes == grammar.nbytes
    matchers = [each.matcher(SMALL.eos_ids) for each in (grammar, loaded)]
    for token in spell('{"p7": 12, "p8": '):
        rows = [np.zeros(SMALL.row_width, dtype=np.int32) for _ in matchers]
        for matcher, row in zip(matchers, rows, strict=True):
            matcher.fill(row)
            assert matcher.accept([token])
        assert (rows[0] == rows[1]).all()


def test_what_is_sooner_written_than_compiled_is_written_as_the_library_writes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(xgrammar, "DUMPED_PER_S", inf)
    words = admit(GrammarKind.CHOICE, [f"word {number} of many" for number in range(300)], GrammarOptions(), Limits())
    engine = XgrammarEngine(tokenizers.vocabulary("smollm2"))
    grammar = engine.compile(prepare(words, "xgrammar"))
    assert grammar.source is None
    assert engine.load(grammar.artefact()).source is None


RECORDS = [b"r", b"r{}", b'r["json"]', b'r["json", 1, 2, 3]', b'r["sql", "", "bounded", "assert"]']


@pytest.mark.parametrize("record", RECORDS)
def test_what_is_no_source_is_refused(record: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        XgrammarEngine(SMALL).load(record)


def test_the_library_still_misfiles_tokens() -> None:
    """When this fails, the repair in `xgrammar_trie` can be deleted."""
    texts = sorted(text for text in SMALL.texts if text)
    ranges = json.loads(library_info(SMALL).serialize_json())["trie_subtree_nodes_range"]
    assert ranges != subtree_ends(texts)


@pytest.mark.parametrize("name", tokenizers.NAMES)
def test_put_right_vocabulary_is_otherwise_the_same(name: str) -> None:
    vocabulary = tokenizers.vocabulary(name)
    before, after = library_info(vocabulary), tokenizer_info(vocabulary)
    assert after.decoded_vocab == before.decoded_vocab
    assert after.dump_metadata() == before.dump_metadata()
    assert after.special_token_ids == before.special_token_ids


def test_subtree_ends() -> None:
    assert subtree_ends([b"a", b"ab", b"abc", b"b", b"ba"]) == [3, 3, 3, 5, 5]
    assert subtree_ends([b'":', b'"a":', b'"a":1']) == [1, 3, 3]
    assert subtree_ends([b"a", b"a", b"b"]) == [2, 2, 3]
