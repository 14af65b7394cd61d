"""Compute the reference counts of each unit, and its owners one after the other.

To sort all operations of a long recording by unit would be slow. So they are processed in parts that fit into the CPU
cache, and the state of each unit after the earlier parts is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsim.recording.order import is_new, sort_key, stable_order

if TYPE_CHECKING:
    from kvsim.recording.tables import IntArray
    from kvsim.replay.unfolding import Part, Takes


def running_refs(part: Part, holders: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return, for each operation, the reference count of its unit after the operation.

    `holders` has the reference counts of all units, by address, before the first operation.
    """
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
    """Allocations sorted by unit and then by time. Each has the state in which the unit's previous owner left it."""

    row: IntArray
    unit: IntArray
    """Address of the unit."""
    until: IntArray
    """Row in which the unit is freed, as in `Takes`."""
    keeps: npt.NDArray[np.bool_]
    """True if the unit keeps a prefix after the row in `until`."""
    held_until: npt.NDArray[np.int64]
    """Row in which all earlier owners have freed the unit, or a later row that evicted its prefix."""
    kept: npt.NDArray[np.bool_]
    """True if the unit kept a prefix after the row in `held_until`."""

    @property
    def is_held(self) -> npt.NDArray[np.bool_]:
        """True if another request still holds the unit when it is allocated."""
        return self.held_until > self.row

    @classmethod
    def of(cls, takes: Takes, latest: npt.NDArray[np.int64], kept: IntArray | None, *, is_shared: bool) -> Successions:
        """Sort `takes` by unit, and update `latest`.

        For each address, `latest` is twice the row until which the unit is held, plus one if it keeps a prefix then.
        `kept` has, for each row that frees a table, the number of leading units that keep their prefixes.
        """
        order = stable_order(takes.address, len(latest))
        unit, row, until = takes.address.take(order), takes.row.take(order), takes.until.take(order)
        after = until.astype(np.int64)  # as in `latest`: twice the row, plus one if a prefix is kept
        after *= 2
        keeps = np.zeros(len(after), np.bool_)
        if kept is not None:
            keeps = takes.position.take(order) < kept.take(until)
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
