"""Replay extents that grow in every step, as in static batches with a dynamic cache.

A recording has one memory row for such an extent, so its length at a frame must be computed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvsim.recording.holdings import Holdings
from kvsim.recording.order import expanded
from kvsim.recording.tables import IntArray
from kvsim.replay.unit_states import UnitStates


class GrowingExtents:
    """Extents that grow in every step, and the number of units of each at the frame of the last call of `show`."""

    def __init__(self, tables: Holdings, frame_seq: npt.NDArray[np.int64]) -> None:
        """Find the growing extents in `tables`. `frame_seq` has the number (`seq`) of each frame's last event."""
        self._frame_seq = frame_seq
        self._row = np.flatnonzero(tables.repeat > 1)
        extents = tables.at(self._row)
        self._request, self._position = extents.request, extents.position
        self._address, self._repeat = extents.address, extents.repeat
        self._step_units = extents.length // extents.repeat
        self._birth_frame = np.searchsorted(frame_seq, extents.birth_seq)
        self._birth_seq, self._death_seq = extents.birth_seq, extents.death_seq
        self._shown = np.zeros(len(self._row), np.int64)

    def __len__(self) -> int:
        return len(self._row)

    def show(self, states: UnitStates, frame: int, seq: int, *, afresh: bool) -> None:
        """Give each growing extent in `states` the length that it has at `frame`.

        `states` must already include all operations up to `seq`. These operations give a new extent only the units of
        its first step. All other extents have the length that the previous call gave them. If `states` was built anew
        (`afresh`), every extent has the length of its first step.
        """
        now = np.where(self._death_seq > seq, self._units_at(frame), 0)
        before = self._step_units if afresh else np.where(self._shown > 0, self._shown, self._step_units)
        shrinks, grows = (now > 0) & (now < before), now > before
        states.release_each(self._address[shrinks] + now[shrinks], (before - now)[shrinks])
        begin = before[grows]
        states.hold_each(
            self._address[grows] + begin, now[grows] - begin, self._request[grows], self._position[grows] + begin
        )
        self._shown = now

    def units_between(self, low: int, high: int) -> IntArray:
        """Return the addresses of the units that extents gain in the frames after `low`, up to and including `high`."""
        seq = self._frame_seq
        alive = np.flatnonzero((self._birth_seq <= seq[high]) & (self._death_seq > seq[low]))
        begin, end = self._units_at(low)[alive], self._units_at(high)[alive]
        extent, offset = expanded(end - begin)
        addresses: IntArray = (self._address[alive] + begin)[extent] + offset
        return addresses

    def lengths_at(self, frame: int, extents: IntArray, length: IntArray) -> IntArray:
        """Return the number of units of each of `extents` at `frame`. `extents` are indices in the tables.

        `length` has their final numbers of units, which are returned for extents that do not grow.
        """
        at = np.minimum(np.searchsorted(self._row, extents), len(self._row) - 1)
        return np.where(self._row[at] == extents, self._units_at(frame)[at], length)

    def _units_at(self, frame: int) -> npt.NDArray[np.int64]:
        """Return how many units each growing extent has at `frame`, even if freed earlier; 0 before its allocation."""
        steps = np.clip(frame + 1 - self._birth_frame, 0, self._repeat)
        units: npt.NDArray[np.int64] = steps * self._step_units
        return units
