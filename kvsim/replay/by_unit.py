"""Operations on single units, some thousands at a time: what each unit was before, and who has it when one leaves.

A long recording has tens of millions of operations. To put all of them in the order of their units costs more than
everything else; a part of them stays in a processor's cache, and what a unit was before it is remembered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.recording.order import is_new, stable_order
from kvsim.recording.tables import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class ByUnit:
    """Some operations, unit by unit: those of each in their order."""

    order: npt.NDArray[np.int32]
    unit: IntArray
    """The unit of each operation, in that order."""
    first: npt.NDArray[np.intp]
    """Index in that order at which each unit begins."""

    @classmethod
    def of(cls, address: IntArray, end_of_pool: int) -> ByUnit:
        """Operations on the units at `address`."""
        order = stable_order(address, end_of_pool)
        unit = address[order]
        return cls(order, unit, np.flatnonzero(is_new(unit)))

    def running_refs(self, changes: npt.NDArray[np.int8], holders: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """References to each operation's unit after it; `holders` has those of all units before, and follows."""
        delta = changes[self.order]
        total = np.cumsum(delta, dtype=np.int32)
        before = holders[self.unit[self.first]] - (total[self.first] - delta[self.first])
        total += np.repeat(before, np.diff(self.first, append=len(total)))
        holders[self.unit] = total  # of several, the last one stands
        refs = np.empty_like(total)
        refs[self.order] = total
        return refs

    def changes(self, after: npt.NDArray[np.bool_], before: npt.NDArray[np.bool_]) -> npt.NDArray[np.int8]:
        """How operations change what is true `after` each of its unit; `before` has that of all units, and follows."""
        state = after[self.order]
        previous = np.empty_like(state)
        previous[1:] = state[:-1]
        previous[self.first] = before[self.unit[self.first]]
        before[self.unit] = state
        changed = np.empty(len(state), np.int8)
        changed[self.order] = state.view(np.int8) - previous.view(np.int8)
        return changed


@dataclass(frozen=True, slots=True, eq=False)
class Heirs:
    """Which of several requests that hold a unit will stay longest, when another lets go of it."""

    run: npt.NDArray[np.int32]
    """The run of each operation."""
    last_op: npt.NDArray[np.int32]
    """The operation that gives each run back; those that are never given back come after all others."""
    longest: npt.NDArray[np.int32]
    """The last operation of whichever run of each unit so far ends last."""

    @classmethod
    def of(cls, num_ops: int, num_runs: int, end_of_pool: int) -> Heirs:
        """Nothing is known yet."""
        last_op = np.arange(num_ops, num_ops + num_runs, dtype=np.int32)
        return cls(np.empty(num_ops, np.int32), last_op, np.zeros(end_of_pool, np.int32))

    def note(self, ops: slice, runs: IntArray, changes: npt.NDArray[np.int8]) -> None:
        """The operations `ops` are about these runs. All of them are noted before the first is asked about."""
        self.run[ops] = runs
        back = np.flatnonzero(changes < 0)
        self.last_op[runs[back]] = ops.start + back

    def of_part(
        self, by_unit: ByUnit, ops: slice, changes: npt.NDArray[np.int8], refs: IntArray
    ) -> tuple[npt.NDArray[np.int32], IntArray]:
        """The operations, counted from the part's first, that leave their unit to others, and the run that stays."""
        order, unit = by_unit.order, by_unit.unit
        ends = np.where(changes > 0, self.last_op[self.run[ops]], 0)[order]
        ends[by_unit.first] = np.maximum(ends[by_unit.first], self.longest[unit[by_unit.first]])
        # Of all requests that have taken a unit so far, the one that leaves it last is still there if any is.
        num_ops = len(self.run)
        apart = np.cumsum(is_new(unit)) * np.int64(num_ops + len(self.last_op))
        ends = (np.maximum.accumulate(apart + ends) - apart).astype(np.int32)
        self.longest[unit] = ends  # of several, the last one stands
        leaves = ((changes < 0) & (refs > 0))[order]
        left, longest = order[leaves], ends[leaves]
        stays = np.where(longest < num_ops, self.run[np.minimum(longest, num_ops - 1)], longest - num_ops)
        return left, stays
