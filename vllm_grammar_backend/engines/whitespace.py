"""A bound on runs of JSON whitespace, for libraries that only know "any" and "none"."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vllm_grammar_backend.engines.vocabulary import Vocabulary

MAX_RUN: Final = 32
"""Most whitespace characters between two JSON tokens under `Whitespace.BOUNDED`: a newline and seven levels of
four spaces, or fifteen of two."""

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
        leading = ((index, _STARTS_BLANK.match(text)) for index, text in enumerate(texts))
        self._leading = {index: found.end() for index, found in leading if found}
        self._long = [index for index, text in enumerate(texts) if _LONG_RUN.search(text)]
        self.row = cache(self._row)

    def _row(self, position: int) -> NDArray[np.int32]:
        texts = self._vocabulary.texts
        barred = {index for index in self._long if step(position, texts[index]) is None}
        if position >= OUTSIDE:
            room = MAX_RUN - position
            barred.update(index for index, blanks in self._leading.items() if blanks > room)
        return self._text_row & ~self._vocabulary.row(barred)
