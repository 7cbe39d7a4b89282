"""The contract suite on the guidance backend."""

from __future__ import annotations

from tests.engines.contract import EngineContract
from tests.engines.samples import ESCAPES


class TestGuidance(EngineContract):
    backend = "guidance"
    leaves_out = frozenset(ESCAPES)
