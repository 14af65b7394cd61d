"""Follow a recording that somebody else is making, over a socket: `KVSIM_PUBLISH` on the server, `kvsim tui
--attach` here.
"""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvsim.errors import RecordingError, UsageError
from kvsim.recording import eventlog
from kvsim.recording.builder import RecordingBuilder
from kvsim.recording.model import Meta, Recording
from kvsim.recording.provenance import meta_from_document

DEFAULT_HOST = "127.0.0.1"
_CONNECT_S = 5.0
_WINDOW_STEPS = 50_000
"""Steps after which a feed starts afresh: looking back further is what a recording on disk is for."""


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`, or `PORT` on the loopback interface.

    Raises:
        UsageError: it is neither.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise UsageError(f"{text!r} is not an address; it should be HOST:PORT, or PORT on this machine.")
    return host.strip("[]") or DEFAULT_HOST, int(port)


class LiveFeed:
    """A running server's events, collected by a thread until `close`."""

    def __init__(self, address: str) -> None:
        """Connect to the publisher at `address`.

        Raises:
            UsageError: it is not an address.
            RecordingError: nobody publishes there.
        """
        self._address = parse_address(address)
        self.name = address
        self._lock = threading.Lock()
        self._meta: Meta | None = None
        self._builder = RecordingBuilder()
        self._closed = False
        self.ended: str | None = None
        """Why the feed has ended, as a sentence; None while it goes on."""
        self._connection = self._connect()
        self._thread = threading.Thread(target=self._follow, name="kvsim-feed", daemon=True)
        self._thread.start()

    def recording(self) -> Recording | None:
        """Everything heard so far; None before the server's first step."""
        with self._lock:
            if self._meta is None or not self._builder.num_steps:
                return None
            return self._builder.finish(self._meta, self.name)

    def close(self) -> None:
        """Hang up; the server does not notice."""
        self._closed = True
        # Closing alone would leave the thread waiting in its read.
        with suppress(OSError):  # it may have hung up already
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        self._thread.join(timeout=_CONNECT_S)

    def _connect(self) -> socket.socket:
        try:
            connection = socket.create_connection(self._address, timeout=_CONNECT_S)
        except OSError as error:
            reason = error.strerror or str(error)
            raise RecordingError(
                f"nothing is published at {self.name} ({reason}); start the server with KVSIM_PUBLISH={self.name}."
            ) from error
        connection.settimeout(None)
        return connection

    def _follow(self) -> None:
        while not self._closed:
            renew = False
            try:
                with self._connection.makefile("rb") as lines:
                    renew = self._read(lines)
            except (OSError, ValueError) as error:
                self.ended = f"the connection to {self.name} broke: {error}."
            except (RecordingError, LookupError, TypeError) as error:
                self.ended = f"{self.name} sent something else than a recording: {error}"
            if not renew:
                self.ended = self.ended or f"the server at {self.name} has hung up."
                return
            self._connection.close()
            try:
                self._connection = self._connect()
            except RecordingError as error:
                self.ended = str(error)
                return

    def _read(self, lines: Any) -> bool:
        """Apply events until the window is full (True: connect again) or the server hangs up (False)."""
        builder, numbers = RecordingBuilder(), None
        for text in lines:
            event = json.loads(text)
            if event[0] == "meta":
                with self._lock:
                    self._meta = meta_from_document(event[1], Path(self.name))
                    self._builder = builder
            elif event[0] == "refused":
                raise RecordingError(f"{event[1]}.")
            elif event[0] == "joined":
                rows, next_row, next_step = event[1:]
                numbers = _Numbers(builder, rows, next_row, next_step)
                with self._lock:
                    if next_step and self._meta is not None:
                        # What was cached before, and what the first steps decided, is not known here.
                        self._meta = replace(self._meta, extra={**self._meta.extra, "joined_at_step": next_step})
            else:
                local = event if numbers is None else numbers.translate(event)
                if local is not None:
                    with self._lock:
                        eventlog.apply(builder, local)
            if builder.num_steps >= _WINDOW_STEPS:
                return True
        return False


class _Numbers:
    """The server's numbers of requests and steps, and ours, which begin at the snapshot with which we joined."""

    def __init__(self, builder: RecordingBuilder, rows: list[int], next_row: int, next_step: int) -> None:
        """Args: the snapshot's requests in the server's numbers, and the numbers that come next."""
        self._row = {row: local for local, row in enumerate(rows)}
        self._next_row = next_row
        self._step_offset = builder.num_steps - next_step
        self._first_step = next_step

    def translate(self, event: list[Any]) -> list[Any] | None:
        """The event in our numbers; None if it is about a step from before we joined."""
        match event:
            case ["arrive", *_]:
                self._row[self._next_row] = len(self._row)
                self._next_row += 1
                return event
            case ["output", step, time_s]:
                return ["output", step + self._step_offset, time_s] if step >= self._first_step else None
            case ["tokens", time_s, rows]:
                return ["tokens", time_s, [[self._row[row], *rest] for row, *rest in rows]]
            case ["append" | "share" | "release" | "emit" | "preempt" | "end" as kind, row, *rest]:
                return [kind, self._row[row], *rest]
            case _:
                return event
