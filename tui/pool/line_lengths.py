"""Number of units per line of a pool that consists of equal lines, so that a picture can show each line as a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kvsim.replay.replay import Replay


class LineLengths:
    """Lengths of the lines of a pool, over time.

    A line is a row of a static batch or of a training batch, or a reservation if all reservations are equally long.
    Other pools have no lines.
    """

    def __init__(self, replay: Replay) -> None:
        tables = replay.ledger.tables
        first = np.flatnonzero(tables.position == 0) if replay.unit_tokens == 1 else np.empty(0, np.int64)
        begins = tables.address[first] - replay.first_unit
        self._since_seq, self._lengths = np.zeros(1, np.int64), [0]
        policy = replay.recording.meta.policy
        if "row_tokens" in policy:
            self._lengths = [int(policy["row_tokens"])]
        elif replay.recording.meta.policy_name == "static" and len(first):
            ends = np.zeros(len(replay.full), np.int64)
            np.maximum.at(ends, tables.request, tables.position + tables.length)
            order = np.argsort(tables.birth_seq[first], kind="stable")
            self._since_seq, batches = np.unique(tables.birth_seq[first][order], return_index=True)
            widths = np.gcd.reduceat(begins[order], batches)
            # A row begins at a multiple of the width. A batch of one row begins at 0, so its width is its longest end.
            alone = np.maximum.reduceat(ends[tables.request[first]][order], batches)
            self._lengths = np.where(widths > 0, widths, alone).tolist()
        elif len(first):
            lengths = np.unique(tables.length[first])
            if len(lengths) == 1 and not (begins % lengths[0]).any():
                self._lengths = [int(lengths[0])]

    def length_at(self, seq: int) -> int | None:
        """Return the number of units in a line after event number `seq`; None if the pool has no lines.

        The length of a batch is valid until the next batch begins.
        """
        batch = max(int(np.searchsorted(self._since_seq, seq, side="right")) - 1, 0)
        length = self._lengths[batch]
        return length if length > 1 else None
