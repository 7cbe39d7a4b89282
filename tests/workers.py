"""The backends for tests that start worker processes: xgrammar's import torch, which takes seconds."""

from __future__ import annotations

import pytest

SLOW_XGRAMMAR = pytest.param("xgrammar", marks=pytest.mark.slow)
BOTH = ["guidance", SLOW_XGRAMMAR]
