"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest


def until(holds: Callable[[], bool]) -> None:
    """Return as soon as this holds; the test fails if it does not within a minute."""
    for _ in range(1200):
        if holds():
            return
        time.sleep(0.05)
    pytest.fail("it never came to be")
