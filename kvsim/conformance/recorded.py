"""A recording, prepared for the comparison with a simulated engine: its settings, and its events as columns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvsim.conformance.comparable import (
    check_comparable,
    check_prompts,
    host_blocks_of,
    release_of,
    retention_of,
    settings_of,
)
from kvsim.conformance.event_columns import (
    WHOLE_TABLE,
    EventColumns,
    Rows,
    between,
    block_by_block,
    split_evictions,
    stacked,
)
from kvsim.conformance.oracle_files import OFFLOAD_BLOCK_BYTES
from kvsim.conformance.recorded_drafts import drafts_of
from kvsim.conformance.recorded_images import EncoderMoments, encoding_of
from kvsim.conformance.recorded_transfers import connector_of
from kvsim.conformance.timeline import timeline_of
from kvsim.engine.moments import SCHEDULE
from kvsim.policies import ContinuousSettings, Paged, PagedSettings, Pipeline
from kvsim.recording import MemoryKind, Recording, RequestStatus
from kvsim.recording.order import expanded, sort_key

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.recording.tables import IntArray


class Recorded:
    """Settings and events of a recording of a paged engine.

    Raises:
        RecordingError: the recording is not of a paged engine, or lacks data that the comparison needs.
    """

    def __init__(self, recording: Recording) -> None:
        check_comparable(recording)
        self.recording, meta = recording, recording.meta
        assert meta.pool.num_units is not None
        release = release_of(recording)
        self.scheduler = settings_of(ContinuousSettings, recording)
        self.retention_tokens = retention_of(recording, release)
        """Distance in tokens between positions at which windows and states stay cached; None for every boundary."""
        block_size = meta.hash_block_size
        host_bytes = host_blocks_of(meta) * OFFLOAD_BLOCK_BYTES
        host_bytes *= int(meta.policy.get("kv_offloading_block_size") or block_size) // block_size
        self.cache = settings_of(
            PagedSettings, recording, block_size=block_size, kv_offloading_size=host_bytes / (1 << 30)
        )
        self.policy = Paged(scheduler=self.scheduler, cache=self.cache)
        layout = meta.pool.layout
        self.layout = None if layout is None else replace(layout, hash_block_size=meta.hash_block_size)
        """Layout of the KV-cache groups in blocks; None for one group of full attention."""
        check_prompts(recording, self.scheduler.max_model_len)
        self.num_blocks = meta.pool.num_units + meta.pool.first_unit
        """Number of blocks in the pool, including the null block."""
        self.initial_free: list[int] | None = None if meta.initial_free is None else meta.initial_free.tolist()
        self.has_free = bool((recording.steps.free_units >= 0).all())
        """True if the number of free blocks was recorded for every step."""
        self.has_evictions = meta.source == "simulation" or bool((recording.memory.kind == MemoryKind.EVICT).any())
        """True if evictions were recorded, so that a step without recorded evictions had none."""
        known = (recording.memory.length > 0) | (recording.memory.kind == MemoryKind.RELEASE)
        self.has_lengths = bool(known.all()) and (self.layout is not None or bool((recording.memory.length > 0).all()))
        """True if the recording states the number of blocks in each of its memory rows."""
        self.pipeline = settings_of(Pipeline, recording)
        self.depth = self.pipeline.most_in_flight(async_scheduling=self.scheduler.async_scheduling)
        """Limit for the number of steps in flight."""
        self.drafts = drafts_of(recording, self.scheduler)
        self.connector = connector_of(recording, self.drafts, release)
        self.encoding = encoding_of(recording)
        # Steps that compute nothing are recorded if they may start copies or transfers, or if there is a pipeline.
        has_every_step = (
            recording.copies is not None or self.connector is not None or self.pipeline.pipeline_parallel_size > 1
        )
        self.timeline = timeline_of(recording, self.depth, has_every_step=has_every_step)
        self.encoder = EncoderMoments(recording, self.timeline)
        """Events of the recorded and the simulated encoder cache, by the moment at which they are compared."""
        self._is_schedule = self.timeline.kind == SCHEDULE
        self._schedule = _ScheduleRows(recording)
        self._taken = np.zeros(self.num_blocks, np.bool_)
        """bool[num_blocks]: True for blocks that were allocated in the ranges of moments read before."""

    def arrival_ranks(self) -> list[float]:
        """Return the rank of each request by the time at which it was sent, as in vLLM's priority queue.

        Equal times are ranked in the order in which the engine received the requests.
        """
        requests = self.recording.requests
        rank = np.empty(len(requests))
        rank[np.lexsort((requests.arrival_seq, requests.received_s))] = np.arange(len(requests))
        return list(rank.tolist())

    def aborts(self, begin: int, end: int) -> IntArray:
        """Return the moments in [begin, end) at which aborted requests release tables."""
        memory, rows = self.recording.memory, self._rows_of_memory(begin, end)
        aborted = self.recording.requests.status[memory.request[rows]] == RequestStatus.ABORTED
        return np.unique(self.timeline.of_change[rows][(memory.kind[rows] == MemoryKind.RELEASE) & aborted])

    def events(self, begin: int, end: int) -> EventColumns:
        """Return the recorded events at the moments [begin, end). Each call must begin where the last one ended."""
        steps = self.recording.steps
        moment = begin + np.flatnonzero(self._is_schedule[begin:end])
        step = self.timeline.row[moment]
        free = steps.free_units[step] if self.has_free else np.full(len(step), -1)
        changes, evicted = self._changes(begin, end)
        return EventColumns(
            steps=stacked(moment, steps.running[step], steps.waiting[step], steps.preempted[step], free),
            batch=self._schedule.batches(step, moment),
            changes=changes,
            evicted=evicted,
            encoder=self.encoder.recorded(begin, end),
        )

    def _rows_of_memory(self, begin: int, end: int) -> slice:
        return slice(*between(self.timeline.of_change, begin, end))

    def _changes(self, begin: int, end: int) -> tuple[Rows, Rows]:
        memory, rows = self.recording.memory, self._rows_of_memory(begin, end)
        columns = (
            getattr(memory, name)[rows] for name in ("kind", "request", "position", "address", "length", "groups")
        )
        moment = self.timeline.of_change[rows]
        every = block_by_block(moment, *columns, with_lengths=self.has_lengths)
        changes, evicted = split_evictions(every[~self._evicts_unknown(every)])
        return changes, evicted if self.has_evictions else evicted[:0]

    def _evicts_unknown(self, changes: Rows) -> npt.NDArray[np.bool_]:
        """Tell, for each of `changes`, whether it evicts a prefix that was cached before the recording began.

        The simulated engine does not know such prefixes. Their blocks have no allocation in the recording.
        """
        kind, block = changes[:, 1], changes[:, 4]
        appended, evicted = np.flatnonzero(kind == MemoryKind.APPEND), np.flatnonzero(kind == MemoryKind.EVICT)
        first_taken = np.where(self._taken, -1, len(kind))
        np.minimum.at(first_taken, block[appended], appended)
        self._taken[block[appended]] = True
        unknown = np.zeros(len(kind), np.bool_)
        unknown[evicted] = evicted < first_taken[block[evicted]]
        return unknown


class _ScheduleRows:
    """Reader of a schedule table, one range of steps after the other. A row of the table may cover several steps."""

    def __init__(self, recording: Recording) -> None:
        schedule = recording.schedule
        self._step, self._end = schedule.step, schedule.step.astype(np.int64) + schedule.repeats
        self._columns = (schedule.request, schedule.tokens, schedule.computed_before)
        # Rows are compared in order of admission within a step. A row that covers several steps is stored at the first
        # of these, so then the order in the table is not that of admission.
        self._rank = _admission_rank(recording) if schedule.repeat is not None else np.arange(len(schedule))
        self._open = np.empty(0, np.int64)
        """Rows that cover the next step to be read, and begin before it."""

    def batches(self, steps: IntArray, moments: IntArray) -> Rows:
        if not len(steps):
            return np.empty((0, 4), np.int64)
        first, last = int(steps[0]), int(steps[-1])
        begun = np.arange(*between(self._step, first, last + 1))
        rows = np.concatenate((self._open, begun))
        self._open = rows[self._end[rows] > last + 1]
        begin = np.maximum(self._step[rows], first)
        repeats = np.minimum(self._end[rows], last + 1) - begin
        run, offset = expanded(repeats)
        row, step = rows[run], begin[run] + offset
        order = np.lexsort((self._rank[row], step))
        row, step = row[order], step[order]
        request, tokens, computed_before = (column[row] for column in self._columns)
        before = computed_before + tokens.astype(np.int64) * (step - self._step[row])
        return stacked(moments[step - first], request, tokens, before)


def _admission_rank(recording: Recording) -> IntArray:
    """Return, for each schedule row, a number that sorts the rows of a step by the admission of the requests."""
    schedule, steps, memory = recording.schedule, recording.steps, recording.memory
    released = np.flatnonzero((memory.kind == MemoryKind.RELEASE) & (memory.address == WHOLE_TABLE))
    release_key = np.sort(sort_key(memory.request[released], memory.seq[released]))
    # A release with the seq of the step comes before the admission: of a request whose load failed as a whole.
    scheduled = sort_key(schedule.request, steps.schedule_seq[schedule.step])
    key = sort_key(schedule.request, np.searchsorted(release_key, scheduled, side="right"))
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    return np.asarray(first[group])
