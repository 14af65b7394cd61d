"""What stands in every unit of the pool after any number of operations, and how to get there fast.

Where units are handed out one by one, there are keyframes, and the few operations since. Where they are handed out in
long runs, as a reservation or a row of a batch, few of them are alive at a time, and those are laid out afresh.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from kvsim.recording.ledger import NOBODY, Ledger
from kvsim.recording.order import units_of_runs
from kvsim.recording.tables import IntArray

_OPS_PER_KEYFRAME = 16_384
"""Operations between two keyframes, where memory allows: about 100 microseconds of copying. Keyframes are most of what
opening a long recording costs, so there are no more than that takes.
"""
_KEYFRAME_BYTES = 256 << 20
"""What all keyframes together may cost."""
_MOST_RUNS = 64
"""Operations on long runs that are carried out one after the other; beyond, it is faster to begin afresh."""


class UnitStates(ABC):
    """One entry per unit, in address order: who holds it, where it stands in whose table, by how many, and whether it
    is cached. The arrays stay the same ones, and change with `go_to`.
    """

    def __init__(self, ledger: Ledger, num_units: int, first_unit: int) -> None:
        self._ledger, self._first_unit = ledger, first_unit
        self.owner = np.full(num_units, NOBODY, np.int32)
        self.position = np.zeros(num_units, np.int32)
        self.refs = np.zeros(num_units, np.int32)
        self.cached = np.zeros(num_units, np.bool_)
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

    def hold(self, address: int, length: int, request: int, position: int) -> None:
        """Let `request` hold a run."""
        units = slice(address - self._first_unit, address - self._first_unit + length)
        self.owner[units], self.refs[units], self.cached[units] = request, 1, False
        self.position[units] = np.arange(position, position + length)

    def let_go(self, address: int, length: int) -> None:
        """Let nobody hold a run."""
        units = slice(address - self._first_unit, address - self._first_unit + length)
        self.owner[units], self.refs[units], self.cached[units] = NOBODY, 0, False


class SingleUnits(UnitStates):
    """Units that are shared and cached one by one."""

    def __init__(self, ledger: Ledger, num_units: int, first_unit: int) -> None:
        super().__init__(ledger, num_units, first_unit)
        self._columns = (self.owner, self.position, self.refs, self.cached)
        num_ops, frame_bytes = len(ledger.seq), sum(column.nbytes for column in self._columns)
        count = max(1, min(num_ops // _OPS_PER_KEYFRAME, _KEYFRAME_BYTES // frame_bytes))
        self._keyframe_op: npt.NDArray[np.int64] = np.arange(count) * num_ops // count
        self._keyframes = tuple(np.empty((count, num_units), column.dtype) for column in self._columns)
        for nth, op in enumerate(self._keyframe_op.tolist()):
            self._apply(op)
            for column, kept in zip(self._columns, self._keyframes, strict=True):
                kept[nth] = column

    def go_to(self, op: int, seq: int) -> bool:  # noqa: ARG002
        """Show the pool after the first `op` operations; return whether it was taken from a keyframe."""
        nth = int(np.searchsorted(self._keyframe_op, op, side="right")) - 1
        begins_afresh = not self._keyframe_op[nth] <= self._op <= op
        if begins_afresh:
            for column, kept in zip(self._columns, self._keyframes, strict=True):
                column[:] = kept[nth]
            self._op = int(self._keyframe_op[nth])
        self._apply(op)
        return begins_afresh

    def units_of(self, begin: int, end: int) -> IntArray:
        """The units that the operations [begin, end) touch, from 0 in address order."""
        units: IntArray = np.subtract(self._ledger.address[begin:end], self._first_unit, dtype=np.intp)
        return units

    def _apply(self, target: int) -> None:
        """Apply the operations up to `target`, all at once: where a unit is named twice, the later one stands."""
        units, ops, ledger = self.units_of(self._op, target), slice(self._op, target), self._ledger
        self.owner[units] = ledger.owner[ops]
        self.position[units] = ledger.position[ops]
        self.refs[units] = ledger.refs[ops]
        self.cached[units] = ledger.cached[ops]
        self._op = target


class LongRuns(UnitStates):
    """Runs of units that one request holds: a run is a slice, not thousands of indices."""

    def go_to(self, op: int, seq: int) -> bool:
        """Show the pool after the first `op` operations, which are those up to `seq`; return whether everything was
        laid out afresh.
        """
        begins_afresh = not 0 <= op - self._op <= _MOST_RUNS
        if begins_afresh:
            self.owner[:], self.refs[:] = NOBODY, 0
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
