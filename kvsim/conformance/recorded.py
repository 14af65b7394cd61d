"""A recording as a verifier wants it: its engine's settings, and what every stretch of moments brought, as columns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvsim.conformance.account import Account, Rows, between, block_by_block, stacked, without_evictions
from kvsim.conformance.changes import WHOLE_TABLE
from kvsim.conformance.comparable import check_comparable, check_prompts, host_blocks_of, settings_of
from kvsim.conformance.oracle_files import OFFLOAD_BLOCK_BYTES
from kvsim.conformance.timeline import timeline_of
from kvsim.engine.moments import SCHEDULE
from kvsim.policies import ContinuousSettings, Paged, PagedSettings, Pipeline
from kvsim.recording import MemoryKind, Recording, RequestStatus
from kvsim.recording.order import units_of_runs

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.recording.tables import IntArray


class Recorded:
    """The moments of one recording of a paged engine.

    Raises:
        RecordingError: it is no recording of a paged engine, or lacks what a comparison needs.
    """

    def __init__(self, recording: Recording) -> None:
        check_comparable(recording)
        self.recording, meta = recording, recording.meta
        assert meta.pool.num_units is not None
        self.scheduler = settings_of(ContinuousSettings, recording)
        block_size = meta.hash_block_size
        host_bytes = host_blocks_of(meta) * OFFLOAD_BLOCK_BYTES
        host_bytes *= int(meta.policy.get("kv_offloading_block_size") or block_size) // block_size
        self.cache = settings_of(
            PagedSettings, recording, block_size=block_size, kv_offloading_size=host_bytes / (1 << 30)
        )
        self.policy = Paged(scheduler=self.scheduler, cache=self.cache)
        layout = meta.pool.layout
        self.layout = None if layout is None else replace(layout, hash_block_size=meta.hash_block_size)
        """The KV-cache groups; None where one group of full attention holds all layers."""
        check_prompts(recording, self.scheduler.max_model_len)
        self.num_blocks = meta.pool.num_units + meta.pool.first_unit
        """All blocks, the one that is never handed out included."""
        self.initial_free: list[int] | None = None if meta.initial_free is None else meta.initial_free.tolist()
        self.tells_free = bool((recording.steps.free_units >= 0).all())
        """Whether the number of free blocks was written down."""
        self.tells_evictions = meta.source == "simulation" or bool((recording.memory.kind == MemoryKind.EVICT).any())
        """Whether evictions were written down, so that a step without one had none."""
        told = (recording.memory.length > 0) | (recording.memory.kind == MemoryKind.RELEASE)
        self.tells_lengths = bool(told.all()) and (self.layout is not None or bool((recording.memory.length > 0).all()))
        """Whether a release tells how long its table was; every other change must."""
        self.pipeline = settings_of(Pipeline, recording)
        self.depth = self.pipeline.most_in_flight(async_scheduling=self.scheduler.async_scheduling)
        """Steps that may be in flight at once."""
        # Steps that compute nothing are told where they may have done something else, or have to be counted.
        tells_every_step = recording.copies is not None or self.pipeline.pipeline_parallel_size > 1
        self.timeline = timeline_of(recording, self.depth, tells_every_step=tells_every_step)
        self._is_schedule = self.timeline.kind == SCHEDULE
        self._schedule = _ScheduleRows(recording)
        self._taken = np.zeros(self.num_blocks, np.bool_)
        """Blocks that were handed out in what was told so far."""

    def arrival_ranks(self) -> list[float]:
        """Requests by time of arrival; where the clock was too coarse, in the order in which the engine saw them."""
        requests = self.recording.requests
        rank = np.empty(len(requests))
        rank[np.lexsort((requests.arrival_seq, requests.arrival_s))] = np.arange(len(requests))
        return list(rank.tolist())

    def aborts(self, begin: int, end: int) -> IntArray:
        """The moments in `begin:end` at which a request that was aborted at some time gives back a table."""
        memory, rows = self.recording.memory, self._rows_of_memory(begin, end)
        aborted = self.recording.requests.status[memory.request[rows]] == RequestStatus.ABORTED
        return np.unique(self.timeline.of_change[rows][(memory.kind[rows] == MemoryKind.RELEASE) & aborted])

    def told(self, begin: int, end: int) -> Account:
        """What the moments in `begin:end` brought. Every call goes on where the one before ended."""
        steps = self.recording.steps
        moment = begin + np.flatnonzero(self._is_schedule[begin:end])
        step = self.timeline.row[moment]
        free = steps.free_units[step] if self.tells_free else np.full(len(step), -1)
        changes, evicted = self._told_changes(begin, end)
        return Account(
            steps=stacked(moment, steps.running[step], steps.waiting[step], steps.preempted[step], free),
            batch=self._schedule.told(step, moment),
            changes=changes,
            evicted=evicted,
        )

    def _rows_of_memory(self, begin: int, end: int) -> slice:
        return slice(*between(self.timeline.of_change, begin, end))

    def _told_changes(self, begin: int, end: int) -> tuple[Rows, Rows]:
        memory, rows = self.recording.memory, self._rows_of_memory(begin, end)
        columns = (
            getattr(memory, name)[rows] for name in ("kind", "request", "position", "address", "length", "groups")
        )
        moment = self.timeline.of_change[rows]
        every = block_by_block(moment, *columns, tell_lengths=self.tells_lengths)
        changes, evicted = without_evictions(every[~self._evicts_unknown(every)])
        return changes, evicted if self.tells_evictions else evicted[:0]

    def _evicts_unknown(self, changes: Rows) -> npt.NDArray[np.bool_]:
        """Changes that evict what a block held before the recording began: what that was is not known."""
        kind, block = changes[:, 1], changes[:, 4]
        appended, evicted = np.flatnonzero(kind == MemoryKind.APPEND), np.flatnonzero(kind == MemoryKind.EVICT)
        first_taken = np.where(self._taken, -1, len(kind))
        np.minimum.at(first_taken, block[appended], appended)
        self._taken[block[appended]] = True
        unknown = np.zeros(len(kind), np.bool_)
        unknown[evicted] = evicted < first_taken[block[evicted]]
        return unknown


class _ScheduleRows:
    """The schedule of a recording, of which rows stand for several steps, step by step."""

    def __init__(self, recording: Recording) -> None:
        schedule = recording.schedule
        self._step, self._end = schedule.step, schedule.step.astype(np.int64) + schedule.repeats
        self._columns = (schedule.request, schedule.tokens, schedule.computed_before)
        # A row that stands for several steps is found where it begins; inside a step the order is that of admission.
        self._rank = _admission_rank(recording) if schedule.repeat is not None else np.arange(len(schedule))
        self._open = np.empty(0, np.int64)
        """Rows that began before what is told next."""

    def told(self, steps: IntArray, moments: IntArray) -> Rows:
        """The batches of consecutive `steps`, which were scheduled at these moments, as in an `Account`."""
        if not len(steps):
            return np.empty((0, 4), np.int64)
        first, last = int(steps[0]), int(steps[-1])
        begun = np.arange(*between(self._step, first, last + 1))
        rows = np.concatenate((self._open, begun))
        self._open = rows[self._end[rows] > last + 1]
        begin = np.maximum(self._step[rows], first)
        repeats = np.minimum(self._end[rows], last + 1) - begin
        run, offset = units_of_runs(repeats)
        row, step = rows[run], begin[run] + offset
        order = np.lexsort((self._rank[row], step))
        row, step = row[order], step[order]
        request, tokens, computed_before = (column[row] for column in self._columns)
        before = computed_before + tokens.astype(np.int64) * (step - self._step[row])
        return stacked(moments[step - first], request, tokens, before)


def _admission_rank(recording: Recording) -> IntArray:
    """For each row of the schedule, the first row since its request was last admitted."""
    schedule, steps, memory = recording.schedule, recording.steps, recording.memory
    released = np.flatnonzero((memory.kind == MemoryKind.RELEASE) & (memory.address == WHOLE_TABLE))
    span = int(max(steps.output_seq.max(initial=0), memory.seq.max(initial=0))) + 1
    release_key = np.sort(memory.request[released].astype(np.int64) * span + memory.seq[released])
    residency = np.searchsorted(
        release_key, schedule.request.astype(np.int64) * span + steps.schedule_seq[schedule.step]
    )
    key = schedule.request.astype(np.int64) * (len(release_key) + 1) + residency
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    return np.asarray(first[group])
