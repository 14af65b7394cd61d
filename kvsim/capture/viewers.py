"""Process that serves viewers of a live recording: `python -m kvsim.capture.viewers DESCRIPTOR`.

The engine's process writes its log to the standard input of this process, and knows no viewers. A viewer only reads:
one that sends data, reads too slowly or leaves is disconnected.

An empty line of the log marks that the engine's state is complete. Viewers may join only there, because elsewhere a
change may be incomplete. The empty lines are sent to viewers, too.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from kvsim.files.eventline import line
from kvsim.live.mirror import Mirror

MAX_VIEWERS = 16
"""Limit for the number of connections. A further client gets a message, and its connection is closed."""
MAX_QUEUED_BYTES = 16 << 20
"""Largest number of bytes that may wait for one viewer; a viewer with more is disconnected."""
SNAPSHOT_PERIOD_S = 1.0
"""Seconds between two snapshots; a viewer that joins after a snapshot waits for the next one."""
ACCEPT_PERIOD_S = 0.01
"""Least seconds between two connections that are accepted."""
_EXHAUSTED_S = 1.0
_FAREWELL_S = 1.0
"""Seconds, in all, to send the queued bytes when the engine ends."""
_READ_BYTES = 1 << 16
_NICENESS = 5


class ViewerServer:
    """Server that sends a log to every viewer. It has one thread, and never waits for a viewer."""

    def __init__(self, listener: socket.socket, log: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`listener` is a listening socket, `log` the descriptor of the log, and `clock` returns seconds."""
        self._listener, self._log, self._clock = listener, log, clock
        self._mirror = Mirror()
        self._partial = b""
        self._complete = False
        self._joining: list[_Viewer] = []
        self._viewers: list[_Viewer] = []
        self._accept_s: float | None = None
        """Time from which on the listener is used again, in seconds of `clock`; None while it is in use."""
        self._snapshot_s = -SNAPSHOT_PERIOD_S
        self.num_snapshots = 0
        """Number of snapshots sent up to now."""
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        os.set_blocking(log, False)
        self._selector.register(log, selectors.EVENT_READ)
        self._selector.register(listener, selectors.EVENT_READ)

    @property
    def num_viewers(self) -> int:
        """Number of open connections."""
        return len(self._joining) + len(self._viewers)

    @property
    def queued_bytes(self) -> int:
        """Number of bytes that wait for viewers."""
        return sum(viewer.queued_bytes for viewer in self._viewers)

    def run(self) -> None:
        """Serve until the log ends."""
        while self.turn():
            pass

    def turn(self, timeout_s: float | None = None) -> bool:
        """Wait for events, at most `timeout_s` seconds if given, and handle them. Return False at the log's end."""
        now_s = self._clock()
        due_s = [] if timeout_s is None else [timeout_s]
        if self._accept_s is not None:
            due_s.append(self._accept_s - now_s)
        if self._joining and self._can_join():
            due_s.append(self._snapshot_s + SNAPSHOT_PERIOD_S - now_s)
        is_open = True
        for key, events in self._selector.select(max(min(due_s), 0) if due_s else None):
            if key.fd == self._log:
                is_open = self._read()
            elif key.fileobj is self._listener:
                self._accept()
            elif key.data.connection.fileno() < 0:
                pass  # an earlier event of this loop has closed the connection
            elif events & selectors.EVENT_READ or not key.data.send():
                self._drop(key.data)
            else:
                self._await(key.data)
        self._resume_listening()
        self._admit()
        return is_open

    def close(self) -> None:
        """Send the queued bytes for at most `_FAREWELL_S` seconds in total, and close every connection."""
        end_s = self._clock() + _FAREWELL_S
        for viewer in list(self._viewers):
            viewer.send_all(max(end_s - self._clock(), 0.01))
        for viewer in (*self._viewers, *self._joining):
            self._drop(viewer)
        self._selector.close()
        self._listener.close()

    def _read(self) -> bool:
        data = os.read(self._log, _READ_BYTES)
        *lines, self._partial = (self._partial + data).split(b"\n")
        news = []
        for text in lines:
            self._complete = not text
            news.append(self._follow(text) if text else b"\n")
        self._tell(b"".join(news), self._viewers)
        return bool(data)

    def _follow(self, text: bytes) -> bytes:
        event = json.loads(text)
        forwarded = self._mirror.apply(event)
        return text + b"\n" if forwarded is event else line(*forwarded)

    def _tell(self, lines: bytes, viewers: list[_Viewer]) -> None:
        if not lines:
            return
        for viewer in list(viewers):
            if viewer.offer(lines) and viewer.send():
                self._await(viewer)
            else:
                self._drop(viewer)

    def _can_join(self) -> bool:
        return self._complete and self._mirror.begun

    def _admit(self) -> None:
        now_s = self._clock()
        if not self._joining or not self._can_join() or now_s < self._snapshot_s + SNAPSHOT_PERIOD_S:
            return
        self._snapshot_s = now_s
        self.num_snapshots += 1
        joined, self._joining = self._joining, []
        self._viewers += joined
        self._tell(b"".join(line(*event) for event in self._mirror.snapshot()) + b"\n", joined)

    def _accept(self) -> None:
        pause_s = ACCEPT_PERIOD_S
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return  # the client has left
        except OSError:  # most often, no descriptor is left
            pause_s = _EXHAUSTED_S
        else:
            self._greet(connection)
        self._accept_s = self._clock() + pause_s
        self._selector.unregister(self._listener)

    def _greet(self, connection: socket.socket) -> None:
        viewer = _Viewer(connection)
        if self.num_viewers == MAX_VIEWERS:
            viewer.offer(line("refused", f"{MAX_VIEWERS} viewers are connected, and no more are served"))
            viewer.send()
            viewer.close()
            return
        self._joining.append(viewer)
        self._selector.register(connection, selectors.EVENT_READ, viewer)

    def _resume_listening(self) -> None:
        if self._accept_s is not None and self._clock() >= self._accept_s:
            self._accept_s = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _await(self, viewer: _Viewer) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if viewer.queued_bytes else 0)
        if self._selector.get_key(viewer.connection).events != events:
            self._selector.modify(viewer.connection, events, viewer)

    def _drop(self, viewer: _Viewer) -> None:
        for viewers in (self._joining, self._viewers):
            if viewer in viewers:
                viewers.remove(viewer)
                self._selector.unregister(viewer.connection)
                viewer.close()


class _Viewer:
    """A connection and its queue. Queues of several viewers share their bytes in memory."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.queued_bytes = 0
        self._queue: deque[memoryview] = deque()

    def offer(self, lines: bytes) -> bool:
        """Queue `lines`. Return False if more than `MAX_QUEUED_BYTES` then wait for the viewer."""
        self._queue.append(memoryview(lines))
        self.queued_bytes += len(lines)
        return self.queued_bytes <= MAX_QUEUED_BYTES or len(self._queue) == 1

    def send(self) -> bool:
        """Send the bytes that the connection accepts without waiting. Return False if the connection is broken."""
        try:
            while self._queue:
                num_bytes = self.connection.send(self._queue[0])
                self.queued_bytes -= num_bytes
                if num_bytes == len(self._queue[0]):
                    self._queue.popleft()
                else:
                    self._queue[0] = self._queue[0][num_bytes:]
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True

    def send_all(self, timeout_s: float) -> None:
        self.connection.settimeout(timeout_s)
        with suppress(OSError):
            self.connection.sendall(b"".join(self._queue))

    def close(self) -> None:
        with suppress(OSError):  # it may be closed already
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


def main() -> None:
    """Serve the log on standard input at the listening socket whose descriptor is the only argument."""
    # The engine ends this process by closing the log; after Ctrl+C it still has events to send.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    server = ViewerServer(socket.socket(fileno=int(sys.argv[1])), sys.stdin.fileno())
    server.run()
    server.close()


if __name__ == "__main__":
    main()
