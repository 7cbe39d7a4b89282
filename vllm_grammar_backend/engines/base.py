"""The contract every backend implements: `Engine` compiles, `CompiledGrammar` is shared, `Matcher` is one request's.

spec -> Engine.compile -> CompiledGrammar -> matcher(stop_token_ids) -> Matcher -> fill(row)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from vllm_grammar_backend.engines.vocabulary import Vocabulary
    from vllm_grammar_backend.grammar import GrammarKind, GrammarSpec

Row = NDArray[np.int32]
"""One request's token bitmask: int32 of shape (ceil(vocabulary size / 32),), C-contiguous. Bit `i % 32`
of word `i // 32` is 1 where token `i` is allowed. Bits past the vocabulary are 0."""


class Engine(ABC):
    """One grammar library bound to one vocabulary. Thread-safe."""

    name: ClassVar[str]
    """What operators pin, e.g. `guidance`."""
    distribution: ClassVar[str]
    """The library's distribution on the package index, e.g. `llguidance`."""
    kinds: ClassVar[frozenset[GrammarKind]]

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    @abstractmethod
    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Compile a constraint whose schemas the front end has vetted and lowered for this backend.

        Raises:
            GrammarError: the library refuses it, or a limit of the library was reached.
        """

    @abstractmethod
    def load(self, artefact: bytes) -> CompiledGrammar:
        """The grammar whose `CompiledGrammar.artefact` this is, made by the same library for the same vocabulary.

        Raises:
            ValueError: the bytes are not such an artefact.
        """


class CompiledGrammar(ABC):
    """Immutable and shared by requests and threads."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Resident size in bytes: the library's own figure where it has one, else an estimate with a floor."""

    @abstractmethod
    def artefact(self) -> bytes:
        """What `Engine.load` makes this grammar of in another process: whichever of the library's own form and the
        text it compiled is cheaper to load. Data only, nothing that runs.
        """

    @abstractmethod
    def matcher(self, stop_token_ids: Iterable[int], *, max_rollback: int = 0) -> Matcher:
        """A fresh matcher at the start state; costs microseconds whatever the grammar's size.

        Args:
            stop_token_ids: every id that ends this request: all EOS ids and the request's own. Allowed
                only where the document may end, even where such a token has text the grammar could use.
            max_rollback: most tokens a later `rollback` will take back (draft tokens per step, plus one).
        """


class Matcher(ABC):
    """One request's position in its grammar. Not thread-safe.

    The text automaton is the subclass's (`_advance`, `_retreat`, `_valid_prefix`, `_mask`, `_accepting`);
    stop tokens are handled here, the same for every backend: they are forbidden until the document may end,
    and after one was accepted nothing but stop tokens is allowed, for ever. Where every token that could go on is
    a stop token of the request's own, those end the text, and vLLM names the one that did. Nothing raises for bad
    tokens.
    """

    def __init__(self, vocabulary: Vocabulary, stop_token_ids: Iterable[int]) -> None:
        self._vocabulary = vocabulary
        known = frozenset(i for i in stop_token_ids if 0 <= i < vocabulary.size)
        # A request without any could neither end nor be given a row at a dead end.
        self._stops = known or vocabulary.eos_ids
        self._stop_row = np.zeros(vocabulary.row_width, dtype=np.int32)
        for i in self._stops:
            self._stop_row.view(np.uint32)[i // 32] |= np.uint32(1 << (i % 32))
        self._other_row = ~self._stop_row
        self._stopped = 0
        """Stop tokens accepted since the document ended; 0 while it is open."""
        self.dead_ends = 0
        """Rows that would have been all zero and were given the stop tokens instead."""

    @property
    def finished(self) -> bool:
        """True once a stop token was accepted."""
        return self._stopped > 0

    @property
    def accepting(self) -> bool:
        """True where the text so far is a complete document."""
        return self.finished or self._accepting()

    def accept(self, tokens: Sequence[int]) -> bool:
        """Advance by all of `tokens`, or by none and return False."""
        taken = 0
        for token in tokens:
            if not self._accept_one(token):
                self.rollback(taken)
                return False
            taken += 1
        return True

    def validate(self, tokens: Sequence[int]) -> int:
        """How many of `tokens`, from the first, would be accepted. The state does not change."""
        taken = 0
        for token in tokens:
            if not self._accept_one(token):
                break
            taken += 1
        self.rollback(taken)
        return taken

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens, stop tokens included."""
        stops = min(count, self._stopped)
        self._stopped -= stops
        if count > stops:
            self._retreat(count - stops)

    def reset(self) -> None:
        """Back to the start of the document."""
        self._stopped = 0
        self._restart()

    def copy(self) -> Self:
        """An independent matcher at the same position."""
        twin = copy(self)
        twin._detach()  # noqa: SLF001 - a twin is of this class
        return twin

    def fill(self, row: Row) -> None:
        """Overwrite `row` with the tokens allowed next. Never leaves it all zero."""
        if self._stopped:
            np.copyto(row, self._stop_row)
            return
        self._mask(row)
        np.bitwise_and(row, self._other_row, out=row)
        if self._accepting():
            np.bitwise_or(row, self._stop_row, out=row)
        elif not row.any():
            self.dead_ends += 1
            self._end_here(row)

    def _end_here(self, row: Row) -> None:
        """Where nothing but stop tokens would do: those that the text could go on with, else all of them."""
        self._mask(row)
        np.bitwise_and(row, self._stop_row, out=row)
        if not row.any():
            np.copyto(row, self._stop_row)

    def _must_end(self, token: int) -> bool:
        """True where only stop tokens could go on, and `token` is one of them. Elsewhere a dead end is a fault."""
        row = np.empty_like(self._stop_row)
        self._mask(row)
        if np.bitwise_and(row, self._other_row).any():
            return False
        return bool(row.view(np.uint32)[token // 32] >> np.uint32(token % 32) & np.uint32(1))

    def _accept_one(self, token: int) -> bool:
        if token in self._stops:
            if not self.accepting and not self._must_end(token):
                return False
            self._stopped += 1
            return True
        return not self._stopped and self._advance(token)

    @abstractmethod
    def _advance(self, token: int) -> bool:
        """Advance by one text token, or leave the state alone and return False."""

    @abstractmethod
    def _retreat(self, count: int) -> None:
        """Undo the last `count` successful `_advance` calls."""

    @abstractmethod
    def _restart(self) -> None:
        """Undo everything."""

    @abstractmethod
    def _mask(self, row: Row) -> None:
        """Overwrite `row` with the text tokens allowed next; bits of stop tokens may be anything."""

    @abstractmethod
    def _accepting(self) -> bool:
        """True where the text so far is a complete document."""

    @abstractmethod
    def _detach(self) -> None:
        """Replace what a shallow copy shares and what changes by copies of its own."""
