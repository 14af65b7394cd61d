"""Ctrl-C, which a terminal tells every process, is for the one that started the others to answer."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def interrupted_later() -> Iterator[None]:
    """Let Ctrl-C wait while this is open; threads and processes that are started in the meantime never hear of it."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    # It lets interrupts through again when it has been started, which the first process of multiprocessing does.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
