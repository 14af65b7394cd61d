"""Keyframes: contents of all units after regular numbers of operations, so that a seek applies few operations."""

from __future__ import annotations

from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.recording.order import SORT_KEY_LIMIT, sort_key
from kvsim.replay.few_units import FewUnits
from kvsim.replay.ledger import Ledger
from kvsim.replay.unfolding import NO_OWNER

_OPS_PER_KEYFRAME = 16_384
"""Number of operations between two keyframes, if memory allows. They are applied in about 100 microseconds."""
_KEYFRAME_BYTES = 256 << 20
"""Limit for the number of bytes of all keyframes together."""


class UnitColumns(NamedTuple):
    """Contents of the units of a pool, in order of address."""

    owner: npt.NDArray[np.int32]
    """One of the requests that hold the unit; `NO_OWNER` if none does."""
    position: npt.NDArray[np.int32]
    """Index of the unit in its owner's table."""
    refs: npt.NDArray[np.int32]
    """Number of requests that hold the unit."""
    cached: npt.NDArray[np.bool_]
    """True if no request holds the unit and it is in the prefix cache."""
    group: npt.NDArray[np.int16]
    """Index of the KV-cache group of the owner's table; empty if the model has one group."""
    freed_last: npt.NDArray[np.int64]
    """`sort_key` of two numbers for the allocation that is released last, of all allocations of the unit so far: the
    row of its release, and the number of the allocating operation.

    Empty if requests share no units.
    """

    def all(self) -> tuple[npt.NDArray[Any], ...]:
        """Return all columns as a plain tuple, for loops over arrays of different types."""
        return tuple(self)


class Keyframes:
    """Contents of the pool after regular numbers of operations.

    Building all keyframes takes a second for ten million operations. So a keyframe is built when a reader first needs
    it, or earlier by another thread.
    """

    def __init__(self, ledger: Ledger | FewUnits, empty: UnitColumns, first_unit: int) -> None:
        """Keep `empty`, the contents of the pool before the first operation, as the first keyframe."""
        self._ledger, self._first_unit = ledger, first_unit
        num_ops, frame_bytes = ledger.num_ops, sum(column.nbytes for column in empty)
        count = max(1, min(num_ops // _OPS_PER_KEYFRAME, _KEYFRAME_BYTES // frame_bytes))
        self.ops_included: npt.NDArray[np.int64] = np.arange(count) * num_ops // count
        """Number of operations, from the first on, that each keyframe includes; ascending."""
        self._kept = tuple(np.empty((count, len(column)), column.dtype) for column in empty)
        self._newest = UnitColumns._make(column.copy() for column in empty)
        self._scratch = np.empty(len(empty.owner), np.intp)
        self._num_built = 0
        self._building = Lock()

    def last_built_ops(self, op: int) -> int:
        """Return the largest number of operations up to `op` for which a keyframe is built."""
        nth = int(np.searchsorted(self.ops_included[: max(self._num_built, 1)], op, side="right")) - 1
        return int(self.ops_included[nth])

    def before(self, op: int) -> int:
        """Return the index of the last keyframe with at most `op` operations, and build it if necessary."""
        nth = int(np.searchsorted(self.ops_included, op, side="right")) - 1
        self.build(nth + 1)
        return nth

    def build(self, count: int) -> None:
        """Build the first `count` keyframes. Thread-safe."""
        while self._num_built < count:
            with self._building:
                if self._num_built < count:
                    self._build_next()

    def copy(self, nth: int, columns: UnitColumns) -> int:
        """Copy keyframe `nth` to `columns`, in place, and return the number of operations that it includes."""
        for column, kept in zip(columns.all(), self._kept, strict=True):
            column[:] = kept[nth]
        return int(self.ops_included[nth])

    def _build_next(self) -> None:
        nth = self._num_built
        begin, end = self.ops_included[max(nth - 1, 0)], self.ops_included[nth]
        apply_operations(self._ledger, int(begin), int(end), self._newest, self._first_unit, self._scratch)
        for column, kept in zip(self._newest.all(), self._kept, strict=True):
            kept[nth] = column
        self._num_built += 1  # last, because other threads read keyframes up to this number


def apply_operations(
    ledger: Ledger | FewUnits, begin: int, end: int, columns: UnitColumns, first_unit: int, newest: npt.NDArray[np.intp]
) -> None:
    """Apply the operations [begin, end) to `columns`, in place.

    They are applied many at a time: the owner of a unit is that of the last operation on it, or a remaining holder.
    `newest` is scratch memory with one entry for each unit.
    """
    owner, position, refs, cached, group, freed_last = columns
    # Array methods have less overhead than NumPy functions, which matters when stepping through a recording.
    for first, part in ledger.parts(begin, end):
        units = np.subtract(part.address, first_unit, dtype=np.intp)
        np.add.at(refs, units, part.change.astype(refs.dtype))
        # After `newest[units] = nth`, each unit has the number of the last operation on it.
        nth = np.arange(len(units))
        newest[units] = nth
        last = (newest[units] == nth).nonzero()[0]
        unit, is_held = units[last], refs[units[last]] > 0
        owner[unit], position[unit], cached[unit] = part.owner[last], part.position[last], False
        if part.group is not None and len(group):
            group[unit] = part.group[last]
        is_release = part.change[last] < 0
        freed = (is_release & ~is_held).nonzero()[0]
        if len(freed):
            unit_freed, last_freed = unit[freed], last[freed]
            owner[unit_freed] = NO_OWNER
            cached[unit_freed] = ledger.keeps(part.row[last_freed], part.position[last_freed])
        if ledger.is_shared:
            allocations = (part.change > 0).nonzero()[0]
            np.maximum.at(freed_last, units[allocations], sort_key(part.until[allocations], first + allocations))
            _show_remaining_holders(ledger, unit[is_release & is_held], columns)


def _show_remaining_holders(ledger: Ledger | FewUnits, units: npt.NDArray[np.intp], columns: UnitColumns) -> None:
    """Show as the owner of each of `units` a request that still holds it: the one that will free it last."""
    if not len(units):
        return
    # The key's second number is the operation that gave the unit to this request.
    holders = ledger.at((columns.freed_last[units] % SORT_KEY_LIMIT).astype(np.int32))
    columns.owner[units], columns.position[units] = holders.owner, holders.position
    if holders.group is not None and len(columns.group):
        columns.group[units] = holders.group
