"""One vocabulary for every backend: what bytes each token id stands for."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vllm_grammar_backend.errors import StartupError

_PUNCTUATION: Final = frozenset(b'"{}[]:, \t\n\r')


@dataclass(frozen=True)
class Vocabulary:
    """Token id -> bytes.

    `tokens[i]` is the text of token `i` as bytes, b"" for ids without text (padding of the model's embedding).
    Special tokens (`<|im_end|>`) are in `special_ids` and never match text, whatever their spelling.
    """

    tokens: Sequence[bytes] = field(repr=False)
    special_ids: frozenset[int]
    eos_ids: frozenset[int]
    """Every id that ends a text: the tokenizer's and the model configuration's."""

    @property
    def size(self) -> int:
        """Number of ids, padding included: the width of the model's logits."""
        return len(self.tokens)

    @property
    def row_width(self) -> int:
        """int32 words in one bitmask row."""
        return (self.size + 31) // 32

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over everything above."""
        sha = hashlib.sha256()
        for token in self.tokens:
            sha.update(len(token).to_bytes(4, "little") + token)
        for ids in (self.special_ids, self.eos_ids):
            sha.update(b"|" + ",".join(map(str, sorted(ids))).encode())
        return sha.hexdigest()

    @cached_property
    def texts(self) -> list[bytes]:
        """`tokens` with b"" in place of every special and EOS token: what a grammar may be matched with."""
        silent = self.special_ids | self.eos_ids
        return [b"" if index in silent else token for index, token in enumerate(self.tokens)]

    @cached_property
    def text_row(self) -> NDArray[np.int32]:
        """Bitmask row (int32, `row_width` words) of the ids that have text and are neither special nor EOS."""
        return self.row(index for index, text in enumerate(self.texts) if text)

    @cached_property
    def punctuation_row(self) -> NDArray[np.int32]:
        """Bitmask row of the ids whose text is JSON's punctuation and nothing else, whitespace included."""
        return self.row(index for index, text in enumerate(self.texts) if text and _PUNCTUATION.issuperset(text))

    def ids(self, row: NDArray[np.int32]) -> list[int]:
        """The ids whose bits are set in a bitmask row (int32, `row_width` words)."""
        found: list[int] = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
        return found

    def row(self, ids: Iterable[int]) -> NDArray[np.int32]:
        """A bitmask row with exactly the bits of `ids` set."""
        bits = np.zeros(self.row_width * 32, dtype=np.uint8)
        bits[np.fromiter(ids, dtype=np.int64)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)


def from_tokenizer(tokenizer: object, size: int, eos_ids: Iterable[int] = ()) -> Vocabulary:
    """Read a vocabulary out of a tokenizer object as vLLM hands them out.

    Args:
        tokenizer: a fast Hugging Face tokenizer (byte-level BPE or byte-fallback sentencepiece style), or a
            Mistral tokenizer (tekken or sentencepiece).
        size: width of the model's logits; ids past the tokenizer's own are padding, ids past `size` are left out.
        eos_ids: further ids that end a text, e.g. from the model's generation config.

    Raises:
        StartupError: a kind of tokenizer whose token bytes cannot be told exactly, or no EOS id at all.
    """
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is not None:
        texts, special = _read_fast(json.loads(fast.to_str()))
    elif (mistral := _mistral_core(tokenizer)) is not None:
        texts, special = _read_mistral(mistral)
    else:
        raise StartupError(
            f"The tokenizer {type(tokenizer).__name__} does not tell the bytes of its tokens; serve the model with "
            "a fast Hugging Face tokenizer or a Mistral one."
        )
    ends = _eos_ids(tokenizer, eos_ids, size)
    return Vocabulary(
        tokens=tuple(texts.get(index, b"") for index in range(size)),
        special_ids=frozenset(index for index in special if index < size),
        eos_ids=ends,
    )


def _eos_ids(tokenizer: object, more: Iterable[int], size: int) -> frozenset[int]:
    own = getattr(tokenizer, "eos_token_id", None)
    ids = {*more, *([own] if isinstance(own, int) else own or ())}
    ends = frozenset(int(index) for index in ids if 0 <= index < size)
    if not ends:
        raise StartupError(
            "Neither the tokenizer nor the model's configuration names an end-of-text token; set eos_token_id there."
        )
    return ends


_Read = tuple[dict[int, bytes], set[int]]
"""Bytes by token id, and the special ids among them."""
_Decoder = Callable[[str], bytes]
"""From a token as the tokenizer's file spells it to the bytes it stands for."""


def _read_fast(definition: Mapping[str, Any]) -> _Read:
    """From the tokenizer.json of the `tokenizers` library."""
    decode = _decoder_of(definition)
    texts = {index: decode(token) for token, index in _model_vocabulary(definition["model"])}
    special: set[int] = set()
    for added in definition["added_tokens"]:
        if added["special"]:
            texts[added["id"]] = added["content"].encode()
            special.add(added["id"])
        else:
            texts[added["id"]] = decode(added["content"])
    return texts, special


def _model_vocabulary(model: Mapping[str, Any]) -> Iterable[tuple[str, int]]:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, Mapping):
        return ((str(token), int(index)) for token, index in vocabulary.items())
    return ((str(token), index) for index, (token, _score) in enumerate(vocabulary))


def _decoder_of(definition: Mapping[str, Any]) -> _Decoder:
    steps = list(_flatten(definition.get("decoder")))
    names = [step["type"] for step in steps]
    if names == ["ByteLevel"]:
        return _decode_byte_level
    if "ByteFallback" in names and set(names) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        # `Strip` drops the space that the tokenizer itself put before a whole text: nothing of a token's own bytes.
        replacements = [
            (step["pattern"]["String"], step["content"])
            for step in steps
            if step["type"] == "Replace" and "String" in step["pattern"]
        ]
        if len(replacements) == names.count("Replace"):
            return _ByteFallback(replacements)
    raise StartupError(
        f"The tokenizer's decoder ({', '.join(names) or 'none'}) is neither byte-level nor byte-fallback, so the bytes "
        "of its tokens cannot be told."
    )


def _flatten(decoder: Mapping[str, Any] | None) -> Iterable[Mapping[str, Any]]:
    if decoder is None:
        return
    if decoder["type"] == "Sequence":
        for step in decoder["decoders"]:
            yield from _flatten(step)
    else:
        yield decoder


def _byte_of_character() -> dict[str, int]:
    """The bijection of byte-level BPE: printable Latin-1 stands for itself, the other bytes for U+0100 onwards."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + rank): byte for rank, byte in enumerate(others)}


_BYTE_OF_CHARACTER: Final = _byte_of_character()


def _decode_byte_level(token: str) -> bytes:
    # A token with any character outside the bijection (added tokens such as "  ") is taken literally as a whole:
    # that is what the `tokenizers` library's decoder does.
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:
        return token.encode()


_HEX_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class _ByteFallback:
    """Sentencepiece style: `<0x0A>` is one byte, and `▁` (or what the decoder's Replace steps say) a space."""

    replacements: Sequence[tuple[str, str]]

    def __call__(self, token: str) -> bytes:
        if match := _HEX_BYTE.fullmatch(token):
            return bytes([int(match[1], 16)])
        for old, new in self.replacements:
            token = token.replace(old, new)
        return token.encode()


def _mistral_core(tokenizer: object) -> Any | None:
    """The innermost `mistral_common` tokenizer: bare, in its own wrapper, or in vLLM's."""
    for path in ("", "tokenizer", "instruct_tokenizer tokenizer", "mistral instruct_tokenizer tokenizer"):
        found: Any = tokenizer
        for name in path.split():
            found = getattr(found, name, None)
        if hasattr(found, "n_words") and hasattr(found, "is_special") and hasattr(found, "id_to_piece"):
            return found
    return None


def _read_mistral(core: Any) -> _Read:
    special = {index for index in range(core.n_words) if core.is_special(index)}
    decode = _ByteFallback([("\u2581", " ")])
    tekken = hasattr(core, "id_to_byte_piece")
    texts = {}
    for index in range(core.n_words):
        if index in special or not tekken:
            piece = core.id_to_piece(index)
            texts[index] = piece.encode() if index in special else decode(piece)
        else:
            texts[index] = core.id_to_byte_piece(index)
    return texts, special


def end_ids(*configurations: Mapping[str, Any] | None) -> frozenset[int]:
    """Every `eos_token_id` that a model's configurations name; each may hold one id, several, or none."""
    named = [configuration.get("eos_token_id") for configuration in configurations if configuration]
    return frozenset(i for ids in named for i in ([ids] if isinstance(ids, int) else ids or ()))


def byte_vocabulary() -> Vocabulary:
    """The 256 single bytes and an EOS id (256), for verdicts that need no model."""
    return Vocabulary((*(bytes([byte]) for byte in range(256)), b""), frozenset({256}), frozenset({256}))


def from_directory(directory: str) -> Vocabulary:
    """The vocabulary of a model's directory: a Mistral tekken file, or what `transformers` makes a fast tokenizer of.

    Where the directory has the model's configurations too, it is exactly what a server with that model has.

    Raises:
        StartupError: nothing there that can be read exactly.
    """
    tokenizer: Any
    tekken = Path(directory) / "tekken.json"
    try:
        if tekken.is_file():
            from mistral_common.tokens.tokenizers.tekken import Tekkenizer

            tokenizer = Tekkenizer.from_file(str(tekken))
            size, ends = _configured(directory, tokenizer.n_words)
            return from_tokenizer(tokenizer, size, {tokenizer.eos_id, *ends})
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except StartupError:
        raise
    except (ImportError, OSError, ValueError) as error:
        raise StartupError(f"No tokenizer could be read from {directory!r}: {type(error).__name__}: {error}") from None
    return from_tokenizer(tokenizer, *_configured(directory, len(tokenizer)))


def _configured(directory: str, size: int) -> tuple[int, frozenset[int]]:
    """Width of the logits (`size` where nothing tells) and the ids that end a text, as vLLM finds them.

    Many a model leaves both to the defaults of its configuration's class, so the files alone do not tell.
    """
    from transformers import AutoConfig, GenerationConfig

    try:
        model = AutoConfig.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError):  # there is none, or its class is the model's own
        files = (Path(directory) / name for name in ("config.json", "generation_config.json"))
        plain, generation = map(_read_json, files)
        return plain.get("text_config", plain).get("vocab_size", size), end_ids(generation, plain)
    try:
        ends = GenerationConfig.from_pretrained(directory, local_files_only=True)
    except OSError:
        ends = GenerationConfig.from_model_config(model)
    return getattr(model.get_text_config(), "vocab_size", size), end_ids(ends.to_diff_dict(), vars(model))


def _read_json(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise StartupError(f"{file} cannot be read: {type(error).__name__}") from None
    return found
