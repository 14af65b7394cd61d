"""Waiting for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

_POLL_S = 0.01


def until(holds: Callable[[], object], *, within_s: float = 5.0) -> None:
    """Return as soon as this holds; the test fails if it does not in so many seconds."""
    for _ in range(round(within_s / _POLL_S)):
        if holds():
            return
        time.sleep(_POLL_S)
    pytest.fail(f"it did not come to be within {within_s:g} seconds")
