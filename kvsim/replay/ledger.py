"""Convert the memory events of a recording to operations on units, each with an owner.

A row of `memory.parquet` such as "request 7 frees its table" becomes one operation for each unit of that table. A long
recording has tens of millions of operations, so only the part that a reader needs is converted. On opening, it is
checked that no unit is allocated twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.errors import RecordingError
from kvsim.policies import Paged, Radix
from kvsim.recording.grouped import tables_of_groups
from kvsim.recording.holdings import Holdings, tables_of
from kvsim.recording.model import Recording
from kvsim.recording.order import in_parts
from kvsim.recording.tables import WHOLE_TABLE, IntArray, MemoryKind
from kvsim.replay.by_unit import Successions
from kvsim.replay.progress import Progress
from kvsim.replay.unfolding import CHANGE, ListedOperations, Part, RowConverter, UnitAllocations, UnitRowReader

_ALL = np.int64(np.iinfo(np.int32).max)
"""Number of leading units that stay cached if all units of a release do. No table has this many units."""
_OPS_AT_ONCE = 1 << 15
"""Number of operations that are processed together, so that their data fits into the CPU cache."""


class Ledger:
    """Operations of a recording on units, in order, and the tables of its requests. Operations are numbered from 0."""

    def __init__(self, recording: Recording, progress: Progress) -> None:
        """Index the memory events of `recording`. `progress` has the computed tokens of its requests.

        Raises:
            RecordingError: a unit is allocated while a request holds it.
        """
        self._recording, self._memory = recording, recording.memory
        self.unit_by_unit = _has_single_units(recording)
        """True if every operation is on a single unit; False if operations are on extents of several units."""
        self.tables: Holdings
        self._unfolded: RowConverter
        num_requests = len(recording.requests)
        self.lists_operations = bool(recording.meta.pool.groups) or bool(self._memory.releases_part.any())
        """True if tables may release some units before others. Then all operations are kept in memory as a list."""
        if self.lists_operations:
            self.tables, operations = tables_of_groups(self._memory, num_requests)
            self._unfolded = ListedOperations(self._memory, self.tables, operations)
        else:
            self.tables, releases, until = tables_of(self._memory, num_requests, unit_by_unit=self.unit_by_unit)
            self._unfolded = UnitRowReader(self._memory, self.tables, releases, until, unit_by_unit=self.unit_by_unit)
        self._before = np.zeros(len(self._memory) + 1, np.int32)
        """Number of operations before each row of `memory.parquet`, and at the end the number of all."""
        np.cumsum(self._unfolded.num_ops(), out=self._before[1:])
        self.has_groups = bool(recording.meta.pool.groups)
        """True if several KV-cache groups share the pool."""
        self.is_shared = self.unit_by_unit and bool((self._memory.kind == MemoryKind.SHARE).any())
        """True if several requests may hold a unit at the same time, because the recording has shared units."""
        cached = recording.meta.initial_cached
        self.initial_cached = np.empty(0, np.int64) if cached is None else cached
        """Addresses of the units that are cached before the first operation."""
        self._releases = np.flatnonzero(self._memory.kind == MemoryKind.RELEASE)
        self._kept = _kept_units(recording, progress, self._releases)
        if self.unit_by_unit:
            self._check_free()
        else:
            _check_apart(recording)

    @property
    def num_ops(self) -> int:
        """Number of all operations."""
        return int(self._before[-1])

    def ops_until(self, seq: IntArray | int) -> npt.NDArray[np.int32]:
        """Return, for each event in `seq`, the number of operations up to and including the event."""
        return np.asarray(self._before[self._memory.seq.searchsorted(seq, "right")])

    def part(self, begin: int, end: int) -> Part:
        """Return the operations [begin, end)."""
        before = self._before
        # With another type, `searchsorted` would convert the whole column.
        first = int(before.searchsorted(np.int32(begin), "right")) - 1
        last = max(int(before.searchsorted(np.int32(end), "left")), first)
        edges = before[first : last + 1].copy()
        edges[0], edges[-1] = begin, end
        row = np.arange(first, last, dtype=np.int32).repeat(edges[1:] - edges[:-1])
        ops = np.arange(begin, end, dtype=np.int32)
        return self._unfolded.part(ops, row, ops - before.take(row))

    def at(self, ops: npt.NDArray[np.int32]) -> Part:
        """Return the operations `ops`, in their order; `ops` need not ascend."""
        row = self._before.searchsorted(ops, "right") - 1
        return self._unfolded.part(ops, row, ops - self._before.take(row))

    def parts(self, begin: int = 0, end: int | None = None) -> Iterator[tuple[int, Part]]:
        """Yield parts of the operations from `begin` to `end` (or the last), each with its first operation's number."""
        end = self.num_ops if end is None else end
        for first in range(begin, end, _OPS_AT_ONCE):
            yield first, self.part(first, min(first + _OPS_AT_ONCE, end))

    def keeps(self, row: IntArray, position: IntArray) -> npt.NDArray[np.bool_]:
        """Tell, for each unit that a release frees, whether it stays in the prefix cache.

        `row` has, for each unit, the row of the release, and `position` its index in the released table.
        """
        if self._kept is None:
            return np.zeros(len(row), np.bool_)
        return np.asarray(position < self._kept.take(self._releases.searchsorted(row)))

    def units_before(self, rows: IntArray) -> npt.NDArray[np.int64]:
        """Return the number of units that requests hold before each of `rows` of `memory.parquet`; `rows` must ascend.

        A shared unit counts once for each holder.
        """
        before = np.zeros(len(rows), np.int64)
        total = 0
        for part in in_parts(len(self._memory)):
            change = np.diff(self._before[part.start : part.stop + 1]) * CHANGE.take(self._memory.kind[part])
            upto = np.concatenate(([0], np.cumsum(change)))
            first, end = np.searchsorted(rows, (part.start, part.stop)).tolist()
            before[first:end] = total + upto[rows[first:end] - part.start]
            total += int(upto[-1])
        before[rows == len(self._memory)] = total
        return before

    @cached_property
    def end_of_pool(self) -> int:
        """Address after the last unit that is ever used, or that is cached when the recording begins."""
        memory, end = self._memory, int(self.initial_cached.max(initial=-1)) + 1
        for rows in in_parts(len(memory)):
            end = max(end, int(np.max(memory.address[rows].astype(np.int64) + memory.length[rows])))
        return end

    def allocations(self) -> Iterator[UnitAllocations]:
        """Yield all allocations and evictions in parts. Every extent must be a single unit (`unit_by_unit`)."""
        edges = np.arange(_OPS_AT_ONCE, self.num_ops, _OPS_AT_ONCE, dtype=np.int32)
        for begin, end in pairwise([0, *np.searchsorted(self._before, edges).tolist(), len(self._memory)]):
            yield self._unfolded.allocations(begin, end)

    def ops_on(self, is_selected: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
        """Return the numbers of the operations on the selected units. `is_selected` has one entry for each address.

        Every operation must be on a single unit, and tables must be freed as a whole.
        """
        memory, before, ops = self._memory, self._before, [np.empty(0, np.int32)]
        for part in self.allocations():
            nth = np.flatnonzero(is_selected.take(part.address))
            row, position, until = part.row[nth], part.position[nth], part.until[nth]
            ops.append(before.take(row) + (part.address[nth] - memory.address.take(row)))
            back = np.flatnonzero((until > row) & (until < len(memory)))
            # A table is freed completely, from its end.
            ops.append(before.take(until[back] + 1) - 1 - position[back])
        return np.sort(np.concatenate(ops))

    def successions(self, *, with_prefixes: bool) -> Iterator[Successions]:
        """Yield the successive holders of each unit, for one part of all allocations at a time.

        Without `with_prefixes`, no unit counts as cached.
        """
        latest = np.zeros(self.end_of_pool, np.int64)
        kept = None
        if with_prefixes and self._kept is not None:
            latest[self.initial_cached] = 1
            kept = np.zeros(len(self._memory) + 1, np.min_scalar_type(int(self._kept.max(initial=0))))
            kept[self._releases] = self._kept
        for part in self.allocations():
            yield Successions.of(part, latest, kept, is_shared=self.is_shared)

    def _check_free(self) -> None:
        for part in self.successions(with_prefixes=False):
            held = np.flatnonzero(part.is_held)
            wrong = held[self._memory.kind[part.row[held]] != MemoryKind.SHARE]
            if len(wrong):
                first = wrong[np.argmin(part.row[wrong])]
                raise RecordingError(
                    f"memory.parquet of {self._recording.name}, row {int(part.row[first])}: unit "
                    f"{int(part.unit[first])} should be free."
                )


def _has_single_units(recording: Recording) -> bool:
    """Tell whether units are shared or cached one by one, so that extents of several units must be split."""
    meta, kind, repeat = recording.meta, recording.memory.kind, recording.memory.repeat
    if repeat is not None and (repeat > 1).any():
        return False
    if meta.policy_name in (Paged.name, Radix.name) or meta.pool.unit_tokens > 1 or meta.prefix_caching:
        return True
    return bool(((kind == MemoryKind.SHARE) | (kind == MemoryKind.EVICT)).any())


def _check_apart(recording: Recording) -> None:
    """Check that no unit is in two extents at once."""
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
        held_here = held_by.setdefault(request, [])
        if held_here and ends_of[held_here[-1]] == begin:  # growth in place extends the extent
            ends_of[held_here[-1]] = end
            continue
        begins.insert(place, begin)
        ends_of[begin] = end
        held_here.append(begin)


def _kept_units(recording: Recording, progress: Progress, rows: IntArray) -> npt.NDArray[np.integer[Any]] | None:
    """Return, for each release in `rows`, the number of the table's leading units that stay in the prefix cache. None
    without a prefix cache.

    If only a part of a table is released, the number is 0, or above all others if the part stays cached.
    """
    memory = recording.memory
    if not recording.meta.prefix_caching:
        return None
    if memory.cached is not None:
        # For a whole table, `cached` counts leading units; for a part, it tells whether the part stays cached.
        part = memory.address[rows] != WHOLE_TABLE
        return np.where(part, memory.cached[rows] * _ALL, memory.cached[rows])
    # If the recording does not tell, full units with known tokens stay cached. The token that was in flight when a
    # request was preempted is not known.
    step = np.searchsorted(recording.steps.schedule_seq, memory.seq[rows]) - 1
    requests = memory.request[rows]
    computed = progress.computed(requests, step)
    known = np.where(computed >= progress.most_computed[requests], computed, np.maximum(computed - 1, 0))
    sizes = np.array([group.block_size for group in recording.meta.pool.groups] or [recording.meta.pool.unit_tokens])
    return np.asarray(known // sizes[memory.groups[rows]])
