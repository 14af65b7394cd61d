"""What stands in every unit of the pool after any number of operations.

Where units are handed out one by one, there are keyframes, and the few operations since. Where they are handed out in
long runs, as a reservation or a row of a batch, few of them are alive at a time, and those are laid out afresh.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from kvsim.recording.order import units_of_runs
from kvsim.recording.tables import IntArray
from kvsim.replay.keyframes import Columns, Keyframes, carry_out
from kvsim.replay.ledger import NO_OWNER, Ledger

_MOST_RUNS = 64
"""Operations on long runs that are carried out one after the other; beyond, it is faster to begin afresh."""


class UnitStates(ABC):
    """One entry per unit, in address order: who holds it, where it stands in whose table, by how many, and whether it
    is cached. The arrays stay the same ones, and change with `go_to`.
    """

    def __init__(self, ledger: Ledger, num_units: int, first_unit: int) -> None:
        self._ledger, self._first_unit = ledger, first_unit
        self.owner = np.full(num_units, NO_OWNER, np.int32)
        self.position = np.zeros(num_units, np.int32)
        self.refs = np.zeros(num_units, np.int32)
        self.cached = np.zeros(num_units, np.bool_)
        self.group = np.zeros(num_units if ledger.group is not None else 0, np.int16)
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

    def __init__(self, ledger: Ledger, num_units: int, first_unit: int) -> None:
        super().__init__(ledger, num_units, first_unit)
        self._columns: Columns = (self.owner, self.position, self.refs, self.cached)
        if ledger.group is not None:
            self._columns = (*self._columns, self.group)
        self._keyframes = Keyframes(ledger, self._columns, first_unit)

    def go_to(self, op: int, seq: int) -> bool:  # noqa: ARG002
        """Show the pool after the first `op` operations; return whether it was taken from a keyframe."""
        nth = self._keyframes.before(op)
        begins_afresh = not self._keyframes.op[nth] <= self._op <= op
        if begins_afresh:
            self._op = self._keyframes.copy(nth, self._columns)
        carry_out(self._ledger, self._op, op, self._columns, self._first_unit)
        self._op = op
        return begins_afresh

    def units_of(self, begin: int, end: int) -> IntArray:
        """The units that the operations [begin, end) touch, from 0 in address order."""
        units: IntArray = np.subtract(self._ledger.address[begin:end], self._first_unit, dtype=np.intp)
        return units

    def warm_up(self) -> None:
        """Make all keyframes."""
        self._keyframes.make(len(self._keyframes.op))


class LongRuns(UnitStates):
    """Runs of units that one request holds: a run is a slice, not thousands of indices."""

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
        else:
            ledger = self._ledger
            for nth in range(self._op, op):
                address, length = int(ledger.address[nth]), int(ledger.length[nth])
                if ledger.refs[nth]:
                    self.hold(address, length, int(ledger.owner[nth]), int(ledger.position[nth]))
                else:
                    self.let_go(address, length)
        self._op = op
        return begins_afresh

    def units_of(self, begin: int, end: int) -> IntArray:
        """The units that the operations [begin, end) touch, from 0 in address order."""
        run, offset = units_of_runs(self._ledger.length[begin:end])
        return self._ledger.address[begin:end][run] + offset - self._first_unit

    def warm_up(self) -> None:
        """There is nothing to prepare."""
