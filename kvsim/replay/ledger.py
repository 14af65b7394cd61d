"""The memory events of a recording, unfolded: after each operation, who holds which units.

`memory.parquet` says "request 7 gives back its table"; the ledger says which units that were, in which order, and
what each is afterwards. Everything is computed in bulk when a recording is opened, so that replay only copies.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.errors import RecordingError
from kvsim.recording.grouped import NO_RUN, Operations, tables_of_groups
from kvsim.recording.holdings import Holdings, RunsOfRows, tables_of
from kvsim.recording.model import Recording
from kvsim.recording.tables import WHOLE_TABLE, IntArray, Memory, MemoryKind
from kvsim.replay.by_unit import ByUnit, Heirs
from kvsim.replay.progress import Progress

NO_OWNER = -1
"""The owner of a unit that is free."""
_ALL = np.int64(1 << 40)
"""A number of units that no table has."""
_OPS_AT_ONCE = 1 << 16
"""Operations that are looked at together: what is known of them on the way stays in a processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ledger:
    """One row per operation on a run of units, in the order in which they happened, with the state that it leaves.

    A run that grows is taken with the units of its first step, and given back with all of them.
    """

    seq: IntArray
    address: IntArray
    length: IntArray
    owner: IntArray
    """A request that holds the run afterwards, or `NO_OWNER`."""
    position: IntArray
    """Position of the run in the owner's table, in units."""
    group: IntArray | None
    """The KV-cache group of that table; None where a model has one."""
    refs: npt.NDArray[np.int32]
    """Number of requests that hold the run afterwards."""
    cached: npt.NDArray[np.bool_]
    """Free afterwards, but still holding a prefix that could be hit."""
    held_change: npt.NDArray[np.int8]
    """1 where the run was free before and is held afterwards, -1 the other way round, 0 where neither."""
    cached_change: npt.NDArray[np.int8]
    """1 where the run is cached afterwards and was not before, -1 the other way round, 0 where neither."""
    unit_by_unit: bool
    """Whether every run has one unit."""
    tables: Holdings


def unfold(recording: Recording, progress: Progress) -> Ledger:
    """Unfold the memory events of `recording`.

    Raises:
        RecordingError: a unit is handed out or evicted while a request holds it.
    """
    memory = recording.memory
    unit_by_unit = _has_single_units(recording)
    rows: _Rows | _Listed
    if recording.meta.pool.groups:
        tables, operations = tables_of_groups(memory, len(recording.requests))
        rows, num_ops = _Listed(operations), len(operations.row)
    else:
        tables, of_rows = tables_of(memory, len(recording.requests), unit_by_unit=unit_by_unit)
        rows = _Rows.of(memory, of_rows, unit_by_unit=unit_by_unit)
        num_ops = int(rows.end[-1]) if len(memory) else 0
    if not unit_by_unit:
        _check_apart(recording)
    ledger = Ledger(
        seq=np.empty(num_ops, tables.birth_seq.dtype),
        address=np.empty(num_ops, np.int32),
        length=np.broadcast_to(np.int32(1), num_ops) if unit_by_unit else np.empty(num_ops, np.int32),
        owner=np.empty(num_ops, np.int32),
        position=np.empty(num_ops, np.int32),
        group=np.zeros(num_ops, np.int16) if recording.meta.pool.groups else None,
        refs=np.empty(num_ops, np.int32),
        cached=np.zeros(num_ops, np.bool_),
        held_change=np.empty(num_ops, np.int8),
        cached_change=np.zeros(num_ops, np.int8),
        unit_by_unit=unit_by_unit,
        tables=tables,
    )
    end_of_pool = int(np.max(memory.address.astype(np.int64) + memory.length, initial=0)) if unit_by_unit else 0
    holders, was_cached = np.zeros(end_of_pool, np.int32), np.zeros(end_of_pool, np.bool_)
    # Asked for only where units are shared.
    shares = unit_by_unit and bool((memory.kind == MemoryKind.SHARE).any())
    heirs = Heirs.of(num_ops, len(tables.request), end_of_pool) if shares else None
    for begin, end in rows.parts():
        row, ops = rows.ops_of(begin, end)
        runs = rows.write(ledger, memory, row, ops)
        if heirs is not None:
            heirs.note(ops, runs, _DELTA[memory.kind[row]])
    for begin, end in rows.parts():
        row, ops = rows.ops_of(begin, end)
        changes, refs = _DELTA[memory.kind[row]], ledger.refs[ops]
        by_unit = ByUnit.of(ledger.address[ops], end_of_pool) if unit_by_unit else None
        if by_unit is not None:
            refs[:] = by_unit.running_refs(changes, holders)
            _check_free(recording, row, ledger.address[ops], refs)
        else:
            refs[:] = changes > 0
        ledger.held_change[ops] = (refs > 0).view(np.int8) - (refs > changes).view(np.int8)
        released = np.flatnonzero((changes < 0) & (refs == 0))
        if recording.meta.prefix_caching:
            kept = _cached_units(recording, progress, row[released], ledger.owner[ops][released])
            ledger.cached[ops][released] = ledger.position[ops][released] < kept
            if by_unit is not None:
                ledger.cached_change[ops] = by_unit.changes(ledger.cached[ops], was_cached)
        ledger.owner[ops][released] = NO_OWNER
        if heirs is not None and by_unit is not None:
            left, stays = heirs.of_part(by_unit, ops, changes, refs)
            ledger.owner[ops][left], ledger.position[ops][left] = tables.request[stays], tables.position[stays]
    return ledger


_DELTA = np.zeros(len(MemoryKind), np.int8)
"""Holders that a run gains or loses, by the kind of the operation."""
_DELTA[[MemoryKind.APPEND, MemoryKind.SHARE]] = 1
_DELTA[MemoryKind.RELEASE] = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """How the rows of `memory.parquet` become operations. A table is given back from its end."""

    gives_back: npt.NDArray[np.bool_]
    first_run: IntArray
    """The run that the row begins with: the last of a table that it gives back."""
    num_ops: IntArray
    end: IntArray
    """Operations up to and including the row."""

    @classmethod
    def of(cls, memory: Memory, runs: RunsOfRows, *, unit_by_unit: bool) -> _Rows:
        """The rows of `memory`, which speak of these runs."""
        gives_back = memory.kind == MemoryKind.RELEASE
        num_ops = np.where(memory.kind == MemoryKind.EVICT, memory.length if unit_by_unit else 1, runs.count)
        return cls(
            gives_back=gives_back,
            first_run=runs.first + gives_back * (runs.count - 1),
            num_ops=num_ops,
            end=np.cumsum(num_ops, dtype=np.int32),
        )

    def parts(self) -> list[tuple[int, int]]:
        """Ranges of rows whose operations stay in a processor's cache."""
        if not len(self.end):
            return []
        cuts = np.searchsorted(self.end, np.arange(_OPS_AT_ONCE, int(self.end[-1]), _OPS_AT_ONCE))
        return list(pairwise([0, *np.unique(cuts[cuts > 0]).tolist(), len(self.end)]))

    def ops_of(self, begin: int, end: int) -> tuple[npt.NDArray[np.intp], slice]:
        """The row of each operation of the rows [begin, end), and which operations these are."""
        row = np.repeat(np.arange(begin, end), self.num_ops[begin:end])
        last = int(self.end[end - 1])
        return row, slice(last - len(row), last)

    def write(self, ledger: Ledger, memory: Memory, row: IntArray, ops: slice) -> IntArray:
        """Write who takes or gives back what in the operations `ops`, of these rows; return the run of each."""
        nth = np.arange(ops.start, ops.stop) - (self.end[row] - self.num_ops[row])
        address, position, owner = ledger.address[ops], ledger.position[ops], ledger.owner[ops]
        ledger.seq[ops], owner[:] = memory.seq[row], memory.request[row]
        np.add(memory.address[row], nth, out=address, casting="same_kind")
        np.add(memory.position[row], nth, out=position, casting="same_kind")
        run: IntArray = self.first_run[row] + nth
        back = np.flatnonzero(self.gives_back[row])
        run[back] -= 2 * nth[back]
        address[back], position[back] = ledger.tables.address[run[back]], ledger.tables.position[run[back]]
        if not ledger.unit_by_unit:
            ledger.length[ops] = memory.length[row]
            ledger.length[ops][back] = ledger.tables.length[run[back]]
        evictions = np.flatnonzero(memory.kind[row] == MemoryKind.EVICT)
        run[evictions], position[evictions], owner[evictions] = 0, 0, NO_OWNER
        return run


@dataclass(frozen=True, slots=True, eq=False)
class _Listed:
    """Operations where groups let go of units on the way: everything is listed, unit by unit."""

    operations: Operations

    def parts(self) -> list[tuple[int, int]]:
        """Ranges of operations that stay in a processor's cache."""
        return self.operations.parts()

    def ops_of(self, begin: int, end: int) -> tuple[IntArray, slice]:
        """The row of each of these operations, and which they are."""
        return self.operations.row[begin:end], slice(begin, end)

    def write(self, ledger: Ledger, memory: Memory, row: IntArray, ops: slice) -> IntArray:
        """Write who takes or gives back what in the operations `ops`, of these rows; return the run of each."""
        run, tables = self.operations.run[ops], ledger.tables
        ledger.seq[ops], ledger.address[ops] = memory.seq[row], self.operations.address[ops]
        ledger.owner[ops], ledger.position[ops] = NO_OWNER, 0
        of_table = np.flatnonzero(run != NO_RUN)
        at = ops.start + of_table
        runs = run[of_table]
        ledger.owner[at], ledger.position[at] = tables.request[runs], tables.position[runs]
        assert ledger.group is not None
        ledger.group[at] = tables.group[runs]
        return np.maximum(run, 0)


def _has_single_units(recording: Recording) -> bool:
    """Whether units are shared and cached one by one, and runs of them were only written together."""
    meta, kind, repeat = recording.meta, recording.memory.kind, recording.memory.repeat
    if repeat is not None and (repeat > 1).any():
        return False
    if meta.policy_name == "paged" or meta.pool.unit_tokens > 1 or meta.prefix_caching:
        return True
    return bool(((kind == MemoryKind.SHARE) | (kind == MemoryKind.EVICT)).any())


def _check_free(recording: Recording, row: IntArray, address: IntArray, refs: npt.NDArray[np.int32]) -> None:
    """Raise where a unit is handed out or evicted while a request holds it."""
    kind = recording.memory.kind[row]
    wrong = ((kind == MemoryKind.APPEND) & (refs > 1)) | ((kind == MemoryKind.EVICT) & (refs > 0))
    if wrong.any():
        first = int(np.argmax(wrong))
        raise RecordingError(
            f"memory.parquet of {recording.name}, row {int(row[first])}: unit {int(address[first])} should be free."
        )


def _check_apart(recording: Recording) -> None:
    """Raise where a run of units is handed out while another request holds some of them."""
    memory = recording.memory
    repeat = np.ones(len(memory), np.int64) if memory.repeat is None else memory.repeat.astype(np.int64)
    ends = (memory.address + memory.length * repeat).tolist()
    begins = list[int]()
    ends_of = dict[int, int]()
    held_by = dict[int, list[int]]()
    columns = (memory.kind.tolist(), memory.request.tolist(), memory.address.tolist(), ends)
    for row, (kind, request, begin, end) in enumerate(zip(*columns, strict=True)):
        if kind == MemoryKind.RELEASE:
            for held in held_by.pop(request, ()):
                del begins[bisect_left(begins, held)], ends_of[held]
            continue
        place = bisect_left(begins, begin)
        if (place and ends_of[begins[place - 1]] > begin) or (place < len(begins) and begins[place] < end):
            raise RecordingError(
                f"memory.parquet of {recording.name}, row {row}: units from {begin} to {end - 1} should be free."
            )
        own = held_by.setdefault(request, [])
        if own and ends_of[own[-1]] == begin:  # a table that grows in place is one run
            ends_of[own[-1]] = end
            continue
        begins.insert(place, begin)
        ends_of[begin] = end
        own.append(begin)


def _cached_units(
    recording: Recording, progress: Progress, rows: IntArray, requests: IntArray
) -> npt.NDArray[np.integer[Any]]:
    """How many leading units of the released table keep their prefix, for releases at `rows` of `memory`."""
    memory = recording.memory
    if memory.cached is not None:
        # Of a table that is given back, so many leading units; of a part of one, all of it or nothing.
        part = memory.address[rows] != WHOLE_TABLE
        return np.where(part, memory.cached[rows] * _ALL, memory.cached[rows])
    # The recorder did not say: a unit keeps its prefix once it is full of tokens whose values were known, and the
    # token that was in flight when a request was preempted was not.
    step = np.searchsorted(recording.steps.schedule_seq, memory.seq[rows]) - 1
    computed = progress.computed(requests, step)
    known = np.where(computed >= progress.final[requests], computed, np.maximum(computed - 1, 0))
    sizes = np.array([group.block_size for group in recording.meta.pool.groups] or [recording.meta.pool.unit_tokens])
    return np.asarray(known // sizes[memory.groups[rows]])
