"""Contents of every unit of the pool after any number of operations.

If units are shared or cached one by one, a keyframe is copied and later operations are applied. Otherwise, a pool has
only few long extents at a time, such as reservations or rows of a batch. Its contents are built from the extents held.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from kvsim.recording.order import expanded
from kvsim.recording.tables import IntArray
from kvsim.replay.by_unit import running_refs
from kvsim.replay.few_units import FewUnits
from kvsim.replay.keyframes import Keyframes, UnitColumns, apply_operations
from kvsim.replay.ledger import Ledger
from kvsim.replay.unfolding import NO_OWNER, Part

_MOST_OPERATIONS = 64
"""Largest number of operations on long extents that are applied one by one. For more, it is faster to build anew."""


class UnitStates(ABC):
    """Contents of each unit of the pool: one of its holders (owner), its index in the owner's table, the number of
    holders, and whether it is cached.

    Arrays are in order of address. `go_to` changes them in place. Units are numbered from 0, whatever their addresses.
    """

    def __init__(self, ledger: Ledger | FewUnits, num_units: int, first_unit: int) -> None:
        self._first_unit = first_unit
        self.owner = np.full(num_units, NO_OWNER, np.int32)
        self.position = np.zeros(num_units, np.int32)
        self.refs = np.zeros(num_units, np.int32)
        self.cached = np.zeros(num_units, np.bool_)
        self.cached[ledger.initial_cached - first_unit] = True
        self.group = np.zeros(num_units if ledger.has_groups else 0, np.int16)
        """Index of the KV-cache group of the table that holds each unit; empty if the model has one group."""
        self._op = 0

    @staticmethod
    def of(ledger: Ledger, num_units: int, first_unit: int) -> UnitStates:
        """Return the contents of the pool of `ledger` before its first operation."""
        kind = SingleUnits if ledger.unit_by_unit else LongExtents
        return kind(ledger, num_units, first_unit)

    @abstractmethod
    def go_to(self, op: int, seq: int) -> bool:
        """Show the pool after the first `op` operations. `seq` is the number of the last event among them.

        Return True if the contents were built anew, False if the previous contents were changed.
        """

    @abstractmethod
    def units_of(self, begin: int, end: int) -> IntArray:
        """Return the units that the operations [begin, end) change, in any order; a unit may be repeated."""

    @abstractmethod
    def freed(self, begin: int, end: int) -> IntArray:
        """Return the units that become free by the operations [begin, end). A unit freed several times is repeated."""

    def warm_up(self) -> None:  # noqa: B027  long extents need nothing
        """Build now what `go_to` would otherwise build when it is first needed. Thread-safe."""

    def hold(self, address: int, length: int, request: int, position: int) -> None:
        """Let `request` hold the `length` units from `address` on, as the entries of its table from `position` on."""
        units = slice(address - self._first_unit, address - self._first_unit + length)
        self.owner[units], self.refs[units], self.cached[units] = request, 1, False
        self.position[units] = np.arange(position, position + length)

    def hold_each(self, address: IntArray, length: IntArray, request: IntArray, position: IntArray) -> None:
        """Give each extent to its request, as `hold` does for one.

        All units are set by one array operation: for many short extents, a slice for each would be slower.
        """
        extent, offset = expanded(length)
        units = (address - self._first_unit)[extent] + offset
        self.owner[units], self.refs[units], self.cached[units] = request[extent], 1, False
        self.position[units] = position[extent] + offset

    def release_each(self, address: IntArray, length: IntArray) -> None:
        """Free the units of each extent, as `release` does for one."""
        extent, offset = expanded(length)
        units = (address - self._first_unit)[extent] + offset
        self.owner[units], self.refs[units], self.cached[units] = NO_OWNER, 0, False

    def release(self, address: int, length: int) -> None:
        """Free the `length` units from `address` on."""
        units = slice(address - self._first_unit, address - self._first_unit + length)
        self.owner[units], self.refs[units], self.cached[units] = NO_OWNER, 0, False


class SingleUnits(UnitStates):
    """Contents of a pool whose units are shared and cached one by one."""

    def __init__(self, ledger: Ledger | FewUnits, num_units: int, first_unit: int) -> None:
        super().__init__(ledger, num_units, first_unit)
        self._ledger = ledger
        # Units above the highest one of any operation never change, so keyframes leave them out.
        num_touched = min(max(ledger.end_of_pool - first_unit, 1), num_units)
        self._columns = UnitColumns(
            owner=self.owner[:num_touched],
            position=self.position[:num_touched],
            refs=self.refs[:num_touched],
            cached=self.cached[:num_touched],
            group=self.group[:num_touched],
            freed_last=np.zeros(num_touched if ledger.is_shared else 0, np.int64),
        )
        self._scratch = np.empty(num_touched, np.intp)
        self._keyframes = Keyframes(ledger, self._columns, first_unit)

    def go_to(self, op: int, seq: int) -> bool:  # noqa: ARG002
        """Show the pool after the first `op` operations. Return True if it was copied from a keyframe."""
        # Steps forward need no keyframes.
        begins_afresh = not self._keyframes.last_built_ops(op) <= self._op <= op
        if begins_afresh:
            self._op = self._keyframes.copy(self._keyframes.before(op), self._columns)
        apply_operations(self._ledger, self._op, op, self._columns, self._first_unit, self._scratch)
        self._op = op
        return begins_afresh

    def units_of(self, begin: int, end: int) -> IntArray:
        """Return the units that the operations [begin, end) change."""
        units: IntArray = np.subtract(self._ledger.part(begin, end).address, self._first_unit, dtype=np.intp)
        return units

    def freed(self, begin: int, end: int) -> IntArray:
        """Return the units that become free by the operations [begin, end)."""
        part = self._ledger.part(begin, end)
        gone = part.change < 0
        if self._ledger.is_shared:
            columns = UnitColumns._make(np.empty_like(column) for column in self._columns)
            since = self._keyframes.copy(self._keyframes.before(begin), columns)
            apply_operations(self._ledger, since, begin, columns, self._first_unit, self._scratch)
            holders = np.concatenate((np.zeros(self._first_unit, np.int32), columns.refs))
            gone &= running_refs(part, holders) == 0
        units: IntArray = part.address[gone].astype(np.int64) - self._first_unit
        return units

    def warm_up(self) -> None:
        """Build all keyframes. Thread-safe."""
        self._keyframes.build(len(self._keyframes.ops_included))


class LongExtents(UnitStates):
    """Contents of a pool of long extents, each held by one request. All units of an extent are changed as one slice."""

    def __init__(self, ledger: Ledger, num_units: int, first_unit: int) -> None:
        super().__init__(ledger, num_units, first_unit)
        self._ledger = ledger

    def go_to(self, op: int, seq: int) -> bool:
        """Show the pool after the first `op` operations. Return True if it was built anew."""
        begins_afresh = not 0 <= op - self._op <= _MOST_OPERATIONS
        if begins_afresh:
            self.owner[:], self.refs[:] = NO_OWNER, 0
            tables = self._ledger.tables
            for extent in np.flatnonzero((tables.birth_seq <= seq) & (tables.death_seq > seq)).tolist():
                length = int(tables.length[extent]) // int(tables.repeat[extent])
                self.hold(
                    int(tables.address[extent]), length, int(tables.request[extent]), int(tables.position[extent])
                )
        elif op > self._op:
            part = self._ledger.part(self._op, op)
            for nth in range(op - self._op):
                address, length = int(part.address[nth]), int(part.length[nth])
                if part.change[nth] > 0:
                    self.hold(address, length, int(part.owner[nth]), int(part.position[nth]))
                else:
                    self.release(address, length)
        self._op = op
        return begins_afresh

    def units_of(self, begin: int, end: int) -> IntArray:
        """Return the units that the operations [begin, end) change."""
        return self._units(self._ledger.part(begin, end), slice(None))

    def freed(self, begin: int, end: int) -> IntArray:
        """Return the units that become free by the operations [begin, end)."""
        part = self._ledger.part(begin, end)
        return self._units(part, part.change < 0)

    def _units(self, part: Part, chosen: slice | npt.NDArray[np.bool_]) -> IntArray:
        extent, offset = expanded(part.length[chosen].astype(np.int64))
        units: IntArray = part.address[chosen][extent].astype(np.int64) + offset - self._first_unit
        return units
