"""Delayed Ctrl-C. A terminal sends it to every process, and only the parent process should handle it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def interrupted_later() -> Iterator[None]:
    """Hold Ctrl-C back until the end of the `with` block; on Windows, do nothing.

    Threads and processes that are started in the block still ignore Ctrl-C after its end.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    # The first process of multiprocessing starts the tracker, which would unblock interrupts. So it is started before.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
