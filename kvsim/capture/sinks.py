"""Where the events of a recording go while it is made: a file, a socket, or both. None of them may ever hurt the
engine.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from kvsim.recording import eventlog

log = logging.getLogger("kvsim")

_FLUSH_S = 0.5
"""How long an event may wait in memory before it is written."""
_BUFFER_BYTES = 1 << 20


class Sink(Protocol):
    """Takes complete lines of a log; never raises."""

    @property
    def wants_snapshot(self) -> bool:
        """Whether somebody has joined who has not seen the log from its beginning."""

    def write(self, lines: bytes) -> None:
        """Keep or send `lines`."""

    def join(self, snapshot: bytes) -> None:
        """Give those who have joined a log that begins now."""

    def close(self) -> None:
        """Nothing more will come."""


class FileSink:
    """Appends to the log in a folder. When that fails, as on a full disk, the recording ends there; the engine goes
    on.
    """

    wants_snapshot = False

    def __init__(self, folder: Path) -> None:
        """Begin a log in `folder`, which is made.

        Raises:
            OSError: it cannot be made, or holds a log already.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / eventlog.FILE_NAME
        self._file: Any = self._path.open("xb", buffering=_BUFFER_BYTES)
        self._flushed_s = time.monotonic()

    def write(self, lines: bytes) -> None:
        """Append `lines`; they reach the disk within half a second of a later write."""
        if self._file is None:
            return
        try:
            self._file.write(lines)
            now = time.monotonic()
            if now - self._flushed_s > _FLUSH_S:
                self._file.flush()
                self._flushed_s = now
        except OSError as error:
            log.warning("kvsim: recording ends here, %s cannot be written: %s", self._path, error.strerror)
            self._abandon()

    def join(self, snapshot: bytes) -> None:
        """Nobody joins a file."""

    def close(self) -> None:
        """Write what is left."""
        if self._file is None:
            return
        try:
            self._file.close()
        except OSError as error:
            log.warning("kvsim: the end of the recording is lost, %s cannot be written: %s", self._path, error.strerror)
        self._file = None

    def _abandon(self) -> None:
        file, self._file = self._file, None
        with suppress(OSError):  # it cannot be written; that is why we are here
            file.close()


class Fanout:
    """Several sinks as one."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks

    def write(self, lines: bytes) -> None:
        """Hand `lines` to every sink."""
        for sink in self._sinks:
            sink.write(lines)

    @property
    def wants_snapshot(self) -> bool:
        """Whether any sink has somebody new."""
        return any(sink.wants_snapshot for sink in self._sinks)

    def join(self, snapshot: bytes) -> None:
        """Hand the snapshot to every sink."""
        for sink in self._sinks:
            sink.join(snapshot)

    def close(self) -> None:
        """Close every sink."""
        for sink in self._sinks:
            sink.close()
