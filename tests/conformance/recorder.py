"""Serve an oracle workload and write down a recording of it, as somebody would who watches a real vLLM."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import numpy as np

from kvsim.engine.clock import SCHEDULED
from kvsim.engine.coefficients import no_times
from kvsim.engine.driver import Driver
from kvsim.engine.initialization import EnginePlan
from kvsim.engine.known_requests import Demand
from kvsim.engine.paged.prefix_keys import PrefixKeys
from kvsim.engine.state import PREEMPTED, RUNNING, WAITING
from kvsim.policies import Paged
from kvsim.recording import Memory, MemoryKind, Meta, Pool, Recording, RecordingBuilder, RequestStatus, Schedule
from kvsim.workload import Ragged

if TYPE_CHECKING:
    from kvsim.conformance.oracle_files import OracleWorkload

_LIVE = (WAITING, RUNNING, PREEMPTED)
_MOST_CALLS = 5_000
"""Requests that can never be scheduled are given up on after so many."""


class Watch:
    """One run of `workload`, watched to its end. Calls that schedule nothing take a `seq`; only in a pipeline, where
    they count, do they leave a step.
    """

    def __init__(
        self,
        workload: OracleWorkload,
        *,
        aborts_have_seq: bool = True,
        initial_free: list[int] | None = None,
        builder: RecordingBuilder | None = None,
        compiled: bool = False,
    ) -> None:
        self._workload = workload
        self._aborts_have_seq = aborts_have_seq
        self._initial_free = initial_free
        self._builder = builder or RecordingBuilder()
        self._due = sorted(enumerate(workload.requests), key=lambda item: item[1].arrival_step)
        self._order = [row for row, _ in self._due]
        """The rows of the workload in the order of those of the recording: requests as they arrive."""
        self._demand = _demand(workload, self._order)
        plan = EnginePlan(
            self._demand,
            Paged(scheduler=workload.scheduler, cache=workload.cache),
            workload.num_blocks - 1,
            no_times(),
            refused=np.zeros(len(workload.requests), np.bool_),
            initial_free=initial_free,
            pipeline=workload.pipeline,
            records_memory=True,
        )
        self._driver = Driver(plan.build(compiled=compiled), compiled=compiled)
        self._aborts = sorted(
            (request.abort_step, row) for row, request in enumerate(workload.requests) if request.abort_step is not None
        )
        self._node_of = {row: node for node, row in enumerate(self._order, 1)}
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
        driver, state = self._driver, self._driver.engine.state
        in_flight: list[tuple[int, list[int]]] = []
        """Steps whose output was not processed: their number, or -1, and the sequences that get an output."""
        call = 0
        while True:
            if not state.awaiting:
                idle = not in_flight and not driver.has_work()
                if (idle and not self._due) or call > _MOST_CALLS:
                    return
                if idle:
                    call = max(call, self._due[0][1].arrival_step)
                self._arrive(call)
                self._abort(call)
                call += 1
            emitting = [node for node in in_flight[0][1] if self._is_live(node)] if in_flight else []
            num_ended = state.num_ended
            scheduled = driver.next_moment() == SCHEDULED
            if not scheduled and not in_flight:  # whatever was there was aborted
                continue
            self._builder.begin_event()
            self._take_changes()
            if scheduled:
                is_pipeline = self._workload.pipeline.pipeline_parallel_size > 1
                is_step = state.num_in_batch > 0 or state.num_preempted > 0 or is_pipeline
                in_flight.append((self._record_step(call - 1) if is_step else -1, driver.emitting()))
                continue
            number = in_flight.pop(0)[0]
            for node in emitting:
                self._builder.emitted(node - 1, call)
            for index in range(num_ended, state.num_ended):
                self._builder.ended(int(driver.engine.lines[index].ended) - 1, RequestStatus.FINISHED, call)
            if number >= 0:
                self._builder.output(number, call)

    def _arrive(self, call: int) -> None:
        while self._due and self._due[0][1].arrival_step <= call:
            number, request = self._due.pop(0)
            row = self._builder.arrived(
                request.name,
                float(number),  # the oracle dates requests by their place in the workload
                len(request.prompt),
                request.output_tokens,
                priority=request.priority,
                prompt_hashes=self._demand.keys[self._node_of[number] - 1].tolist(),  # equal where prefixes are
            )
            self._driver.add(row + 1)

    def _abort(self, call: int) -> None:
        while self._aborts and self._aborts[0][0] <= call:
            node = self._node_of[self._aborts.pop(0)[1]]
            if node <= self._builder.num_requests and self._is_live(node):
                if self._aborts_have_seq:
                    self._builder.begin_event()
                self._driver.abort(node)
                self._take_changes()
                self._builder.ended(node - 1, RequestStatus.ABORTED, call - 0.5)

    def _take_changes(self) -> None:
        """Write down what the last action did with the memory."""
        builder = self._builder
        for row in self._driver.changes():
            request, position, length = int(row.request), int(row.position), int(row.length)
            blocks = range(int(row.address), int(row.address) + length)
            if row.kind == MemoryKind.APPEND:
                builder.append_blocks(request, position, blocks)
            elif row.kind == MemoryKind.SHARE:
                builder.share_blocks(request, position, blocks)
            elif row.kind == MemoryKind.EVICT:
                builder.evict(blocks)
            else:
                builder.release(request, length, int(row.cached))

    def _record_step(self, call: int) -> int:
        builder, driver = self._builder, self._driver
        batch, preempted, prefill_tokens = driver.batch(), driver.preempted(), 0
        for node, tokens in batch.items():
            before = int(driver.sequence(node).computed) - tokens
            if tokens > 1 or before < driver.sequence(node).prompt_tokens:
                prefill_tokens += tokens
            builder.scheduled(node - 1, before, tokens, call)
            self._rows.append((builder.num_steps, node - 1, before, tokens))
        for node in preempted:
            builder.preempted(node - 1)
        return builder.step(
            start_s=float(call),
            prefill_tokens=prefill_tokens,
            decode_tokens=sum(batch.values()) - prefill_tokens,
            num_scheduled=len(batch),
            running=len(driver.running()),
            waiting=len(driver.waiting()),
            preempted=len(preempted),
            free_units=len(driver.free_queue()),
        )

    def _is_live(self, node: int) -> bool:
        return self._driver.sequence(node).status in _LIVE


def _demand(workload: OracleWorkload, order: list[int]) -> Demand:
    """What the requests ask for, in this order."""
    requests, longest = [workload.requests[row] for row in order], workload.scheduler.max_model_len
    keys = PrefixKeys(workload.cache.block_size)
    prompt = np.array([len(request.prompt) for request in requests], np.int64)
    limit = np.array([request.output_tokens for request in requests], np.int64)
    stop = np.array([request.stop_at or request.output_tokens for request in requests], np.int64)
    return Demand(
        prompt=prompt,
        output=np.minimum(np.minimum(stop, limit), np.maximum(longest - prompt, 1)),
        limit=limit,
        priority=np.array([request.priority for request in requests], np.int64),
        arrival_s=np.array(order, np.float64),
        keys=Ragged.from_rows([keys.from_tokens(request.prompt) for request in requests], np.int64),
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
            **asdict(workload.pipeline),
        },
        gpu="none",
        model={"name": "tiny"},
        policy={"name": "paged", "block_size": cache.block_size},
        pool=Pool(unit_tokens=cache.block_size, num_units=workload.num_blocks - 1, first_unit=1, bytes_per_unit=1),
        initial_free=None if initial_free is None else np.array(initial_free),
    )
