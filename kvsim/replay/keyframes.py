"""Keyframes of a pool whose units are handed out one by one: what stands in each after every so many operations."""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.replay.few_units import FewUnits
from kvsim.replay.ledger import Ledger
from kvsim.replay.unfolding import NO_OWNER

_OPS_PER_KEYFRAME = 16_384
"""Operations between two keyframes, where memory allows: about 100 microseconds of copying."""
_KEYFRAME_BYTES = 256 << 20
"""The most bytes that all keyframes together may take."""

_OPS = np.int64(1 << 31)
"""More operations than a recording has."""

Columns = tuple[npt.NDArray[Any], ...]
"""Columns over the units, in address order: owner, position, number of holders, and whether it is cached; where there
are several, the KV-cache group of the table that holds it; and, where units are shared, of the operations that took it
the one whose request leaves it last: the row in which it does, times 2**31, and the operation.
"""


class Keyframes:
    """The pool after every so many operations.

    Making all of them takes a second for ten million operations, so they are made when a reader first goes that
    far, or before that by another thread.
    """

    def __init__(self, ledger: Ledger | FewUnits, empty: Columns, first_unit: int) -> None:
        """`empty` is the pool before the first operation, which is the first keyframe."""
        self._ledger, self._first_unit = ledger, first_unit
        num_ops, frame_bytes = ledger.num_ops, sum(column.nbytes for column in empty)
        count = max(1, min(num_ops // _OPS_PER_KEYFRAME, _KEYFRAME_BYTES // frame_bytes))
        self.op: npt.NDArray[np.int64] = np.arange(count) * num_ops // count
        """Number of operations before each keyframe."""
        self._kept = tuple(np.empty((count, len(column)), column.dtype) for column in empty)
        self._newest: Columns = tuple(column.copy() for column in empty)
        self._scratch = np.empty(len(empty[0]), np.intp)
        self._num_made = 0
        self._making = Lock()

    def last_made(self, op: int) -> int:
        """Number of operations before the last keyframe that there is already and that is not behind operation `op`."""
        nth = int(np.searchsorted(self.op[: max(self._num_made, 1)], op, side="right")) - 1
        return int(self.op[nth])

    def before(self, op: int) -> int:
        """The last keyframe before operation `op`."""
        nth = int(np.searchsorted(self.op, op, side="right")) - 1
        self.make(nth + 1)
        return nth

    def make(self, count: int) -> None:
        """See to it that there are the first `count`. Several threads may."""
        while self._num_made < count:
            with self._making:
                if self._num_made < count:
                    self._make_next()

    def copy(self, nth: int, columns: Columns) -> int:
        """Write a keyframe to `columns`, and return how many operations it has behind it."""
        for column, kept in zip(columns, self._kept, strict=True):
            column[:] = kept[nth]
        return int(self.op[nth])

    def _make_next(self) -> None:
        nth = self._num_made
        begin, end = self.op[max(nth - 1, 0)], self.op[nth]
        carry_out(self._ledger, int(begin), int(end), self._newest, self._first_unit, self._scratch)
        for column, kept in zip(self._newest, self._kept, strict=True):
            kept[nth] = column
        self._num_made += 1  # only now may others read it


def carry_out(
    ledger: Ledger | FewUnits, begin: int, end: int, columns: Columns, first_unit: int, newest: npt.NDArray[np.intp]
) -> None:
    """Carry out the operations [begin, end) on `columns`, all at once: of several on one unit, the last stands.

    `newest` has room for a number of each unit, whatever stands there.
    """
    owner, position, refs, cached, *more = columns
    # Methods of arrays: stepping through a recording, most of the time goes into calls.
    for first, part in ledger.parts(begin, end):
        units = np.subtract(part.address, first_unit, dtype=np.intp)
        np.add.at(refs, units, part.change.astype(refs.dtype))
        nth = np.arange(len(units))
        newest[units] = nth
        last = (newest[units] == nth).nonzero()[0]
        unit, is_held = units[last], refs[units[last]] > 0
        owner[unit], position[unit], cached[unit] = part.owner[last], part.position[last], False
        if part.group is not None:
            more[0][unit] = part.group[last]
        gives_back = part.change[last] < 0
        freed = (gives_back & ~is_held).nonzero()[0]
        if len(freed):
            unit_freed, last_freed = unit[freed], last[freed]
            owner[unit_freed] = NO_OWNER
            cached[unit_freed] = ledger.keeps(part.row[last_freed], part.position[last_freed])
        if ledger.is_shared:
            longest = more[-1]
            takes = (part.change > 0).nonzero()[0]
            np.maximum.at(longest, units[takes], part.until[takes] * _OPS + (first + takes))
            left = unit[gives_back & is_held]
            if len(left):
                # Of all requests that have taken a unit so far, the one that leaves it last is still there if any is.
                heirs = ledger.at((longest[left] % _OPS).astype(np.int32))
                owner[left], position[left] = heirs.owner, heirs.position
                if heirs.group is not None:
                    more[0][left] = heirs.group
