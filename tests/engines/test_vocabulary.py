"""Vocabularies are exact: against the tokenizers' own decoders over every id, and on small ones made by hand."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE, Unigram

from tests import tokenizers
from vllm_grammar_backend.engines.vocabulary import Vocabulary, from_tokenizer
from vllm_grammar_backend.errors import StartupError

TEXTS = [
    '{"name": "Zoë", "emoji": "🐈\\u200d⬛", "n": -1.5e+10}',
    "你好，世界 e\u0301 ǆ \u0000\t\r\n    indented\n\n\n",
    "don't  ▁ Ġ <0x41> [INST]",
    "\u2028\u2029\U0010ffff\ufeff",
]


@dataclass
class Fast:
    """The one attribute of a fast Hugging Face tokenizer that is read, and its EOS."""

    backend_tokenizer: Tokenizer
    eos_token_id: int | list[int] | None = None


def byte_level(vocabulary: dict[str, int], added: list[AddedToken]) -> Tokenizer:
    found = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    found.decoder = decoders.ByteLevel()
    found.add_tokens(added)
    return found


@pytest.mark.parametrize("name", tokenizers.NAMES)
@pytest.mark.parametrize("text", TEXTS)
def test_tokens_of_a_text_join_to_it(name: str, text: str) -> None:
    vocabulary = tokenizers.vocabulary(name)
    ids = [index for index in tokenizers.encode(name, text) if index not in vocabulary.special_ids]
    assert b"".join(vocabulary.tokens[index] for index in ids) == text.encode()


@pytest.mark.parametrize("name", ["smollm2", "deepseek"])
def test_every_id_as_the_tokenizer_decodes_it(name: str) -> None:
    vocabulary = tokenizers.vocabulary(name)
    decoder = tokenizers.tokenizer(name).backend_tokenizer
    wrong = [
        index
        for index, token in enumerate(vocabulary.tokens)
        if index not in vocabulary.special_ids
        and decoder.decode([index], skip_special_tokens=False) != token.decode(errors="replace")
    ]
    assert wrong == []


@pytest.mark.parametrize("name", ["deepseek", "tekken"])  # SmolLM2 has no token for some control characters
def test_every_byte_is_a_token(name: str) -> None:
    texts = set(tokenizers.vocabulary(name).texts)
    # Bytes that no UTF-8 text holds are left out of some vocabularies.
    needed = {bytes([byte]) for byte in (*range(0xC0), *range(0xC2, 0xF5))}
    assert needed <= texts


def test_special_tokens_and_ends() -> None:
    smollm2 = tokenizers.vocabulary("smollm2")
    assert {0, 1, 2} <= smollm2.special_ids
    assert smollm2.eos_ids == {2}
    assert smollm2.tokens[2] == b"<|im_end|>"
    assert smollm2.texts[2] == b""
    tekken = tokenizers.vocabulary("tekken")
    assert tekken.special_ids == set(range(1000))
    assert tekken.eos_ids == {2}


def test_mistral_wrappers_give_the_same() -> None:
    bare = tokenizers.tokenizer("tekken")
    wrapped = SimpleNamespace(instruct_tokenizer=SimpleNamespace(tokenizer=bare))
    as_vllm = SimpleNamespace(tokenizer=bare, eos_token_id=bare.eos_id)
    digests = {from_tokenizer(found, bare.n_words, [2]).digest for found in (bare, wrapped, as_vllm)}
    assert len(digests) == 1


def test_mistral_sentencepiece() -> None:
    from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer

    path = tokenizers.package_folder("mistral_common") / "data" / "mistral_instruct_tokenizer_240323.model.v3"
    core = SentencePieceTokenizer(path)
    vocabulary = from_tokenizer(core, core.n_words, [core.eos_id])
    text = "Zoë  says 你好 🐈\n\t"
    joined = b"".join(vocabulary.tokens[index] for index in core.encode(text, bos=False, eos=False))
    assert joined == b" " + text.encode()  # sentencepiece puts a space before every text
    assert not core.is_special(vocabulary.tokens.index(b"\n"))


def test_added_tokens() -> None:
    added = [AddedToken("<tool>", special=False), AddedToken("  ", special=False), AddedToken("<end>", special=True)]
    found = from_tokenizer(Fast(byte_level({"Ġ": 0, "a": 1, "Ã": 2, "Ċ": 3}, added), 6), 10)
    assert found.tokens == (b" ", b"a", b"\xc3", b"\n", b"<tool>", b"  ", b"<end>", b"", b"", b"")
    assert found.special_ids == {6}
    assert found.texts[4:7] == [b"<tool>", b"  ", b""]
    assert found.eos_ids == {6}


def test_byte_fallback() -> None:
    found = Tokenizer(Unigram([("<0x0A>", 0.0), ("▁the", 0.0), ("é", 0.0), ("<0xE2>", 0.0)], 0, byte_fallback=True))
    found.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    assert from_tokenizer(Fast(found), 4, [0]).tokens == (b"\n", b" the", "é".encode(), b"\xe2")


def test_ids_past_the_logits_are_left_out() -> None:
    found = from_tokenizer(Fast(byte_level({"a": 0, "b": 1}, [AddedToken("<image>", special=True)]), [1, 2]), 2)
    assert (found.size, set(found.special_ids), set(found.eos_ids)) == (2, set(), {1})


def wordpiece() -> Any:
    found = byte_level({"a": 0}, [])
    found.decoder = decoders.WordPiece()
    return Fast(found, 0)


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        (object(), "fast Hugging Face tokenizer"),
        (wordpiece(), "WordPiece"),
        (Fast(byte_level({"a": 0}, [])), "end-of-text"),
        (Fast(byte_level({"a": 0}, []), 7), "end-of-text"),
    ],
)
def test_what_cannot_be_told_refuses_to_start(tokenizer: object, reason: str) -> None:
    with pytest.raises(StartupError, match=reason):
        from_tokenizer(tokenizer, 1)


def test_digest_tells_vocabularies_apart() -> None:
    base = Vocabulary((b"a", b"bc"), frozenset(), frozenset({1}))
    others = [
        Vocabulary((b"ab", b"c"), frozenset(), frozenset({1})),
        Vocabulary((b"a", b"bc"), frozenset({1}), frozenset({1})),
        Vocabulary((b"a", b"bc"), frozenset(), frozenset({0})),
        Vocabulary((b"a", b"bc", b""), frozenset(), frozenset({1})),
    ]
    assert len({base.digest, *(other.digest for other in others)}) == 5
    assert base.digest == Vocabulary((b"a", b"bc"), frozenset(), frozenset({1})).digest


def test_rows() -> None:
    found = Vocabulary((b"a",) * 33 + (b"",), frozenset({1}), frozenset({2}))
    assert found.row_width == 2
    row = found.text_row
    assert row.dtype == np.int32
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    assert np.nonzero(bits)[0].tolist() == [0, *range(3, 33)]
