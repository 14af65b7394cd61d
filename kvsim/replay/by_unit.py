"""Compute the reference count of each unit after each operation, and the successive holders of each unit.

Sorting all operations of a long recording by unit would be slow. So they are processed in parts that fit into the CPU
cache, and each part begins with the state in which the part before left the units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsim.recording.order import is_new, sort_key, stable_order

if TYPE_CHECKING:
    from kvsim.recording.tables import IntArray
    from kvsim.replay.unfolding import Part, UnitAllocations


def running_refs(part: Part, holders: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return, for each operation, the reference count of its unit after the operation.

    `holders` has the reference counts of all units, by address, before the first operation.
    """
    # Sort by unit, and sum up the changes of all units in one go. Then shift the sums of each unit, so that they begin
    # with its reference count before the first operation.
    order = stable_order(part.address, len(holders))
    unit, delta = part.address[order], part.change[order]
    first = np.flatnonzero(is_new(unit))
    total = np.cumsum(delta, dtype=np.int32)
    before = holders[unit[first]] - (total[first] - delta[first])
    total += np.repeat(before, np.diff(first, append=len(total)))
    refs = np.empty_like(total)
    refs[order] = total
    return refs


@dataclass(frozen=True, slots=True, eq=False)
class Successions:
    """Allocations sorted by unit and then by time, each with the state in which earlier holders left the unit."""

    row: IntArray
    unit: IntArray
    """Address of the unit."""
    until: IntArray
    """Row of `memory.parquet` in which the unit is freed; the number of rows if it never is."""
    keeps: npt.NDArray[np.bool_]
    """True if the unit stays in the prefix cache when it is freed in row `until`."""
    held_until: npt.NDArray[np.int64]
    """Row in which the last of all earlier holders frees the unit. If its prefix is evicted after that, the row of the
    eviction.

    It is 0 if the unit was never used before: row 0 frees nothing.
    """
    kept: npt.NDArray[np.bool_]
    """True if the unit is in the prefix cache after row `held_until`."""

    @property
    def is_held(self) -> npt.NDArray[np.bool_]:
        """True if an earlier holder still holds the unit when it is allocated."""
        return self.held_until > self.row

    @classmethod
    def of(
        cls, allocations: UnitAllocations, latest: npt.NDArray[np.int64], kept: IntArray | None, *, is_shared: bool
    ) -> Successions:
        """Sort `allocations` by unit, and update `latest` for the next part.

        `latest` has one number for each address: twice the row in which the last holder so far frees the unit, plus 1
        if the unit then stays in the prefix cache. `kept` has one entry for each row of `memory.parquet`, and one more:
        for a row that frees a table, the number of its leading units that stay in the prefix cache. It is None without
        a prefix cache. `is_shared` is True if a unit may have several holders at a time.
        """
        order = stable_order(allocations.address, len(latest))
        unit, row, until = allocations.address.take(order), allocations.row.take(order), allocations.until.take(order)
        after = until.astype(np.int64)  # as in `latest`: twice the row, plus one if a prefix is kept
        after *= 2
        keeps = np.zeros(len(after), np.bool_)
        if kept is not None:
            keeps = allocations.position.take(order) < kept.take(until)
            after += keeps
        first = np.flatnonzero(is_new(unit))
        before = np.empty_like(after)
        before[1:] = after[:-1]
        before[first] = latest.take(unit[first])
        if is_shared:  # an earlier holder may hold the unit longer: take the running maximum of each unit
            apart = sort_key(unit, 0)
            before = np.maximum.accumulate(apart + before) - apart
            after = np.maximum(before, after)
        latest[unit] = after  # the last write of a unit wins
        return cls(row, unit, until, keeps, before >> 1, (before & 1).astype(np.bool_))
