"""Static batching on a clock: `generate()` on one padded batch after another."""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np
import simpy

from kvsim.memory.padded import Rectangle
from kvsim.memory.waste import NUM_STATES, Breakdown, SlotState
from kvsim.policies import Static
from kvsim.recording import Pool, RecordingBuilder
from kvsim.scheduling.static import StaticBatch, StaticScheduler
from kvsim.simulation.arrivals import Arrivals
from kvsim.steptime import StepShape, StepTimeModel


def static_engine(
    environment: simpy.Environment,
    policy: Static,
    pool: Pool,
    step_time: StepTimeModel,
    arrivals: Arrivals,
    recorder: RecordingBuilder,
    *,
    check: bool,
) -> Generator[simpy.Event, None, None]:
    """The engine as a SimPy process: take a batch, run it to its end, look at the queue again."""
    assert pool.num_units is not None
    scheduler = StaticScheduler(policy.scheduler, pool.num_units)
    arrivals.check(scheduler)
    while True:
        for sequence in arrivals.until(environment.now):
            scheduler.add(sequence)
        batch = scheduler.next_batch()
        if batch is None:
            if arrivals.next_s is None:
                return
            # Adding the difference to the clock may round to just before the arrival.
            yield environment.timeout(max(arrivals.next_s - environment.now, math.ulp(arrivals.next_s)))
            continue
        yield from _run_batch(environment, batch, pool, step_time, arrivals, recorder, scheduler, check=check)


def _run_batch(
    environment: simpy.Environment,
    batch: StaticBatch,
    pool: Pool,
    step_time: StepTimeModel,
    arrivals: Arrivals,
    recorder: RecordingBuilder,
    scheduler: StaticScheduler,
    *,
    check: bool,
) -> Generator[simpy.Event, None, None]:
    rectangle, sequences = batch.rectangle, batch.sequences
    rows, width = len(sequences), rectangle.prompt_width
    assert pool.num_units is not None
    for step in range(rectangle.num_steps):
        for sequence in arrivals.until(environment.now):
            scheduler.add(sequence)
        recorder.next_seq()
        start_s = environment.now
        tokens = width if step == 0 else 1
        if step == 0 or not rectangle.preallocated:
            _record_growth(recorder, batch, step)
        if step < 2:
            for sequence in sequences:
                repeat = 1 if step == 0 else rectangle.num_steps - 1
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
        shape = StepShape(rows, rows * tokens, rows * tokens if step == 0 else 0, rows * (width + step), pairs)
        # generate() looks at every step's output before it launches the next.
        yield environment.timeout(step_time.step_time(shape).alone_s)
        recorder.next_seq()
        for sequence in sequences:
            if step < sequence.output_tokens:
                recorder.emitted(sequence.row, environment.now)
        recorder.output(number, environment.now)
    for sequence in sequences:
        recorder.release(sequence.row, rectangle.width_at(rectangle.num_steps - 1), 0)
        arrivals.ended(sequence, environment.now)


def _record_growth(recorder: RecordingBuilder, batch: StaticBatch, step: int) -> None:
    """Report the memory that a step adds: the whole row at first, then, in a dynamic cache, a column."""
    rectangle = batch.rectangle
    position = 0 if step == 0 else rectangle.prompt_width + step - 1
    length = rectangle.width_at(0) if step == 0 else 1
    for row, sequence in enumerate(batch.sequences):
        recorder.append_extent(sequence.row, position, rectangle.address(row) + position, length, length)


def _breakdown(rectangle: Rectangle, step: int, capacity_slots: int) -> Breakdown:
    slots = [0] * NUM_STATES
    held = rectangle.slots_at(step)
    slots[SlotState.TOKEN], slots[SlotState.RESERVED] = held.token, held.reserved
    slots[SlotState.INTERNAL], slots[SlotState.PADDING] = held.internal, held.padding
    slots[SlotState.FREE] = capacity_slots - rectangle.num_rows * rectangle.width_at(step)
    return Breakdown(slots=np.array(slots))
