"""Static batching on a clock: `generate()` on one padded batch after another."""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np
import simpy

from kvsim.kernels import KernelsSeen
from kvsim.memory.padded import Rectangle
from kvsim.memory.waste import NUM_STATES, Breakdown, SlotState
from kvsim.policies import Static
from kvsim.recording import Pool, RequestStatus
from kvsim.scheduling.static import StaticBatch, StaticScheduler
from kvsim.simulation.arrivals import Arrivals
from kvsim.simulation.recorder import Recorder
from kvsim.steptime import StepShape, StepTimeModel


def static_engine(
    environment: simpy.Environment,
    policy: Static,
    pool: Pool,
    step_time: StepTimeModel,
    arrivals: Arrivals,
    recorder: Recorder,
    *,
    leap: bool,
    check: bool,
) -> Generator[simpy.Event, None, None]:
    """The engine as a SimPy process: take a batch, run it as far as the memory goes, look at the queue again."""
    assert pool.num_units is not None
    scheduler = StaticScheduler(policy.scheduler, pool.num_units)
    arrivals.check(scheduler)
    kernels = KernelsSeen(preallocated=policy.scheduler.preallocated)
    while True:
        for sequence in arrivals.until(environment.now):
            scheduler.add(sequence)
        batch = scheduler.next_batch(environment.now)
        if batch is None:
            wake_s = min((time_s for time_s in (arrivals.next_s, scheduler.due_s) if time_s is not None), default=None)
            if wake_s is None:
                return
            # Adding the difference to the clock may round to just before that time.
            yield environment.timeout(max(wake_s - environment.now, math.ulp(wake_s)))
            continue
        yield from _run_batch(environment, batch, pool, step_time, arrivals, recorder, scheduler, kernels, check=check)


def _run_batch(
    environment: simpy.Environment,
    batch: StaticBatch,
    pool: Pool,
    step_time: StepTimeModel,
    arrivals: Arrivals,
    recorder: Recorder,
    scheduler: StaticScheduler,
    kernels: KernelsSeen,
    *,
    check: bool,
) -> Generator[simpy.Event, None, None]:
    rectangle, sequences = batch.rectangle, batch.sequences
    rows, width = len(sequences), rectangle.prompt_width
    assert pool.num_units is not None
    num_steps = rectangle.steps_within(pool.num_units)
    stride = rectangle.width_at(num_steps - 1) if num_steps else 0
    for step in range(num_steps):
        for sequence in arrivals.until(environment.now):
            scheduler.add(sequence)
        recorder.next_seq()
        start_s = environment.now
        tokens = width if step == 0 else 1
        if step == 0 or not rectangle.preallocated:
            _record_growth(recorder, batch, step, stride)
        if step < 2:
            for sequence in sequences:
                repeat = 1 if step == 0 else num_steps - 1
                recorder.scheduled(sequence.row, 0 if step == 0 else width, tokens, start_s, repeat)
        number = recorder.step(
            start_s=start_s,
            prefill_tokens=rows * tokens if step == 0 else 0,
            decode_tokens=0 if step == 0 else rows,
            num_scheduled=rows,
            running=rows,
            waiting=len(scheduler.waiting),
            preempted=0,
            free_units=pool.num_units - rows * rectangle.width_at(step),
            unusable_units=0,
        )
        if check:
            _breakdown(rectangle, step, pool.num_units).check(pool.num_units)
        pairs = rows * width * (width + 1) // 2 if step == 0 else 0
        prefill_tokens = rows * tokens if step == 0 else 0
        length = rectangle.stride if rectangle.preallocated else width + step
        new_shape = kernels.is_new(rows, length, prefill=step == 0)
        shape = StepShape(rows, rows * tokens, prefill_tokens, rows * (width + step), pairs, int(new_shape))
        # generate() looks at every step's output before it launches the next.
        yield environment.timeout(step_time.step_time(shape).alone_s)
        recorder.next_seq()
        for sequence in sequences:
            if step < sequence.output_tokens:
                recorder.emitted(sequence.row, environment.now)
        recorder.output(number, environment.now)
    # A batch that runs out of memory fails as a whole, rows that have all their tokens included.
    status = RequestStatus.FINISHED if num_steps == rectangle.num_steps else RequestStatus.ABORTED
    for sequence in sequences:
        if num_steps:
            recorder.release(sequence.row, stride, 0)
        arrivals.ended(sequence, environment.now, status)


def _record_growth(recorder: Recorder, batch: StaticBatch, step: int, stride: int) -> None:
    """Report the memory that a step adds: the whole row at first, then, in a dynamic cache, a column."""
    rectangle = batch.rectangle
    position = 0 if step == 0 else rectangle.prompt_width + step - 1
    length = rectangle.width_at(0) if step == 0 else 1
    for row, sequence in enumerate(batch.sequences):
        recorder.append_extent(sequence.row, position, row * stride + position, length, length)


def _breakdown(rectangle: Rectangle, step: int, capacity_slots: int) -> Breakdown:
    slots = [0] * NUM_STATES
    held = rectangle.slots_at(step)
    slots[SlotState.TOKEN], slots[SlotState.RESERVED] = held.token, held.reserved
    slots[SlotState.INTERNAL], slots[SlotState.PADDING] = held.internal, held.padding
    slots[SlotState.FREE] = capacity_slots - rectangle.num_rows * rectangle.width_at(step)
    return Breakdown(slots=np.array(slots))
