"""Collect the table of transfers between servers during a run, from two reports for each: its begin and its end."""

from __future__ import annotations

import numpy as np

from kvsim.recording.growing import GrowingTable
from kvsim.recording.tables import TransferKind, Transfers

_NONE = -1


class TransfersUnderWay:
    """Growing table of transfers, in the order in which they begin; a request has at most one at a time."""

    def __init__(self) -> None:
        self._rows = GrowingTable(Transfers)
        self._under_way: dict[int, int] = {}
        """Row of the transfer of each request."""
        self._exchanges = False

    def configure(self, exchanges: bool) -> None:
        """Set whether the server exchanges KV: its recording has the table, even without rows."""
        self._exchanges = exchanges

    def begin(
        self, kind: TransferKind, request: int, position: int, blocks: int, tokens: int, *, seq: int, time_s: float
    ) -> None:
        """Record that `blocks` blocks of a table are loaded or kept, with `tokens` tokens in them.

        The first of these blocks is entry `position` of the table.
        """
        if request in self._under_way:
            raise ValueError(f"a transfer of request {request} is under way")
        self._under_way[request] = len(self._rows)
        values = (kind, request, _NONE, seq, _NONE, time_s, np.nan, position, blocks, tokens, _NONE)
        for column, value in zip(self._rows.columns.values(), values, strict=True):
            column.append(value if column.typecode == "d" else int(value))

    def end(self, request: int, *, seq: int, time_s: float, failed: int = _NONE) -> None:
        """Record that the end of a request's transfer was reported at `seq`.

        `failed` is the first entry of the request's table that did not load; -1 if all entries loaded.
        """
        row = self._under_way.pop(request)
        for name, value in (("ended_seq", seq), ("end_s", time_s), ("failed", failed)):
            self._rows.columns[name][row] = value

    def extend(self, table: Transfers) -> None:
        """Add final rows."""
        self._exchanges = True
        self._rows.extend(table)

    def so_far(self) -> Transfers | None:
        """Return all transfers; None for an engine that exchanges no KV."""
        if not self._exchanges and not len(self._rows):
            return None
        return Transfers(**self._rows.rows())
