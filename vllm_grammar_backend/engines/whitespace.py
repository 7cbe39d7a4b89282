"""A bound on runs of JSON whitespace, kept beside the library.

llguidance only knows "any" and "none". xgrammar has a bound of its own, but a state for every blank of it: at `MAX_RUN`
50 ms more to compile, 6.5 MB more to hold and masks five times as dear (two-property object, 129k ids).
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vllm_grammar_backend.engines.base import Matcher, Row
from vllm_grammar_backend.engines.vocabulary import Vocabulary
from vllm_grammar_backend.grammar import GrammarKind, GrammarSpec, Whitespace

MAX_RUN: Final = 32
"""Most whitespace characters between two JSON tokens under `Whitespace.BOUNDED`: a newline and seven levels of
four spaces, or fifteen of two."""

JSON_KINDS: Final = frozenset({GrammarKind.JSON, GrammarKind.JSON_OBJECT})

OUTSIDE: Final = 0
"""Position at the start of a document. Positions 0 to `MAX_RUN` are outside of strings after that many whitespace
characters in a row; the two below are inside of one."""
_IN_STRING: Final = -1
_ESCAPED: Final = -2

_BLANKS: Final = b" \t\n\r"
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_STARTS_BLANK: Final = re.compile(rb"[ \t\n\r]+")
_LONG_RUN: Final = re.compile(rb"[ \t\n\r]{%d}" % (MAX_RUN + 1))


def step(position: int, text: bytes) -> int | None:
    """The position after `text`, None where a run outside of strings would grow past `MAX_RUN`.

    Exact for prefixes of JSON documents, which is all that a JSON grammar lets through.
    """
    for byte in text:
        if position == _IN_STRING:
            if byte == _QUOTE:
                position = OUTSIDE
            elif byte == _BACKSLASH:
                position = _ESCAPED
        elif position == _ESCAPED:
            position = _IN_STRING
        elif byte in _BLANKS:
            position += 1
            if position > MAX_RUN:
                return None
        else:
            position = _IN_STRING if byte == _QUOTE else OUTSIDE
    return position


class WhitespaceRows:
    """Bitmask rows (int32, the vocabulary's width) of the tokens that keep within the bound, by position. Shared."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._text_row = vocabulary.text_row
        self._vocabulary = vocabulary
        texts = vocabulary.texts
        blanks = [len(found[0]) if (found := _STARTS_BLANK.match(text)) else 0 for text in texts]
        self._blanks = np.array(blanks, dtype=np.int32)
        """How many whitespace characters each token begins with."""
        self._long = [index for index, text in enumerate(texts) if _LONG_RUN.search(text)]
        self.row = cache(self._row)

    def _row(self, position: int) -> NDArray[np.int32]:
        texts = self._vocabulary.texts
        barred = [index for index in self._long if step(position, texts[index]) is None]
        if position >= OUTSIDE:
            barred.extend(np.nonzero(self._blanks > MAX_RUN - position)[0].tolist())
        return self._text_row & ~self._vocabulary.row(barred)


class BoundedMatcher(Matcher):
    """A matcher over a library's own, here called the automaton, with the whitespace bound beside it where asked for.

    The automaton is shown text tokens only: never a special, padded, unknown or EOS id.
    """

    def __init__(
        self, vocabulary: Vocabulary, stop_token_ids: Iterable[int], has_text: bytes, bound: WhitespaceRows | None
    ) -> None:
        """`has_text[i]` is 1 where token `i` is a text token; `bound` is None where whitespace is the library's."""
        super().__init__(vocabulary, stop_token_ids)
        self._has_text = has_text
        self._texts = vocabulary.texts
        self._text_row = vocabulary.text_row
        self._bound = bound
        self._positions = [OUTSIDE]
        """Lexical position after each accepted token; only kept where there is a bound."""

    def _is_text(self, token: int) -> bool:
        return 0 <= token < len(self._has_text) and self._has_text[token] == 1

    def _advance(self, token: int) -> bool:
        if not self._is_text(token):
            return False
        if self._bound is None:
            return self._consume(token)
        position = step(self._positions[-1], self._texts[token])
        if position is None or not self._consume(token):
            return False
        self._positions.append(position)
        return True

    def _retreat(self, count: int) -> None:
        self._undo(count)
        if self._bound is not None:
            del self._positions[-count:]

    def _restart(self) -> None:
        self._rewind()
        del self._positions[1:]

    def _mask(self, row: Row) -> None:
        self._compute(row)
        row &= self._text_row if self._bound is None else self._bound.row(self._positions[-1])

    def _detach(self) -> None:
        self._positions = self._positions.copy()

    @abstractmethod
    def _consume(self, token: int) -> bool:
        """Advance the automaton by a text token, or leave it alone and return False."""

    @abstractmethod
    def _undo(self, count: int) -> None:
        """Take back the automaton's last `count` tokens."""

    @abstractmethod
    def _rewind(self) -> None:
        """Put the automaton back to its start."""

    @abstractmethod
    def _compute(self, row: Row) -> None:
        """Overwrite `row` with the automaton's mask; bits of ids without text may be anything."""


def has_bound(spec: GrammarSpec) -> bool:
    """Whether a constraint is one JSON document whose whitespace is bounded."""
    return spec.options.whitespace is Whitespace.BOUNDED and spec.kind in JSON_KINDS


def pack(text: str, *, bounded: bool) -> bytes:
    """An artefact: what the library reads, behind one letter for what stands beside it."""
    return (b"b" if bounded else b"-") + text.encode()


def unpack(artefact: bytes) -> tuple[bool, str]:
    """Whether whitespace is bounded, and what the library reads. Raises ValueError for anything else."""
    if artefact[:1] not in (b"b", b"-"):
        raise ValueError("not an artefact")
    return artefact[:1] == b"b", artefact[1:].decode()
