"""The memory events of a recording, unfolded: which units each operation is about, and whose they are.

`memory.parquet` says "request 7 gives back its table"; the ledger says which units that were, and in which order. A
long recording has tens of millions of operations, so they are not kept: a part of them is unfolded when a reader goes
there. What is looked at when a recording is opened is that no unit is handed out twice.
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
from kvsim.recording.grouped import tables_of_groups
from kvsim.recording.holdings import Holdings, tables_of
from kvsim.recording.model import Recording
from kvsim.recording.order import in_parts
from kvsim.recording.tables import WHOLE_TABLE, IntArray, MemoryKind
from kvsim.replay.by_unit import Successions
from kvsim.replay.progress import Progress
from kvsim.replay.unfolding import CHANGE, Listed, Part, Rows, Takes, Unfolded

_ALL = np.int64(np.iinfo(np.int32).max)
"""A number of units that no table has."""
_OPS_AT_ONCE = 1 << 15
"""Operations that are looked at together: what is known of them on the way stays in a processor's cache."""


class Ledger:
    """The operations of a recording, and the tables that they make."""

    def __init__(self, recording: Recording, progress: Progress) -> None:
        """Unfold the memory events of `recording`.

        Raises:
            RecordingError: a unit is handed out or evicted while a request holds it.
        """
        self._recording, self._memory = recording, recording.memory
        self.unit_by_unit = _has_single_units(recording)
        """Whether every run has one unit."""
        self.tables: Holdings
        self._unfolded: Unfolded
        num_requests = len(recording.requests)
        if recording.meta.pool.groups:
            self.tables, operations = tables_of_groups(self._memory, num_requests)
            self._unfolded = Listed(self._memory, self.tables, operations)
        else:
            self.tables, releases, until = tables_of(self._memory, num_requests, unit_by_unit=self.unit_by_unit)
            self._unfolded = Rows(self._memory, self.tables, releases, until, unit_by_unit=self.unit_by_unit)
        self._before = np.zeros(len(self._memory) + 1, np.int32)
        """Operations before each row, and before the end."""
        np.cumsum(self._unfolded.num_ops(), out=self._before[1:])
        self.has_groups = bool(recording.meta.pool.groups)
        """Whether several KV-cache groups share the pool."""
        self.is_shared = self.unit_by_unit and bool((self._memory.kind == MemoryKind.SHARE).any())
        """Whether several requests hold a unit at some time."""
        cached = recording.meta.initial_cached
        self.initial_cached = np.empty(0, np.int64) if cached is None else cached
        """Addresses of the units that keep a prefix before the first operation."""
        self._releases = np.flatnonzero(self._memory.kind == MemoryKind.RELEASE)
        self._kept = _kept_units(recording, progress, self._releases)
        if self.unit_by_unit:
            self._check_free()
        else:
            _check_apart(recording)

    @property
    def num_ops(self) -> int:
        """Operations of the whole recording."""
        return int(self._before[-1])

    def ops_until(self, seq: IntArray | int) -> npt.NDArray[np.int32]:
        """Operations up to and including each sequence number."""
        return np.asarray(self._before[self._memory.seq.searchsorted(seq, "right")])

    def part(self, begin: int, end: int) -> Part:
        """The operations [begin, end)."""
        before = self._before
        # Of the same type: to look for another, the whole column would be converted.
        first = int(before.searchsorted(np.int32(begin), "right")) - 1
        behind = max(int(before.searchsorted(np.int32(end), "left")), first)
        edges = before[first : behind + 1].copy()
        edges[0], edges[-1] = begin, end
        row = np.arange(first, behind, dtype=np.int32).repeat(edges[1:] - edges[:-1])
        ops = np.arange(begin, end, dtype=np.int32)
        return self._unfolded.part(ops, row, ops - before.take(row))

    def at(self, ops: npt.NDArray[np.int32]) -> Part:
        """These operations, in any order."""
        row = self._before.searchsorted(ops, "right") - 1
        return self._unfolded.part(ops, row, ops - self._before.take(row))

    def parts(self, begin: int = 0, end: int | None = None) -> Iterator[tuple[int, Part]]:
        """The operations [begin, end), some thousands at a time, each time with the number of the first."""
        end = self.num_ops if end is None else end
        for first in range(begin, end, _OPS_AT_ONCE):
            yield first, self.part(first, min(first + _OPS_AT_ONCE, end))

    def keeps(self, row: IntArray, position: IntArray) -> npt.NDArray[np.bool_]:
        """Whether a unit at `position` of its table keeps its prefix when `row`, a release, gives it back, if nobody
        else has it.
        """
        if self._kept is None:
            return np.zeros(len(row), np.bool_)
        return np.asarray(position < self._kept.take(self._releases.searchsorted(row)))

    def units_before(self, rows: IntArray) -> npt.NDArray[np.int64]:
        """Units that requests take, less those that they give back, each for itself, in all rows before each of
        `rows`, which ascend.
        """
        before = np.zeros(len(rows), np.int64)
        total = 0
        for part in in_parts(len(self._memory)):
            change = np.diff(self._before[part.start : part.stop + 1]) * CHANGE.take(self._memory.kind[part])
            upto = np.concatenate(([0], np.cumsum(change)))
            first, behind = np.searchsorted(rows, (part.start, part.stop)).tolist()
            before[first:behind] = total + upto[rows[first:behind] - part.start]
            total += int(upto[-1])
        before[rows == len(self._memory)] = total
        return before

    @cached_property
    def end_of_pool(self) -> int:
        """The address behind all units that are ever touched, or that keep a prefix at first."""
        memory, end = self._memory, int(self.initial_cached.max(initial=-1)) + 1
        for rows in in_parts(len(memory)):
            end = max(end, int(np.max(memory.address[rows].astype(np.int64) + memory.length[rows])))
        return end

    def takes(self) -> Iterator[Takes]:
        """All takes of a pool whose runs have one unit each, some thousands at a time."""
        edges = np.arange(_OPS_AT_ONCE, self.num_ops, _OPS_AT_ONCE, dtype=np.int32)
        for begin, end in pairwise([0, *np.searchsorted(self._before, edges).tolist(), len(self._memory)]):
            yield self._unfolded.takes(begin, end)

    def ops_on(self, is_one: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
        """The operations on the units whose address `is_one`, in order; of a pool of single units and one group."""
        memory, before, found = self._memory, self._before, [np.empty(0, np.int32)]
        for takes in self.takes():
            ones = np.flatnonzero(is_one.take(takes.address))
            row, position, until = takes.row[ones], takes.position[ones], takes.until[ones]
            found.append(before.take(row) + (takes.address[ones] - memory.address.take(row)))
            back = np.flatnonzero((until > row) & (until < len(memory)))
            # A table is given back whole, from its end.
            found.append(before.take(until[back] + 1) - 1 - position[back])
        return np.sort(np.concatenate(found))

    def successions(self, *, with_prefixes: bool) -> Iterator[Successions]:
        """Who has each unit after whom, some thousands of takes at a time; without prefixes, no unit is said to keep
        one.
        """
        latest = np.zeros(self.end_of_pool, np.int64)
        kept = None
        if with_prefixes and self._kept is not None:
            latest[self.initial_cached] = 1
            kept = np.zeros(len(self._memory) + 1, np.min_scalar_type(int(self._kept.max(initial=0))))
            kept[self._releases] = self._kept
        for takes in self.takes():
            yield Successions.of(takes, latest, kept, is_shared=self.is_shared)

    def _check_free(self) -> None:
        """Raise where a unit is handed out or evicted while a request holds it."""
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
    """Whether units are shared and cached one by one, and runs of them were only written together."""
    meta, kind, repeat = recording.meta, recording.memory.kind, recording.memory.repeat
    if repeat is not None and (repeat > 1).any():
        return False
    if meta.policy_name == "paged" or meta.pool.unit_tokens > 1 or meta.prefix_caching:
        return True
    return bool(((kind == MemoryKind.SHARE) | (kind == MemoryKind.EVICT)).any())


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


def _kept_units(recording: Recording, progress: Progress, rows: IntArray) -> npt.NDArray[np.integer[Any]] | None:
    """How many leading units of its table keep their prefix, for each release in `rows`; None without a cache."""
    memory = recording.memory
    if not recording.meta.prefix_caching:
        return None
    if memory.cached is not None:
        # Of a table that is given back, so many leading units; of a part of one, all of it or nothing.
        part = memory.address[rows] != WHOLE_TABLE
        return np.where(part, memory.cached[rows] * _ALL, memory.cached[rows])
    # The recorder did not say: a unit keeps its prefix once it is full of tokens whose values were known, and the
    # token that was in flight when a request was preempted was not.
    step = np.searchsorted(recording.steps.schedule_seq, memory.seq[rows]) - 1
    requests = memory.request[rows]
    computed = progress.computed(requests, step)
    known = np.where(computed >= progress.final[requests], computed, np.maximum(computed - 1, 0))
    sizes = np.array([group.block_size for group in recording.meta.pool.groups] or [recording.meta.pool.unit_tokens])
    return np.asarray(known // sizes[memory.groups[rows]])
