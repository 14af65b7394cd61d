"""Destinations of the events of a recording: a file, viewers, or both.

A sink must not slow or stop the engine: it does not block, and an error ends the recording instead of being raised.
"""

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
"""Longest time in seconds that an event waits in memory before it is written."""
_CLOSE_S = 10.0
"""Longest time in seconds by which the end of a recording may delay the end of the engine."""


class LogSink(Protocol):
    """Destination for complete lines of an event log. Its methods never raise and never block."""

    def write(self, lines: bytes) -> None:
        """Store or send `lines`."""

    def close(self) -> None:
        """End the log."""


class FileSink:
    """Sink that appends to a log file from another thread.

    If writing fails, for example on a full disk, the recording ends and the engine goes on. If the engine is killed,
    the events of the last quarter of a second are lost.
    """

    def __init__(self, folder: Path) -> None:
        """Create `folder` and a log file in it."""
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / eventlog.FILE_NAME
        self._file = self._path.open("xb", buffering=0)
        self._pump = Pump(self._append, self._give_up, name="kvsim-file", period_s=_PERIOD_S)

    def write(self, lines: bytes) -> None:
        """Queue `lines` for writing."""
        self._pump.push(lines)

    def close(self) -> None:
        """Write the queued lines and close the file."""
        if not self._pump.close(_CLOSE_S):
            log.warning("kvsim: the end of the recording is lost, %s takes too long to write.", self._path)
        self._file.close()

    def _append(self, lines: bytes) -> None:
        write_all(self._file.fileno(), lines)

    def _give_up(self, reason: str) -> None:
        log.warning("kvsim: recording ends here, %s cannot be written: %s.", self._path, reason)


class Fanout:
    """Sink that passes all lines to several sinks."""

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
    """Write all of `data` to an open file or pipe. This may block."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
