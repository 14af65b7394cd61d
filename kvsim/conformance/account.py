"""What a stretch of moments brought, as columns, so that two engines are compared at once and not moment by moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsim.conformance.changes import UNTOLD, WHOLE_TABLE, Change
from kvsim.conformance.words import StepFacts
from kvsim.engine.ownership import MemoryKind
from kvsim.recording.order import units_of_runs

if TYPE_CHECKING:
    from kvsim.recording.tables import IntArray

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """One row for each thing that happened, in order; the first column is the moment at which it did."""

    steps: Rows
    """[n, 5]: running, waiting and preempted sequences, free blocks (-1 where that is not compared)."""
    batch: Rows
    """[n, 4]: the request, what it computes, and what it had computed before; in order of scheduling."""
    changes: Rows
    """[n, 6]: kind, request, position, block and KV-cache group, as in a `Change`."""
    evicted: Rows
    """[n, 2]: the block."""

    def first_difference(self, other: Account) -> int | None:
        """The first moment at which the two are not equal; None if all of it is."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in Account.__slots__)
        return min((moment for pair in pairs if (moment := _first_difference(*pair)) is not None), default=None)

    def facts_at(self, moment: int) -> StepFacts | None:
        """The step that was scheduled at `moment`; None where none was."""
        steps = _at(self.steps, moment)
        if not steps:
            return None
        (running, waiting, preempted, free), batch = steps[0], _at(self.batch, moment)
        return StepFacts(
            requests=[request for request, _, _ in batch],
            tokens=[tokens for _, tokens, _ in batch],
            computed_before=[before for _, _, before in batch],
            evicted=self.evicted_at(moment),
            running=running,
            waiting=waiting,
            free=free,
            preempted=preempted,
        )

    def changes_at(self, moment: int) -> list[Change]:
        """The changes of ownership at `moment`, but for evictions."""
        return [
            (kind, request, position, block, group)
            for kind, request, position, block, group in _at(self.changes, moment)
        ]

    def evicted_at(self, moment: int) -> list[int]:
        """The blocks that lost a prefix at `moment`, in order."""
        return [block for (block,) in _at(self.evicted, moment)]

    def before(self, moment: int) -> Account:
        """What was there before `moment`."""
        return Account(*(rows[: between(rows[:, 0], 0, moment)[1]] for rows in self._tables()))

    def _tables(self) -> tuple[Rows, ...]:
        return self.steps, self.batch, self.changes, self.evicted


def between(column: IntArray, begin: int, end: int) -> tuple[int, int]:
    """Which part of an ascending column lies in `begin:end`; it is not looked at as a whole."""
    first, last = np.searchsorted(column, np.array((begin, end), column.dtype))
    return int(first), int(last)


def joined(accounts: list[Account]) -> Account:
    """One account of consecutive stretches."""
    if len(accounts) == 1:
        return accounts[0]
    empty = Account(*(np.empty((0, width), np.int64) for width in (5, 4, 6, 2)))
    every = zip(*(each._tables() for each in (empty, *accounts)), strict=True)
    return Account(*(np.concatenate(tables) for tables in every))


def stacked(*columns: IntArray) -> Rows:
    """Columns of whole numbers beside each other."""
    return np.stack([column.astype(np.int64) for column in columns], axis=1)


def block_by_block(
    moment: IntArray, kind: IntArray, request: IntArray, position: IntArray, address: IntArray, length: IntArray,
    group: IntArray, *, tell_lengths: bool,
) -> Rows:  # fmt: skip
    """Changes of ownership as in an `Account`, evictions among them; rows stand for `length` blocks in a row.

    A release of a whole table is one change, with the number of its blocks in place of a block if `tell_lengths`.
    """
    released = (kind == MemoryKind.RELEASE) & (address == WHOLE_TABLE)
    row, offset = units_of_runs(np.where(released, 1, length))
    block = np.where(released, length if tell_lengths else UNTOLD, address)[row] + offset
    position = np.where(released, WHOLE_TABLE, position)[row] + offset
    return stacked(moment[row], kind[row], request[row], position, block, group[row])


def without_evictions(changes: Rows) -> tuple[Rows, Rows]:
    """Changes of ownership proper, and which blocks lost a prefix when."""
    evicted = changes[:, 1] == MemoryKind.EVICT
    return changes[~evicted], changes[evicted][:, [0, 4]]


def _first_difference(ours: Rows, theirs: Rows) -> int | None:
    if np.array_equal(ours, theirs):
        return None
    both = min(len(ours), len(theirs))
    differs = (ours[:both] != theirs[:both]).any(axis=1)
    if differs.any():
        first = int(np.argmax(differs))
        return int(min(ours[first, 0], theirs[first, 0]))
    return int((ours if len(ours) > both else theirs)[both, 0])


def _at(rows: Rows, moment: int) -> list[list[int]]:
    begin, end = between(rows[:, 0], moment, moment + 1)
    return [list(row) for row in rows[begin:end, 1:].tolist()]
