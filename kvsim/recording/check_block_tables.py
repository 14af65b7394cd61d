"""Check the block tables of a pool with one KV-cache group, row by row of `memory.parquet`.

The rows are processed in parts of some thousands, and each part is sorted by request. To sort all rows of a long
recording at once would take longer than all other checks together.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.errors import RecordingError
from kvsim.recording.check_replaced_units import replacing_rows
from kvsim.recording.model import Recording
from kvsim.recording.order import in_parts, is_new, sort_key, stable_order
from kvsim.recording.rules import require_of
from kvsim.recording.tables import IntArray, Memory, MemoryKind, Steps

_NO_ROW = -1
_OF_TABLES = (
    "position should be where the request's table ends",
    "the request releases a table that it does not have",
    "length should be that of the released table",
)
_OF_GROWTH = "the request's table still grows by an earlier row"
_CHANGE = np.zeros(len(MemoryKind), np.int8)
"""Number of held units that a memory row adds per unit of its length, indexed by `MemoryKind`. 0 for a shared unit,
which is held already, and for an evicted one, which no request holds.
"""
_CHANGE[MemoryKind.APPEND], _CHANGE[MemoryKind.RELEASE] = 1, -1


def check_block_tables(recording: Recording, folder: Path) -> None:
    """Check that each table grows at its end, is released as a whole, and has room for all computed tokens."""
    memory, schedule, file = recording.memory, recording.schedule, folder / "memory.parquet"
    repeats = schedule.repeats
    last_step = schedule.step + repeats - 1
    tables = _Tables(recording, recording.steps.schedule_seq[last_step])
    for rows in in_parts(len(memory)):
        tables.process(rows)
    for rule in _OF_TABLES:
        tables.require(rule, file)
    _check_free_units(recording, folder / "steps.parquet")
    tables.require(_OF_GROWTH, file)

    requested = memory.length if memory.requested is None else memory.requested

    def has_room(rows: slice) -> np.ndarray:
        row = tables.newest_row[rows]
        held = memory.position[row].astype(np.int64)
        held += requested[row] * _repeat(memory, row)
        held[(row == _NO_ROW) | (memory.kind[row] == MemoryKind.RELEASE)] = 0
        if memory.repeat is not None:  # a growing row has not yet added the units of later steps
            later_steps = np.maximum(memory.step[row] + memory.repeat[row] - 1 - last_step[rows], 0)
            held -= np.minimum(later_steps * memory.length[row].astype(np.int64), held)
        computed = schedule.computed_before[rows] + schedule.tokens[rows].astype(np.int64) * repeats[rows]
        fits: np.ndarray = computed <= held * recording.meta.pool.unit_tokens
        return fits

    require_of(has_room, schedule, folder / "schedule.parquet", "more is computed than the request holds memory for")


class _Tables:
    """Block tables of all requests after the memory rows that were processed, and for each rule the first row that
    breaks it.

    `moments[i]` is the event number (`seq`) at which the table of the request of schedule row i is looked up.
    """

    def __init__(self, recording: Recording, moments: IntArray) -> None:
        self._memory, self._steps, self._schedule = recording.memory, recording.steps, recording.schedule
        num_requests = len(recording.requests)
        self._held = np.zeros(num_requests, np.int64)
        self._grows_upto = np.full(num_requests, -1, np.int64)
        """Last `seq` at which the newest row of each request lengthens its table; -1 without a `repeat` above 1."""
        self._newest = np.full(num_requests, _NO_ROW, np.int32)
        self._replaces = replacing_rows(self._memory)
        self._broken_by: dict[str, int] = {}
        self.newest_row = np.full(len(moments), _NO_ROW, np.int32)
        """Index of the last memory row of each schedule row's request up to its moment; -1 if there is none."""
        self._last_row = np.searchsorted(self._memory.seq, moments, side="right") - 1
        """Index of the last memory row of any request up to each schedule row's moment; -1 if there is none."""
        self._in_order = np.argsort(self._last_row, kind="stable")

    def process(self, part: slice) -> None:
        """Check the memory rows `part`, which follow those of the previous call, and apply them to the tables."""
        memory = self._memory
        of_tables = (memory.kind[part] != MemoryKind.EVICT) & ~self._replaces[part]
        rows = np.flatnonzero(of_tables).astype(np.int32) + np.int32(part.start)
        rows = rows[stable_order(memory.request[rows], len(self._held))]
        request, released = memory.request[rows], memory.kind[rows] == MemoryKind.RELEASE
        position, length = memory.position[rows], memory.length[rows].astype(np.int64)
        of_request = _ByRequest.of(request)
        # Length of the request's table before each row. A release leaves a table of length 0.
        before = of_request.before(np.where(released, 0, position + length * _repeat(memory, rows)), self._held)
        self._check(_OF_TABLES[0], released | (position == before), rows)
        self._check(_OF_TABLES[1], ~released | (before > 0), rows)
        self._check(_OF_TABLES[2], ~released | (length == before), rows)
        if memory.repeat is not None:
            upto = np.full(len(rows), -1, np.int64)
            grows = np.flatnonzero(memory.repeat[rows] > 1)
            last_step = memory.step[rows[grows]] + memory.repeat[rows[grows]] - 1
            upto[grows] = self._steps.schedule_seq[last_step]
            self._check(_OF_GROWTH, memory.seq[rows] > of_request.before(upto, self._grows_upto), rows)
        self._find_newest_rows(part, rows, request)
        self._newest[request[of_request.is_last]] = rows[of_request.is_last]

    def require(self, rule: str, file: Path) -> None:
        if rule in self._broken_by:
            raise RecordingError(f"{file}, row {self._broken_by[rule]}: {rule}.")

    def _check(self, rule: str, holds: npt.NDArray[np.bool_], rows: IntArray) -> None:
        """Store the first of `rows` that breaks `rule`. `require` raises the errors, in a fixed order of rules."""
        if rule not in self._broken_by and not holds.all():
            self._broken_by[rule] = int(rows[~holds].min())

    def _find_newest_rows(self, part: slice, rows: IntArray, request: IntArray) -> None:
        begin, end = np.searchsorted(self._last_row, (part.start, part.stop), sorter=self._in_order).tolist()
        scheduled = self._in_order[begin:end]
        wanted = self._schedule.request[scheduled]
        at = np.searchsorted(sort_key(request, rows), sort_key(wanted, self._last_row[scheduled]), side="right") - 1
        # The newest row is in this part, or in an earlier one.
        newest = self._newest[wanted]
        here = np.flatnonzero(at >= 0)
        here = here[request[at[here]] == wanted[here]]
        newest[here] = rows[at[here]]
        self.newest_row[scheduled] = newest


class _ByRequest(NamedTuple):
    request: IntArray
    is_first: npt.NDArray[np.bool_]
    is_last: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, request: IntArray) -> _ByRequest:
        is_first = is_new(request)
        return cls(request, is_first, np.append(is_first, True)[1:])

    def before(self, values: IntArray, newest: IntArray) -> IntArray:
        """Return, for each row, the value of the previous row of the same request.

        `newest[request]` is the value of the request's last row in the parts of the table that were processed before.
        It is updated in place.
        """
        previous = np.empty_like(newest, shape=len(values))
        previous[1:] = values[:-1]
        previous[self.is_first] = newest[self.request[self.is_first]]
        newest[self.request[self.is_last]] = values[self.is_last]
        return previous


def _repeat(memory: Memory, rows: IntArray) -> IntArray | int:
    return 1 if memory.repeat is None else memory.repeat[rows].astype(np.int64)


def _check_free_units(recording: Recording, file: Path) -> None:
    memory, steps, num_units = recording.memory, recording.steps, recording.meta.pool.num_units
    grows = memory.repeat is not None and (memory.repeat > 1).any()
    if num_units is None or grows or (memory.kind == MemoryKind.SHARE).any():
        return
    held = np.zeros(len(steps) + 1, np.int64)
    for rows in in_parts(len(memory)):
        shown = _shown_first_in(memory, steps, rows)
        first = int(shown.min())
        change = np.bincount(shown - first, weights=memory.length[rows] * _CHANGE.take(memory.kind[rows]))
        held[first : first + len(change)] += change.astype(np.int64)
    np.cumsum(held, out=held)
    require_of(lambda rows: held[rows] <= num_units, steps, file, f"more units are held than the pool's {num_units}")
    require_of(
        lambda rows: (steps.free_units[rows] == -1) | (steps.free_units[rows] == num_units - held[rows]),
        steps, file, "free_units should be what memory.parquet leaves of the pool",
    )  # fmt: skip


def _shown_first_in(memory: Memory, steps: Steps, rows: slice) -> IntArray:
    """Return, for each of `rows`, the first step whose `free_units` include the row; the number of steps if none does.

    This is usually the step in the row's column `step`. But for a release after that step was scheduled, it is the next
    step that is scheduled.
    """
    shown = memory.step[rows].copy()
    back = np.flatnonzero((memory.kind[rows] == MemoryKind.RELEASE) & (shown < len(steps)))
    seq = memory.seq[rows][back]
    later = seq > steps.schedule_seq[shown[back]]
    shown[back[later]] = np.searchsorted(steps.schedule_seq, seq[later])
    return shown
