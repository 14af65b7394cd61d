"""Static batching on a clock: `generate()` on one padded batch after another."""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np
import simpy

from kvsim.kernels import Batch, FirstUses, KernelsSeen
from kvsim.memory.padded import Rectangle
from kvsim.memory.waste import NUM_STATES, Breakdown, SlotState
from kvsim.policies import Static
from kvsim.recording import Pool, RequestStatus
from kvsim.scheduling.static import StaticBatch, StaticScheduler
from kvsim.simulation.arrivals import Arrivals
from kvsim.simulation.recorder import Recorder
from kvsim.simulation.tally import Tally
from kvsim.steptime import StepShape, StepTimeModel


def static_engine(
    environment: simpy.Environment,
    policy: Static,
    kernels: KernelsSeen,
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
    now_s = 0.0  # SimPy's clock, but for the rounding of differences that batches taken at once add to it
    while True:
        for sequence, _ in arrivals.until(now_s):
            scheduler.add(sequence)
        batch = scheduler.next_batch(now_s)
        if batch is None:
            wake_s = min((time_s for time_s in (arrivals.next_s, scheduler.due_s) if time_s is not None), default=None)
            if wake_s is None:
                return
            # Adding the difference to the clock may round to just before that time.
            delay_s = max(wake_s - now_s, math.ulp(wake_s))
            yield environment.timeout(delay_s)
            now_s += delay_s
        elif leap and not check and isinstance(recorder, Tally):
            now_s = _measure_batch(now_s, batch, pool, step_time, arrivals, recorder, scheduler, kernels)
            yield environment.timeout(max(now_s - environment.now, 0.0))
        else:
            yield from _run_batch(
                environment, batch, pool, step_time, arrivals, recorder, scheduler, kernels, check=check
            )
            now_s = environment.now


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
    for step, first in enumerate(_first_uses(rectangle, num_steps, kernels)):
        for sequence, _ in arrivals.until(environment.now):
            scheduler.add(sequence)
        recorder.next_seq()
        start_s = environment.now
        tokens = width if step == 0 else 1
        if step == 0 or (step == 1 and not rectangle.preallocated):
            _record_growth(recorder, batch, step, num_steps, stride)
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
        shape = StepShape(rows, rows * tokens, prefill_tokens, rows * (width + step), pairs, *first)
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


def _measure_batch(
    now_s: float,
    batch: StaticBatch,
    pool: Pool,
    step_time: StepTimeModel,
    arrivals: Arrivals,
    tally: Tally,
    scheduler: StaticScheduler,
    kernels: KernelsSeen,
) -> float:
    """Run a batch that begins now as `_run_batch` does, all steps at once; return when it ends."""
    rectangle, sequences = batch.rectangle, batch.sequences
    rows, width = len(sequences), rectangle.prompt_width
    assert pool.num_units is not None
    num_steps = rectangle.steps_within(pool.num_units)
    status = RequestStatus.FINISHED if num_steps == rectangle.num_steps else RequestStatus.ABORTED
    if num_steps:
        steps = np.arange(num_steps)
        tokens = np.where(steps == 0, rows * width, rows)
        first = _first_uses(rectangle, num_steps, kernels)
        pairs = np.where(steps == 0, rows * width * (width + 1) // 2, 0)
        columns = np.full(num_steps, rows), tokens, np.where(steps == 0, tokens, 0), rows * (width + steps), pairs
        alone_s = step_time.step_time(StepShape(*columns, *map(np.array, zip(*first, strict=True)))).alone_s  # type: ignore[arg-type]
        # Added up one after the other, as a clock does.
        time_s = np.cumsum(np.concatenate(([now_s], np.broadcast_to(alone_s, num_steps))))
        waiting = np.full(num_steps, len(scheduler.waiting))
        step = 0
        while True:
            step = max(step, int(np.searchsorted(time_s[:num_steps], arrivals.visible_s)))
            if step == num_steps:
                break
            for sequence, _ in arrivals.until(float(time_s[step])):
                scheduler.add(sequence)
            waiting[step:] = len(scheduler.waiting)
        tally.batch(rectangle, time_s, waiting, pool.num_units)
        for sequence in sequences:
            tally.scheduled_once(sequence.row, now_s)
            tally.emitted(sequence.row, float(time_s[1]), min(num_steps, sequence.output_tokens))
        now_s = float(time_s[-1])
    for sequence in sequences:
        arrivals.ended(sequence, now_s, status)
    return now_s


def _first_uses(rectangle: Rectangle, num_steps: int, kernels: KernelsSeen) -> list[FirstUses]:
    """What each step of a batch that gets so far needs for the first time."""
    if not num_steps:
        return []
    batch = Batch(
        rows=rectangle.num_rows,
        prompt_width=rectangle.prompt_width,
        new_tokens=num_steps,
        padded=rectangle.is_padded,
        preallocated=rectangle.preallocated,
    )
    return kernels.run(batch, stride=rectangle.stride)


def _record_growth(recorder: Recorder, batch: StaticBatch, step: int, num_steps: int, stride: int) -> None:
    """Report the memory that is added: the whole row at first, then, in a dynamic cache, a column in every step."""
    assert not isinstance(recorder, Tally), "it is told of whole batches"
    rectangle = batch.rectangle
    position = 0 if step == 0 else rectangle.prompt_width
    length, repeat = (rectangle.width_at(0), 1) if step == 0 else (1, num_steps - 1)
    for row, sequence in enumerate(batch.sequences):
        recorder.append_extent(sequence.row, position, row * stride + position, length, length, repeat)


def _breakdown(rectangle: Rectangle, step: int, capacity_slots: int) -> Breakdown:
    slots = [0] * NUM_STATES
    held = rectangle.slots_at(step)
    slots[SlotState.TOKEN], slots[SlotState.RESERVED] = held.token, held.reserved
    slots[SlotState.INTERNAL], slots[SlotState.PADDING] = held.internal, held.padding
    slots[SlotState.FREE] = capacity_slots - rectangle.num_rows * rectangle.width_at(step)
    return Breakdown(slots=np.array(slots))
