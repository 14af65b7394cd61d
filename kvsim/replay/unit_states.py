"""What stands in every unit of the pool after any number of operations.

Where units are handed out one by one, there are keyframes, and the few operations since. Where they are handed out in
long runs, as a reservation or a row of a batch, few of them are alive at a time, and those are laid out afresh.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from kvsim.recording.order import units_of_runs
from kvsim.recording.tables import IntArray
from kvsim.replay.by_unit import running_refs
from kvsim.replay.few_units import FewUnits
from kvsim.replay.keyframes import Columns, Keyframes, carry_out
from kvsim.replay.ledger import Ledger
from kvsim.replay.unfolding import NO_OWNER, Part

_MOST_RUNS = 64
"""Operations on long runs that are carried out one after the other; beyond, it is faster to begin afresh."""


class UnitStates(ABC):
    """One entry per unit, in address order: who holds it, where it stands in whose table, by how many, and whether it
    is cached. The arrays stay the same ones, and change with `go_to`.
    """

    def __init__(self, ledger: Ledger | FewUnits, num_units: int, first_unit: int) -> None:
        self._first_unit = first_unit
        self.owner = np.full(num_units, NO_OWNER, np.int32)
        self.position = np.zeros(num_units, np.int32)
        self.refs = np.zeros(num_units, np.int32)
        self.cached = np.zeros(num_units, np.bool_)
        self.cached[ledger.initial_cached - first_unit] = True
        self.group = np.zeros(num_units if ledger.has_groups else 0, np.int16)
        """The KV-cache group of the table that holds each unit; empty where a model has one."""
        self._op = 0

    @staticmethod
    def of(ledger: Ledger, num_units: int, first_unit: int) -> UnitStates:
        """The pool of `ledger`, before its first operation."""
        kind = SingleUnits if ledger.unit_by_unit else LongRuns
        return kind(ledger, num_units, first_unit)

    @abstractmethod
    def go_to(self, op: int, seq: int) -> bool:
        """Show the pool after the first `op` operations, which are those up to `seq`; return whether everything was
        laid out afresh.
        """

    @abstractmethod
    def units_of(self, begin: int, end: int) -> IntArray:
        """The units that the operations [begin, end) touch, from 0 in address order."""

    @abstractmethod
    def freed(self, begin: int, end: int) -> IntArray:
        """Units from 0 that the operations [begin, end) leave without a holder, as often as they do."""

    @abstractmethod
    def warm_up(self) -> None:
        """Do now what `go_to` would do when it first gets far; another thread may, while this one goes on."""

    def hold(self, address: int, length: int, request: int, position: int) -> None:
        """Let `request` hold a run."""
        units = slice(address - self._first_unit, address - self._first_unit + length)
        self.owner[units], self.refs[units], self.cached[units] = request, 1, False
        self.position[units] = np.arange(position, position + length)

    def let_go(self, address: int, length: int) -> None:
        """Take a run from its holder."""
        units = slice(address - self._first_unit, address - self._first_unit + length)
        self.owner[units], self.refs[units], self.cached[units] = NO_OWNER, 0, False


class SingleUnits(UnitStates):
    """Units that are shared and cached one by one."""

    def __init__(self, ledger: Ledger | FewUnits, num_units: int, first_unit: int) -> None:
        super().__init__(ledger, num_units, first_unit)
        self._ledger = ledger
        # Units above the highest one of any operation never change, so keyframes leave them out.
        num_touched = min(max(ledger.end_of_pool - first_unit, 1), num_units)
        self._columns: Columns = tuple(
            column[:num_touched] for column in (self.owner, self.position, self.refs, self.cached)
        )
        if ledger.has_groups:
            self._columns = (*self._columns, self.group[:num_touched])
        if ledger.is_shared:
            self._columns = (*self._columns, np.zeros(num_touched, np.int64))
        self._scratch = np.empty(num_touched, np.intp)
        self._keyframes = Keyframes(ledger, self._columns, first_unit)

    def go_to(self, op: int, seq: int) -> bool:  # noqa: ARG002
        """Show the pool after the first `op` operations; return whether it was taken from a keyframe."""
        # Who only goes forward needs no keyframes.
        begins_afresh = not self._keyframes.last_made(op) <= self._op <= op
        if begins_afresh:
            self._op = self._keyframes.copy(self._keyframes.before(op), self._columns)
        carry_out(self._ledger, self._op, op, self._columns, self._first_unit, self._scratch)
        self._op = op
        return begins_afresh

    def units_of(self, begin: int, end: int) -> IntArray:
        """The units that the operations [begin, end) touch, from 0 in address order."""
        units: IntArray = np.subtract(self._ledger.part(begin, end).address, self._first_unit, dtype=np.intp)
        return units

    def freed(self, begin: int, end: int) -> IntArray:
        """Units from 0 that the operations [begin, end) leave without a holder, as often as they do."""
        part = self._ledger.part(begin, end)
        gone = part.change < 0
        if self._ledger.is_shared:
            columns = tuple(np.empty_like(column) for column in self._columns)
            since = self._keyframes.copy(self._keyframes.before(begin), columns)
            carry_out(self._ledger, since, begin, columns, self._first_unit, self._scratch)
            holders = np.concatenate((np.zeros(self._first_unit, np.int32), columns[2]))
            gone &= running_refs(part, holders) == 0
        units: IntArray = part.address[gone].astype(np.int64) - self._first_unit
        return units

    def warm_up(self) -> None:
        """Make all keyframes."""
        self._keyframes.make(len(self._keyframes.op))


class LongRuns(UnitStates):
    """Runs of units that one request holds: a run is a slice, not thousands of indices."""

    def __init__(self, ledger: Ledger, num_units: int, first_unit: int) -> None:
        super().__init__(ledger, num_units, first_unit)
        self._ledger = ledger

    def go_to(self, op: int, seq: int) -> bool:
        """Show the pool after the first `op` operations, which are those up to `seq`; return whether everything was
        laid out afresh.
        """
        begins_afresh = not 0 <= op - self._op <= _MOST_RUNS
        if begins_afresh:
            self.owner[:], self.refs[:] = NO_OWNER, 0
            tables = self._ledger.tables
            for run in np.flatnonzero((tables.birth_seq <= seq) & (tables.death_seq > seq)).tolist():
                length = int(tables.length[run]) // int(tables.repeat[run])
                self.hold(int(tables.address[run]), length, int(tables.request[run]), int(tables.position[run]))
        elif op > self._op:
            part = self._ledger.part(self._op, op)
            for nth in range(op - self._op):
                address, length = int(part.address[nth]), int(part.length[nth])
                if part.change[nth] > 0:
                    self.hold(address, length, int(part.owner[nth]), int(part.position[nth]))
                else:
                    self.let_go(address, length)
        self._op = op
        return begins_afresh

    def units_of(self, begin: int, end: int) -> IntArray:
        """The units that the operations [begin, end) touch, from 0 in address order."""
        return self._units(self._ledger.part(begin, end), slice(None))

    def freed(self, begin: int, end: int) -> IntArray:
        """Units from 0 that the operations [begin, end) leave without a holder, as often as they do."""
        part = self._ledger.part(begin, end)
        return self._units(part, part.change < 0)

    def _units(self, part: Part, chosen: slice | npt.NDArray[np.bool_]) -> IntArray:
        run, offset = units_of_runs(part.length[chosen].astype(np.int64))
        units: IntArray = part.address[chosen][run].astype(np.int64) + offset - self._first_unit
        return units

    def warm_up(self) -> None:
        """There is nothing to prepare."""
