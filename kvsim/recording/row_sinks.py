"""Receivers of final rows: `RowsInMemory` keeps them, and a `RecordingWriter` writes them to disk."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Protocol

from kvsim.recording.model import Meta, Recording
from kvsim.recording.tables import ColumnTable

_PARTS_JOINED = 256
"""Number of parts of a table after which they are joined into one. Small arrays take several times their memory."""


class RowSink(Protocol):
    """Receiver of rows that do not change any more."""

    def append(self, table: ColumnTable) -> None:
        """Add the rows of `table` to those of the same type. Its arrays must not change afterwards."""


class RowsInMemory:
    """Row sink that keeps all rows in memory, for a `Recording`."""

    def __init__(self) -> None:
        self._parts: dict[type[ColumnTable], list[Any]] = defaultdict(list)
        self._latest: dict[type[ColumnTable], list[Any]] = defaultdict(list)

    def append(self, table: ColumnTable) -> None:
        """Add the rows of `table` to those of the same type. Its arrays must not change afterwards."""
        latest = self._latest[type(table)]
        latest.append(table)
        if len(latest) == _PARTS_JOINED:
            self._parts[type(table)].append(table.joined(latest))
            latest.clear()

    def finish(self, meta: Meta, name: str = "") -> Recording:
        """Return the recording. It has the optional tables that were appended."""
        kinds = self._latest.items()
        tables: dict[str, Any] = {kind.name: kind.joined(self._parts[kind] + latest) for kind, latest in kinds}
        return Recording(meta=meta, name=name, **tables)
