"""What masks cost, step by step, as the engine's thread sees it."""

from __future__ import annotations

from collections import deque
from typing import Final

KEPT: Final = 4096
"""Steps remembered until somebody asks: 40 s at 10 ms a step."""


class StepTimes:
    """Sums the rows of one step of the engine. Not exact where rows are filled by several threads at once."""

    def __init__(self) -> None:
        self._row = -1
        self._fill_s = 0.0
        self._accept_s = 0.0
        self._steps: deque[tuple[float, float]] = deque(maxlen=KEPT)
        self.unmasked = 0
        """Requests that had a token accepted before any mask of theirs was asked for."""

    def filled(self, row: int, seconds: float) -> None:
        """Rows of one step come in ascending order."""
        if row <= self._row:
            self._close()
        self._row = row
        self._fill_s += seconds

    def accepted(self, seconds: float, *, first: bool) -> None:
        """`first`: of a request that has had neither mask nor token before."""
        self._accept_s += seconds
        self.unmasked += first

    def drain(self) -> list[tuple[float, float]]:
        """Seconds of filling and of accepting for each whole step since the last call; callable from any thread."""
        return [self._steps.popleft() for _ in range(len(self._steps))]

    def _close(self) -> None:
        self._steps.append((self._fill_s, self._accept_s))
        self._fill_s = self._accept_s = 0.0
