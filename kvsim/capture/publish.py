"""Publish the events of a recording on a local socket, for `kvsim tui --attach`.

A viewer that joins gets a snapshot and then every event. The engine's thread only appends to queues; a thread of our
own does the sending. A viewer that cannot keep up is disconnected, and gets a new snapshot when it comes back: it can
never slow the engine.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque

from kvsim.recording.live import parse_address

log = logging.getLogger("kvsim")

_QUEUE_BYTES = 16 << 20
"""How far a viewer may fall behind."""


class Publisher:
    """A sink that serves any number of viewers."""

    def __init__(self, address: str) -> None:
        """Listen on `address` (`HOST:PORT` or `PORT`; the loopback interface unless a host is named).

        Raises:
            OSError: the address is taken or not ours.
            UsageError: it is not an address.
        """
        self._lock = threading.Lock()
        self._joining: list[_Viewer] = []
        self._viewers: list[_Viewer] = []
        self.wants_snapshot = False
        self._listener = socket.create_server(parse_address(address))
        self.address: str = "{}:{}".format(*self._listener.getsockname()[:2])
        """Where viewers connect."""
        log.info("kvsim: publishing at %s", self.address)
        threading.Thread(target=self._accept, name="kvsim-publisher", daemon=True).start()

    def write(self, lines: bytes) -> None:
        """Queue `lines` for every viewer."""
        if self._viewers:
            self._viewers = [viewer for viewer in self._viewers if viewer.offer(lines)]

    def join(self, snapshot: bytes) -> None:
        """Queue the snapshot for everyone who has joined since the last one; from now on they get every event."""
        with self._lock:
            joined, self._joining = self._joining, []
            self.wants_snapshot = False
        self._viewers += [viewer for viewer in joined if viewer.offer(snapshot)]

    def close(self) -> None:
        """Hang up."""
        self._listener.close()
        for viewer in (*self._viewers, *self._joining):
            viewer.hang_up()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            with self._lock:
                self._joining.append(_Viewer(connection))
                self.wants_snapshot = True


class _Viewer:
    """One connection and the bytes that wait for it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._ready = threading.Condition()
        self._alive = True
        threading.Thread(target=self._send, name="kvsim-viewer", daemon=True).start()

    def offer(self, lines: bytes) -> bool:
        """Queue `lines`; False if the viewer is gone or has fallen too far behind."""
        with self._ready:
            if self._queued_bytes + len(lines) > _QUEUE_BYTES:
                self._alive = False
            elif self._alive:
                self._queue.append(lines)
                self._queued_bytes += len(lines)
            self._ready.notify()
            return self._alive

    def hang_up(self) -> None:
        """Send what is queued and close."""
        with self._ready:
            self._alive = False
            self._ready.notify()

    def _send(self) -> None:
        while True:
            with self._ready:
                while self._alive and not self._queue:
                    self._ready.wait()
                if not self._queue:
                    break
                lines = b"".join(self._queue)
                self._queue.clear()
                self._queued_bytes = 0
            try:
                self._connection.sendall(lines)
            except OSError:
                with self._ready:
                    self._alive = False
                break
        self._connection.close()
