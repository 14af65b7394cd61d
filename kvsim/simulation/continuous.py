"""Continuous batching on a clock: vLLM's engine loop over a paged pool, or over contiguous reservations."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import NamedTuple

import simpy

from kvsim.memory.blocks import BlockPool
from kvsim.policies import Contiguous, Paged
from kvsim.recording import Pool
from kvsim.scheduling.contiguous import ContiguousManager
from kvsim.scheduling.continuous import Batch, ContinuousScheduler
from kvsim.scheduling.engine import Awaiting, Call, Scheduled, Scheduling, Updated, engine_moments
from kvsim.scheduling.manager import MemoryManager
from kvsim.scheduling.paged import PagedManager
from kvsim.scheduling.sequence import Status
from kvsim.scheduling.speculation import Speculation
from kvsim.scheduling.swap import SwappingManager
from kvsim.simulation.arrivals import Arrivals
from kvsim.simulation.leap import LeapingEngine, can_leap
from kvsim.simulation.recorder import Recorder
from kvsim.simulation.steps import check_progress, record_step
from kvsim.steptime import NO_TIME, RESTED, StepTimeModel, strained_gpu_s


def continuous_engine(
    environment: simpy.Environment,
    policy: Paged | Contiguous,
    pool: Pool,
    step_time: StepTimeModel,
    arrivals: Arrivals,
    recorder: Recorder,
    *,
    leap: bool,
    check: bool,
) -> Generator[simpy.Event, None, None]:
    """The engine as a SimPy process; it ends when every request has.

    Two clocks run: the host schedules and launches, the GPU computes. A step's kernels start as soon as the GPU is
    free, also while the host is still launching the rest, and end no sooner than the launch. With asynchronous
    scheduling the host launches a step while the GPU works on the one before.
    """
    memory = _memory(policy, pool, recorder)
    speculation = Speculation.of(policy.cache) if isinstance(policy, Paged) else None
    scheduler = ContinuousScheduler(policy.scheduler, memory, speculation)
    arrivals.check(memory)
    if leap and not check and can_leap(policy):
        return LeapingEngine(environment, scheduler, step_time, arrivals, recorder).run()
    return _step_by_step(environment, scheduler, step_time, arrivals, recorder, check=check)


def _step_by_step(  # noqa: PLR0912  a branch for each moment, and for what it may lack
    environment: simpy.Environment,
    scheduler: ContinuousScheduler,
    step_time: StepTimeModel,
    arrivals: Arrivals,
    recorder: Recorder,
    *,
    check: bool,
) -> Generator[simpy.Event, None, None]:
    """The reference: every moment of every step."""
    memory = scheduler.memory
    host_s = gpu_free_s = 0.0
    strain = RESTED
    in_flight: dict[Batch, _InFlight] = {}
    for moment in engine_moments(scheduler):
        match moment:
            case Call(idle=idle):
                if idle:
                    if arrivals.next_s is None:
                        return
                    host_s = max(host_s, arrivals.next_s)
                    # Adding differences to SimPy's clock may have rounded it to just beyond the host's.
                    yield environment.timeout(max(host_s - environment.now, 0.0))
                for sequence, entered_s in arrivals.until(host_s, step_time.entry_s):
                    scheduler.add(sequence)
                    host_s = entered_s
            case Scheduling():
                recorder.next_seq()
            case Scheduled(batch=batch):
                check_progress(scheduler, batch)
                if batch.tokens or batch.preempted:
                    number, shape, link_s = record_step(recorder, scheduler, batch, host_s)
                    cost = step_time.step_time(shape) if batch.tokens else NO_TIME
                    gpu_begin_s = max(host_s + cost.prepare_s, gpu_free_s) + link_s
                    gpu_s, strain = strained_gpu_s(cost, gpu_begin_s, strain)
                    gpu_free_s = max(gpu_begin_s + gpu_s, host_s + cost.launch_s)
                    host_s += cost.launch_s
                    in_flight[batch] = _InFlight(number, gpu_free_s, cost.turnaround_s)
                if check:
                    head = scheduler.waiting.peek() if scheduler.waiting else None
                    memory.breakdown(scheduler.running, head).check(memory.capacity_slots)
            case Awaiting(batch=batch):
                if batch in in_flight:
                    host_s = max(host_s, in_flight[batch].done_s)
                    yield environment.timeout(max(host_s - environment.now, 0.0))
                recorder.next_seq()
                for sequence in batch.emitting:
                    # A step scheduled ahead may hold a sequence that has ended since; its token is thrown away.
                    if sequence.status is not Status.FINISHED:
                        recorder.emitted(sequence.row, host_s, scheduler.num_outputs_of(sequence))
            case Updated(batch=batch, ended=ended):
                for sequence in ended:
                    arrivals.ended(sequence, host_s)
                if batch in in_flight:
                    step = in_flight.pop(batch)
                    recorder.output(step.number, host_s)
                    host_s += step.turnaround_s


class _InFlight(NamedTuple):
    """A step that has been launched."""

    number: int
    done_s: float
    """When the GPU is done with it."""
    turnaround_s: float


def _memory(policy: Paged | Contiguous, pool: Pool, recorder: Recorder) -> MemoryManager:
    assert pool.num_units is not None
    if isinstance(policy, Contiguous):
        return ContiguousManager(pool.num_units, policy.cache, recorder, max_model_len=policy.max_model_len)
    manager: Callable[..., PagedManager] = PagedManager
    if policy.cache.swap_gib:
        manager = partial(SwappingManager, block_bytes=pool.bytes_per_unit)
    return manager(
        BlockPool(pool.num_units + pool.first_unit),
        policy.cache,
        recorder,
        max_model_len=policy.max_model_len,
        reserve_full_prompt=policy.scheduler.reserve_full_prompt,
    )
