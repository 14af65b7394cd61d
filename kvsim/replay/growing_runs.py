"""Replay runs that grow in every step, as in static batches with a dynamic cache.

A recording has a single memory row for each such run, so its length at a frame must be computed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvsim.recording.holdings import Holdings
from kvsim.recording.order import units_of_runs
from kvsim.recording.tables import IntArray
from kvsim.replay.unit_states import UnitStates


class GrowingRuns:
    """Runs of units that grow in every step, and the length of each at the frame that is shown."""

    def __init__(self, tables: Holdings, frame_seq: npt.NDArray[np.int64]) -> None:
        """Find the growing runs in `tables`; `frame_seq` has the last sequence number that each frame shows."""
        self._frame_seq = frame_seq
        self._row = np.flatnonzero(tables.repeat > 1)
        runs = tables.at(self._row)
        self._request, self._position = runs.request, runs.position
        self._address, self._repeat = runs.address, runs.repeat
        self._step_units = runs.length // runs.repeat
        self._birth_frame = np.searchsorted(frame_seq, runs.birth_seq)
        self._birth_seq, self._death_seq = runs.birth_seq, runs.death_seq
        self._shown = np.zeros(len(self._row), np.int64)

    def __len__(self) -> int:
        return len(self._row)

    def show(self, states: UnitStates, frame: int, seq: int, *, afresh: bool) -> None:
        """Lengthen or shorten the runs in `states`, which show all operations up to `seq`, to their length at `frame`.

        In `states`, a run has the length of the last call, or that of its first step if it is new or if `states` were
        laid out `afresh`.
        """
        now = np.where(self._death_seq > seq, self._units_at(frame), 0)
        for run in np.flatnonzero(now).tolist():
            before = 0 if afresh else self._shown[run]
            begin, end = int(before or self._step_units[run]), int(now[run])
            address, position = int(self._address[run]), int(self._position[run])
            if begin < end:
                states.hold(address + begin, end - begin, int(self._request[run]), position + begin)
            elif begin > end:
                states.release(address + end, begin - end)
        self._shown = now

    def units_between(self, low: int, high: int) -> IntArray:
        """Return the addresses of the units by which runs grow after frame `low` up to `high`."""
        seq = self._frame_seq
        alive = np.flatnonzero((self._birth_seq <= seq[high]) & (self._death_seq > seq[low]))
        begin, end = self._units_at(low)[alive], self._units_at(high)[alive]
        run, offset = units_of_runs(end - begin)
        addresses: IntArray = (self._address[alive] + begin)[run] + offset
        return addresses

    def held_at(self, frame: int, rows: IntArray, length: IntArray) -> IntArray:
        """Return the length in units, at `frame`, of each run of `rows`, which are rows of the tables.

        `length` has the final length of each run: the result for runs that do not grow.
        """
        at = np.minimum(np.searchsorted(self._row, rows), len(self._row) - 1)
        return np.where(self._row[at] == rows, self._units_at(frame)[at], length)

    def _units_at(self, frame: int) -> npt.NDArray[np.int64]:
        """Return the number of units of each run at `frame`, as if no run were ever freed: 0 before its allocation."""
        steps = np.clip(frame + 1 - self._birth_frame, 0, self._repeat)
        units: npt.NDArray[np.int64] = steps * self._step_units
        return units
