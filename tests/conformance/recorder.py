"""Serve an oracle workload and write down a recording of it, as somebody would who watches a real vLLM."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvsim.memory.blocks import BlockPool
from kvsim.recording import Memory, Meta, Pool, Recording, RecordingBuilder, RequestStatus, Schedule
from kvsim.scheduling.continuous import Batch, ContinuousScheduler
from kvsim.scheduling.engine import Awaiting, Call, Scheduled, Scheduling, Updated, engine_moments
from kvsim.scheduling.keys import PrefixKeys
from kvsim.scheduling.paged import PagedManager
from kvsim.scheduling.sequence import Sequence, Status

if TYPE_CHECKING:
    from kvsim.conformance.oracle_files import OracleRequest, OracleWorkload

_LIVE = (Status.WAITING, Status.RUNNING, Status.PREEMPTED)
_MOST_CALLS = 5_000
"""Requests that can never be scheduled are given up on after so many."""


class Watch:
    """One run of `workload`, watched to its end. Calls that schedule nothing take a `seq` and leave no step."""

    def __init__(
        self, workload: OracleWorkload, *, aborts_have_seq: bool = True, initial_free: list[int] | None = None
    ) -> None:
        self._workload = workload
        self._aborts_have_seq = aborts_have_seq
        self._initial_free = initial_free
        self._keys = PrefixKeys(workload.cache.block_size)
        self._builder = RecordingBuilder()
        self._pool = BlockPool(workload.num_blocks, initial_free)
        settings = workload.scheduler
        memory = PagedManager(
            self._pool,
            workload.cache,
            self._builder,
            max_model_len=settings.max_model_len,
            reserve_full_prompt=settings.reserve_full_prompt,
        )
        self._scheduler = ContinuousScheduler(settings, memory)
        self._due = sorted(enumerate(workload.requests), key=lambda item: item[1].arrival_step)
        self._aborts = sorted(
            (request.abort_step, request.name) for request in workload.requests if request.abort_step is not None
        )
        self._sequences: dict[str, Sequence] = {}
        self._step_of: dict[Batch, int] = {}
        self._rows: list[tuple[int, int, int, int]] = []
        self._run()

    def recording(self) -> Recording:
        """What our own recorder writes."""
        return self._builder.finish(_meta(self._workload, self._initial_free), name="watched")

    def plain_recording(self) -> Recording:
        """What a recorder writes that saves no space and knows nothing of our own columns."""
        recording = self.recording()
        columns = zip(*self._rows, strict=True)
        names = ("step", "request", "computed_before", "tokens")
        schedule = Schedule(**{name: np.array(column, np.int32) for name, column in zip(names, columns, strict=True)})
        memory = {name: getattr(recording.memory, name) for name, spec in Memory.columns() if not spec.optional}
        return replace(recording, schedule=schedule, memory=Memory(**memory))

    def _run(self) -> None:
        builder = self._builder
        emitting: list[Sequence] = []
        call = 0
        for moment in engine_moments(self._scheduler):
            match moment:
                case Call(idle=idle):
                    if (idle and not self._due) or call > _MOST_CALLS:
                        return
                    if idle:
                        call = max(call, self._due[0][1].arrival_step)
                    self._arrive(call)
                    self._abort(call)
                    call += 1
                case Scheduling():
                    builder.next_seq()
                case Scheduled(batch=batch):
                    if batch.tokens or batch.preempted:
                        self._step_of[batch] = self._record_step(batch, call - 1)
                case Awaiting(batch=batch):
                    builder.next_seq()
                    emitting = [sequence for sequence in batch.emitting if sequence.status in _LIVE]
                case Updated(batch=batch, ended=ended):
                    for sequence in emitting:
                        builder.emitted(sequence.row, call)
                    for sequence in ended:
                        builder.ended(sequence.row, RequestStatus.FINISHED, call)
                    if batch in self._step_of:
                        builder.output(self._step_of.pop(batch), call)

    def _arrive(self, call: int) -> None:
        while self._due and self._due[0][1].arrival_step <= call:
            number, request = self._due.pop(0)
            sequence = self._sequences[request.name] = self._sequence(number, request)
            self._scheduler.add(sequence)

    def _sequence(self, number: int, request: OracleRequest) -> Sequence:
        prompt_keys = self._keys.from_tokens(request.prompt)
        arrival = float(number)  # the oracle dates requests by their place in the workload
        row = self._builder.arrived(
            request.name,
            arrival,
            len(request.prompt),
            request.output_tokens,
            priority=request.priority,
            prompt_hashes=prompt_keys,  # equal keys mean equal prefixes, which is all that a hash says
        )
        stop_at = request.output_tokens if request.stop_at is None else request.stop_at
        return Sequence(
            row,
            len(request.prompt),
            min(stop_at, request.output_tokens),
            request.output_tokens,
            priority=request.priority,
            arrival=arrival,
            prompt_keys=prompt_keys,
        )

    def _abort(self, call: int) -> None:
        while self._aborts and self._aborts[0][0] <= call:
            sequence = self._sequences.get(self._aborts.pop(0)[1])
            if sequence is not None and sequence.status in _LIVE:
                if self._aborts_have_seq:
                    self._builder.next_seq()
                self._scheduler.abort(sequence)
                self._builder.ended(sequence.row, RequestStatus.ABORTED, call - 0.5)

    def _record_step(self, batch: Batch, call: int) -> int:
        builder, scheduler = self._builder, self._scheduler
        for sequence, tokens in batch.tokens.items():
            before = sequence.computed - tokens
            builder.scheduled(sequence.row, before, tokens, call)
            self._rows.append((builder.num_steps, sequence.row, before, tokens))
        for sequence in batch.preempted:
            builder.preempted(sequence.row)
        return builder.step(
            start_s=float(call),
            prefill_tokens=0,
            decode_tokens=sum(batch.tokens.values()),
            num_scheduled=len(batch),
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            preempted=len(batch.preempted),
            free_units=self._pool.num_free,
        )


def _meta(workload: OracleWorkload, initial_free: list[int] | None) -> Meta:
    settings, cache = workload.scheduler, workload.cache
    return Meta(
        source="vllm",
        engine={
            "name": "vllm",
            "max_num_seqs": settings.max_num_seqs,
            "max_num_batched_tokens": settings.max_num_batched_tokens,
            "max_model_len": settings.max_model_len,
            "async_scheduling": settings.async_scheduling,
            "policy": settings.order.value,
            "enable_chunked_prefill": settings.enable_chunked_prefill,
            "long_prefill_token_threshold": settings.long_prefill_token_threshold,
            "scheduler_reserve_full_isl": settings.reserve_full_prompt,
            "enable_prefix_caching": cache.enable_prefix_caching,
            "watermark": cache.watermark,
        },
        gpu="none",
        model={"name": "tiny"},
        policy={"name": "paged", "block_size": cache.block_size},
        pool=Pool(unit_tokens=cache.block_size, num_units=workload.num_blocks - 1, first_unit=1, bytes_per_unit=1),
        initial_free=None if initial_free is None else np.array(initial_free),
    )
