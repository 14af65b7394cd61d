"""Where the events of a recording go while it is made: a file, viewers, or both. No sink may ever hurt the engine."""

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
    """Takes complete lines of a log; never raises, never waits."""

    def write(self, lines: bytes) -> None:
        """Keep or send `lines`."""

    def close(self) -> None:
        """Nothing more will come."""


class FileSink:
    """Appends to the log in a folder, from a thread of its own. When that fails, as on a full disk, the recording ends
    there; the engine goes on.

    An event is with the operating system a quarter of a second after it happened, whether others follow or not: an
    engine that is killed loses no more.
    """

    def __init__(self, folder: Path) -> None:
        """Begin a log in `folder`, which is made.

        Raises:
            OSError: it cannot be made, or holds a log already.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / eventlog.FILE_NAME
        self._file = self._path.open("xb", buffering=0)
        self._pump = Pump(self._append, self._give_up, name="kvsim-file", period_s=_PERIOD_S)

    def write(self, lines: bytes) -> None:
        """Have `lines` appended."""
        self._pump.push(lines)

    def close(self) -> None:
        """Write what is left."""
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
        """Hand `lines` to every sink."""
        for sink in self._sinks:
            sink.write(lines)

    def close(self) -> None:
        """Close every sink."""
        for sink in self._sinks:
            sink.close()


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data` to an open file or pipe, waiting where it must.

    Raises:
        OSError: it cannot be written.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
