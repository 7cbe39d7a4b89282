"""The contract suite on the xgrammar backend."""

from __future__ import annotations

import json

import pytest

from tests import tokenizers
from tests.engines.contract import EngineContract
from tests.engines.vocabularies import SMALL
from vllm_grammar_backend.engines.xgrammar_trie import library_info, subtree_ends, tokenizer_info


class TestXgrammar(EngineContract):
    backend = "xgrammar"


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
