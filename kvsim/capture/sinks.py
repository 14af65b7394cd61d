"""Destinations for the events of a recording: a file, viewers, or both. No sink may slow or end the engine."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from kvsim.capture.pump import Pump
from kvsim.recording import eventlog

log = logging.getLogger("kvsim")

_PERIOD_S = 0.25
"""Seconds that an event may wait in memory before it is written."""


class LogSink(Protocol):
    """Takes complete lines of a log; never raises, never blocks."""

    def write(self, lines: bytes) -> None:
        """Keep or send `lines`."""

    def close(self) -> None:
        """End the log."""


class FileSink:
    """Appends to a log file from a thread of its own. If writing fails, for example on a full disk, the recording ends
    and the engine goes on.

    The operating system has an event a quarter of a second after it happened, even if no other follows: an engine that
    is killed loses no more than that.
    """

    def __init__(self, folder: Path) -> None:
        """Create `folder` and begin a log in it.

        Raises:
            OSError: it cannot be made, or holds a log already.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / eventlog.FILE_NAME
        self._file = self._path.open("xb", buffering=0)
        self._pump = Pump(self._append, self._give_up, name="kvsim-file", period_s=_PERIOD_S)

    def write(self, lines: bytes) -> None:
        """Queue `lines` for writing."""
        self._pump.push(lines)

    def close(self) -> None:
        """Write what is queued."""
        if not self._pump.close():
            log.warning("kvsim: the end of the recording is lost, %s takes too long to write.", self._path)
        self._file.close()

    def _append(self, lines: bytes) -> None:
        write_all(self._file.fileno(), lines)

    def _give_up(self, reason: str) -> None:
        log.warning("kvsim: recording ends here, %s cannot be written: %s.", self._path, reason)


class Fanout:
    """Several sinks as one."""

    def __init__(self, sinks: Sequence[LogSink]) -> None:
        self._sinks = sinks

    def write(self, lines: bytes) -> None:
        """Send `lines` to every sink."""
        for sink in self._sinks:
            sink.write(lines)

    def close(self) -> None:
        """Close every sink."""
        for sink in self._sinks:
            sink.close()


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data` to an open file or pipe; may block.

    Raises:
        OSError: it cannot be written.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
