"""A recording as a verifier wants it: its engine's settings, and every moment as plain values in the order of `seq`."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from kvsim.conformance.changes import UNTOLD, WHOLE_TABLE, Change
from kvsim.conformance.comparable import check_comparable, check_prompts, host_blocks_of, settings_of
from kvsim.conformance.oracle_files import OFFLOAD_BLOCK_BYTES
from kvsim.conformance.words import StepFacts
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.recording import MemoryKind, Recording, RequestStatus

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.recording.tables import IntArray


class Event(Enum):
    """What `seq` counts, in the order in which an engine handles what comes together."""

    ARRIVAL = 0
    OUTPUT = 1
    SCHEDULE = 2


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
        self._lay_out_schedule()
        self._lay_out_memory()

    def events(self) -> list[tuple[Event, int, int]]:
        """Every arrival, output and scheduled step in order: what it is, its row in its table, its `seq`."""
        requests, steps = self.recording.requests, self.recording.steps
        outputs = steps.output_seq
        if (requests.status == RequestStatus.UNFINISHED).any():
            # Somebody stopped watching: outputs after the last step were still under way, and were dated afterwards.
            outputs = outputs[outputs < steps.schedule_seq.max(initial=-1)]
        columns = ((Event.ARRIVAL, requests.arrival_seq), (Event.OUTPUT, outputs), (Event.SCHEDULE, steps.schedule_seq))
        seq = np.concatenate([column for _, column in columns])
        kind = np.repeat([event.value for event, _ in columns], [len(column) for _, column in columns])
        row = np.concatenate([np.arange(len(column)) for _, column in columns])
        order = np.lexsort((kind, seq))
        kinds = list(Event)
        return [
            (kinds[kind], row, seq)
            for kind, row, seq in zip(kind[order].tolist(), row[order].tolist(), seq[order].tolist(), strict=True)
        ]

    def arrival_ranks(self) -> list[float]:
        """Requests by time of arrival; where the clock was too coarse, in the order in which the engine saw them."""
        requests = self.recording.requests
        rank = np.empty(len(requests))
        rank[np.lexsort((requests.arrival_seq, requests.arrival_s))] = np.arange(len(requests))
        return list(rank.tolist())

    def aborts_by_time(self) -> list[tuple[float, int]]:
        """Time at which each aborted request left, in seconds, and its row; the last first."""
        requests = self.recording.requests
        rows = np.flatnonzero((requests.status == RequestStatus.ABORTED) & np.isfinite(requests.finished_s))
        return sorted(zip(requests.finished_s[rows].tolist(), rows.tolist(), strict=True), reverse=True)

    def step_facts(self, step: int, evicted: list[int]) -> StepFacts:
        """What was written down of `step`, beside its changes of ownership."""
        rows = slice(self._first_row[step], self._first_row[step + 1])
        running, waiting, free, preempted = self._counts[step]
        return StepFacts(
            requests=self._requests[rows],
            tokens=self._tokens[rows],
            computed_before=self._computed_before[rows],
            evicted=evicted,
            running=running,
            waiting=waiting,
            free=free if self.tells_free else -1,
            preempted=preempted,
        )

    def changes(self, since: int, seq: int) -> tuple[int, list[Change], list[int]]:
        """Changes of ownership from number `since` on that belong to `seq` or to what came before it.

        Returns:
            the number to go on from, the changes block by block, and the blocks that were evicted.
        """
        end = int(np.searchsorted(self._seq, seq, side="right"))
        changes = self._changes[since:end]
        evicted = [block for kind, _, _, block, _ in changes if kind == MemoryKind.EVICT]
        if evicted:
            changes = [change for change in changes if change[0] != MemoryKind.EVICT]
        return end, changes, evicted

    def _lay_out_schedule(self) -> None:
        schedule, steps = self.recording.schedule, self.recording.steps
        repeats = schedule.repeats
        row = np.repeat(np.arange(len(schedule)), repeats)
        offset = np.arange(len(row)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        step = schedule.step[row] + offset
        # A row that stands for several steps is found where it begins; inside a step the order is that of admission.
        rank = self._admission_rank()[row] if schedule.repeat is not None else np.arange(len(row))
        order = np.lexsort((rank, step))
        row, offset = row[order], offset[order]
        self._requests: list[int] = schedule.request[row].tolist()
        self._tokens: list[int] = schedule.tokens[row].tolist()
        self._computed_before: list[int] = (schedule.computed_before[row] + schedule.tokens[row] * offset).tolist()
        self._first_row: list[int] = np.searchsorted(step[order], np.arange(len(steps) + 1)).tolist()
        columns = (steps.running, steps.waiting, steps.free_units, steps.preempted)
        self._counts: list[tuple[int, int, int, int]] = list(zip(*(column.tolist() for column in columns), strict=True))

    def _admission_rank(self) -> IntArray:
        """For each row of the schedule, the first row since its request was last admitted."""
        schedule, steps, memory = self.recording.schedule, self.recording.steps, self.recording.memory
        released = np.flatnonzero((memory.kind == MemoryKind.RELEASE) & (memory.address == WHOLE_TABLE))
        span = int(max(steps.output_seq.max(initial=0), memory.seq.max(initial=0))) + 1
        release_key = np.sort(memory.request[released].astype(np.int64) * span + memory.seq[released])
        residency = np.searchsorted(
            release_key, schedule.request.astype(np.int64) * span + steps.schedule_seq[schedule.step]
        )
        key = schedule.request.astype(np.int64) * (len(release_key) + 1) + residency
        _, first, group = np.unique(key, return_index=True, return_inverse=True)
        return np.asarray(first[group])

    def _lay_out_memory(self) -> None:
        memory = self.recording.memory
        released = (memory.kind == MemoryKind.RELEASE) & (memory.address == WHOLE_TABLE)
        units = np.where(released, 1, memory.length)
        row = np.repeat(np.arange(len(memory)), units)
        offset = np.arange(len(row)) - np.repeat(np.cumsum(units) - units, units)
        lengths = memory.length if self.tells_lengths else UNTOLD
        block = np.where(released, lengths, memory.address)[row] + offset
        position = np.where(released, WHOLE_TABLE, memory.position)[row] + offset
        columns = (memory.kind[row], memory.request[row], position, block, memory.groups[row])
        known = ~self._evicts_unknown(memory.kind[row], block)
        self._seq = memory.seq[row][known]
        self._changes: list[Change] = list(zip(*(column[known].tolist() for column in columns), strict=True))

    def _evicts_unknown(self, kind: IntArray, block: IntArray) -> npt.NDArray[np.bool_]:
        """Changes that evict what a block held before the recording began: what that was is not known."""
        taken, evicted = np.flatnonzero(kind == MemoryKind.APPEND), np.flatnonzero(kind == MemoryKind.EVICT)
        first_taken = np.full(self.num_blocks, len(kind))
        np.minimum.at(first_taken, block[taken], taken)
        unknown = np.zeros(len(kind), np.bool_)
        unknown[evicted] = evicted < first_taken[block[evicted]]
        return unknown
