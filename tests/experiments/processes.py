"""Processes that tests start and kill."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest


def children_of(process: int) -> set[int]:
    """The processes that `process` has started and that compute: joblib has one more, which watches semaphores."""
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    found = {int(child) for task in tasks for child in task.read_text().split()}
    return {child for child in found if b"resource_tracker" not in Path(f"/proc/{child}/cmdline").read_bytes()}


def until(holds: Callable[[], bool]) -> None:
    """Wait for what should come to be within a minute."""
    for _ in range(1200):
        if holds():
            return
        time.sleep(0.05)
    pytest.fail("it never came to be")
