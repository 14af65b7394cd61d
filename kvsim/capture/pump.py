"""Transport of bytes from the engine's thread to a slow destination, such as a disk or another process.

The engine's thread only appends to a queue, without a lock or a system call. Another thread delivers the bytes a few
times a second. If the destination fails or falls too far behind, the queue is dropped.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

MAX_WAITING_BYTES = 64 << 20
"""Largest number of bytes that may wait for a slow destination."""


class Pump:
    """Queue of bytes that the engine's thread fills, and that a thread of its own delivers."""

    def __init__(
        self,
        deliver: Callable[[bytes], None],
        give_up: Callable[[str], None],
        *,
        name: str,
        period_s: float,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        """Start the thread.

        Args:
            deliver: function that sends the bytes of one or more pushes, in order. It may block, and may raise OSError.
            give_up: function called once, in either thread, with the reason why delivery failed or fell too far behind.
            name: name of the thread.
            period_s: longest time in seconds that bytes wait before they are delivered.
            max_waiting_bytes: number of waiting bytes above which delivery is given up.
        """
        self._deliver, self._give_up = deliver, give_up
        self._period_s, self._max_waiting_bytes = period_s, max_waiting_bytes
        self._waiting: deque[bytes] = deque()
        # Each count has one writer, so that neither thread ever waits for a lock.
        self._pushed_bytes = self._taken_bytes = 0
        self._ready, self._closing = threading.Event(), threading.Event()
        self.open = True
        """True if pushed bytes will be delivered."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        """Number of pushed bytes that are not delivered; 0 after delivery was given up."""
        return self._pushed_bytes - self._taken_bytes if self.open else 0

    def push(self, lines: bytes) -> None:
        """Queue `lines` for delivery. It takes about a microsecond, even if the destination blocks."""
        if not self.open:
            return
        self._waiting.append(lines)
        self._pushed_bytes += len(lines)
        if self.waiting_bytes > self._max_waiting_bytes:
            self._fail(f"it takes nothing, and {self.waiting_bytes:,} bytes wait")
        elif not self._ready.is_set():
            self._ready.set()

    def close(self, timeout_s: float) -> bool:
        """Deliver the queued bytes. Return False if this takes longer than `timeout_s` seconds."""
        self._closing.set()
        self._ready.set()
        self._thread.join(timeout_s)
        self.open = False
        return not self._thread.is_alive()

    def _run(self) -> None:
        while self.open:
            self._ready.wait()
            last = self._closing.wait(self._period_s)
            self._ready.clear()
            waiting = self._waiting
            lines = b"".join([waiting.popleft() for _ in range(len(waiting))])
            try:
                if lines:
                    self._deliver(lines)
            except OSError as error:
                if self.open:
                    self._fail(error.strerror or str(error))
                return
            self._taken_bytes += len(lines)
            if last:
                return

    def _fail(self, reason: str) -> None:
        self.open = False
        self._waiting = deque()  # the other thread may be emptying the old one
        self._ready.set()
        self._give_up(reason)
