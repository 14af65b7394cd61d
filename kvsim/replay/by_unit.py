"""Operations on single units, some thousands at a time, unit by unit: how many requests hold it, and after whom.

To put all operations of a long recording in the order of their units costs more than everything else; a part of them
stays in a processor's cache, and what is known of a unit before it is remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsim.recording.order import is_new, stable_order

if TYPE_CHECKING:
    from kvsim.recording.tables import IntArray
    from kvsim.replay.unfolding import Part, Takes

_APART = np.int64(1 << 33)
"""More than twice the rows that a recording has."""


def running_refs(part: Part, holders: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """References to each operation's unit after it; `holders` has those of all units before, by address."""
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
    """Who has each unit after whom: takes, unit by unit and in their order, and what each finds."""

    row: IntArray
    unit: IntArray
    """The address of the unit."""
    until: IntArray
    """The row in which the unit is given back, as in `Takes`."""
    keeps: npt.NDArray[np.bool_]
    """Whether the unit keeps a prefix from then on."""
    held_until: npt.NDArray[np.int64]
    """The row in which the last of those before give the unit back, or in which it lost its prefix since."""
    kept: npt.NDArray[np.bool_]
    """Whether the unit has kept a prefix from then on."""

    @property
    def is_held(self) -> npt.NDArray[np.bool_]:
        """Whether a request holds the unit already."""
        return self.held_until > self.row

    @classmethod
    def of(cls, takes: Takes, latest: npt.NDArray[np.int64], kept: IntArray | None, *, is_shared: bool) -> Successions:
        """`latest` has, for each address, twice the row up to which the unit is held, and one more where it keeps a
        prefix then, and follows. `kept` says how many leading units of a table keep theirs when a row gives it back.
        """
        order = stable_order(takes.address, len(latest))
        unit, row, until = takes.address.take(order), takes.row.take(order), takes.until.take(order)
        own = until.astype(np.int64)
        own *= 2
        keeps = np.zeros(len(own), np.bool_)
        if kept is not None:
            keeps = takes.position.take(order) < kept.take(until)
            own += keeps
        first = np.flatnonzero(is_new(unit))
        before = np.empty_like(own)
        before[1:] = own[:-1]
        before[first] = latest.take(unit[first])
        if is_shared:  # one who came earlier may stay longer
            apart = unit * _APART
            before = np.maximum.accumulate(apart + before) - apart
            own = np.maximum(before, own)
        latest[unit] = own  # of several, the last one stands
        return cls(row, unit, until, keeps, before >> 1, (before & 1).astype(np.bool_))
