"""Delay Ctrl-C, which a terminal sends to every process, so that only the parent process handles it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def interrupted_later() -> Iterator[None]:
    """Hold Ctrl-C back for the block; threads and processes started in it ignore Ctrl-C."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    # The start of the tracker, by the first process of multiprocessing, would unblock interrupts.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
