"""The engine loop with simulated time: the host schedules and launches steps, and the GPU computes them.

The kernels of a step begin as soon as the GPU is free, even while the host still launches the rest of the step. They
end no earlier than the host's launch of the step. With asynchronous scheduling, the host schedules a step while the GPU
computes the step before. `Scheduler.awaits_output` tells whether the host processes the output of the oldest step in
flight before it schedules another step.

A run is advanced in slices. A slice ends when the caller has to read the recorded rows, so that there is room for more.
`advance` also returns within a slice whenever its caller has to act.
"""

from __future__ import annotations

import math

from kvsim import steptime
from kvsim.engine import fast_forward, host_swap, in_flight, journal, length_index, totals, waiting_queue
from kvsim.engine.machine_code.compiled import compiled_as, part
from kvsim.engine.recorded_rows import Gap, QueuesAndSlots
from kvsim.engine.records import NO_FAILURE
from kvsim.engine.state import Engine
from kvsim.steptime import PowerThrottle, Roofline, StepShape, StepTime

IDLE, SCHEDULED, UPDATED, FULL, REACHED, ANSWERED, CHECK, STALLED, BATCHED, FAILED, NEWS, LAUNCHED = range(12)
"""Results of `advance` and `next_moment`, which say why control returns to the caller:

- `IDLE`: nothing is left to do until another request is sent.
- `SCHEDULED`: a step was scheduled.
- `UPDATED`: an output was processed.
- `FULL`: there may be no room to record another step.
- `REACHED`: the clock has reached the given time.
- `ANSWERED`: a request has ended, and its client acts on that.
- `CHECK`: a step was scheduled, and the caller checks the bookkeeping (`Settings.checking`).
- `STALLED`: the head of the queue can never be scheduled.
- `BATCHED`: a static batch was formed.
- `FAILED`: the run ends here; `State.failure` is the reason.
- `NEWS`: transfers have begun that other servers must know of.
- `LAUNCHED`: a step was scheduled that waits for the steps of other ranks.
"""
_SHARE_AFTER_KERNELS = 0.58
"""Share of a worker's host time that follows the kernels of a step, in a synchronous pipeline: the rest precedes them.

The worker passes its result to the next stage before it prepares the next step. Measured in vLLM 0.25.1 on two hosts
with two H200; see Pipelines in `docs/accuracy.md`.
"""


@part
def advance(engine: Engine, until_s: float) -> int:
    """Run until the caller has to act, or the clock reaches `until_s` seconds; return the reason (see `IDLE`). A step
    that begins before `until_s` may end later.
    """
    outcome = _advance(engine, until_s)
    fast_forward.catch_up_from(engine, 0, engine.state.num_scheduled)
    return outcome


@part
def _advance(engine: Engine, until_s: float) -> int:  # noqa: PLR0911  one return for each outcome
    settings, state = engine.settings, engine.state
    while has_room(engine):
        num_ended = state.num_ended
        if not state.awaiting:
            if state.host_s >= until_s:
                return REACHED
            if state.num_in_flight == 0 and not engine.scheduler.has_work(engine):
                next_s = next_arrival_s(engine)
                if next_s == math.inf or (settings.lockstep and next_s > state.host_s):
                    return IDLE
                if next_s >= until_s:
                    return REACHED
                state.host_s = max(state.host_s, next_s)
            engine.memory.wait_for_transfers(engine, until_s)
            if engine.memory.is_asleep(engine) or state.host_s >= until_s:
                return IDLE if engine.memory.is_asleep(engine) else REACHED
            take_arrivals(engine)
            if settings.answers and state.num_ended > num_ended:
                return ANSWERED  # a refused request has ended on arrival
        moment = next_moment(engine)
        if moment == SCHEDULED:
            outcome = _after_step(engine)
            if outcome != SCHEDULED:
                return outcome
        elif settings.answers and state.num_ended > num_ended:
            return ANSWERED
        elif settings.users_ask_again:
            send_next_requests(engine, state.num_ended - num_ended)
    return FULL


@part
def next_arrival_s(engine: Engine) -> float:
    """Return the arrival time of the next request that was sent, in seconds; infinity if all have arrived."""
    state = engine.state
    if state.num_arrived == state.num_submitted:
        return math.inf
    return engine.times[engine.lines[state.num_arrived].arrived].arrival_s


@part
def send_next_requests(engine: Engine, num_users: int) -> None:
    """Send the next requests of the workload, one for each of `num_users` users who have an answer, while any are left.
    They arrive after the think time (`Settings.think_s`).
    """
    state = engine.state
    for _ in range(min(num_users, len(engine.lines) - state.num_submitted)):
        engine.times[engine.lines[state.num_submitted].arrived].arrival_s = state.host_s + engine.settings.think_s
        state.num_submitted += 1


@part
def _after_step(engine: Engine) -> int:
    """Return the reason why the caller has to act after a step; `SCHEDULED` if there is none and the run goes on."""
    state = engine.state
    if state.failure != NO_FAILURE:
        return FAILED
    if state.num_in_batch == 0 and state.num_preempted == 0 and engine.scheduler.is_stalled(engine):
        return STALLED
    if engine.settings.checking:
        return CHECK
    if engine.settings.lockstep:
        return LAUNCHED
    return NEWS if engine.memory.has_news(engine) else SCHEDULED


@part
def next_moment(engine: Engine) -> int:
    """Schedule a step or process the output of the oldest step in flight: the one that vLLM's engine does next. Return
    `SCHEDULED` or `UPDATED`; `IDLE` if there is neither work to schedule nor a step in flight.

    One call of vLLM's engine does both: it schedules a step if there is work, and then processes an output, unless it
    may schedule another step first (`Scheduler.awaits_output`).
    """
    state = engine.state
    if not state.awaiting and engine.scheduler.has_work(engine):
        schedule(engine)
        state.awaiting = engine.scheduler.awaits_output(engine)
        return SCHEDULED
    if state.num_in_flight == 0:
        return IDLE
    state.awaiting = False
    finish_oldest(engine)
    return UPDATED


@part
def take_arrivals(engine: Engine) -> None:
    """Queue all requests that have arrived. A refused one ends at once. Each queued one advances the host's clock by
    the time that adding it takes, except with static batches.
    """
    settings, state = engine.settings, engine.state
    now_s = state.host_s
    while state.num_arrived < state.num_submitted:
        sequence = engine.sequences[engine.lines[state.num_arrived].arrived]
        times = engine.times[sequence.number]
        if times.arrival_s > now_s:
            return
        state.num_arrived += 1
        state.seq += 1
        times.arrival_seq = state.seq
        if not sequence.is_refused and settings.batch_size == 0:
            state.host_s += entry_s(engine.step_time_models[0], sequence.prompt_tokens)
        if settings.stamp_at_entry:
            times.arrival_s = state.host_s
        if sequence.is_refused:
            engine.lines[state.num_ended].ended = sequence.number
            state.num_ended += 1
            continue
        engine.scheduler.add(engine, sequence)
        if settings.sort_by_length:
            length_index.add(engine, sequence)


@part
def schedule(engine: Engine) -> None:
    """Schedule a step, record it and launch it. A step without tokens is in flight too, but takes no time."""
    settings, state = engine.settings, engine.state
    state.seq += 1
    launched = engine.launched[state.next_launched]
    engine.scheduler.schedule(engine)
    launched.is_recorded = state.num_in_batch > 0 or state.num_preempted > 0 or settings.records_every_step
    if not launched.is_recorded:
        return
    if settings.records_schedule:
        for index in range(state.num_listed):
            sequence, tokens = engine.sequences[engine.batch[index]], engine.batch_tokens[index]
            journal.scheduled(engine, sequence, sequence.computed - tokens, tokens, 1)
    shape = record_step(engine)
    engine.memory.start_transfers(engine)
    ready_s, launch_s = state.host_s, 0.0
    # In a synchronous pipeline every worker waits for the output of a step before it prepares the next.
    awaits_outputs = len(engine.stages) > 1 and settings.feedback == 0
    for index in range(len(engine.stages)):
        stage = engine.stages[index]
        cost = step_time(engine.step_time_models[index], shape) if state.num_in_batch > 0 else steptime.NO_TIME
        worker_s = max(cost.prepare_s - cost.launch_s, 0.0) if awaits_outputs else 0.0
        free_s = 0.0 if awaits_outputs and state.num_in_batch == 0 else stage.free_s
        if index == 0:
            launch_s, launched.turnaround_s = cost.launch_s, cost.turnaround_s
            ready_s += cost.prepare_s - _SHARE_AFTER_KERNELS * worker_s
            if settings.feedback > 0:
                ready_s = max(ready_s, engine.launched[_fed_back_index(engine)].done_s)
            begin_s = max(ready_s, free_s) + host_swap.transfer_s(engine)
            begin_s = max(begin_s, engine.memory.kernels_begin_s(engine, cost.gpu_s))
        else:
            begin_s = max(ready_s + passing_s(engine.step_time_models[index], shape.num_tokens), free_s)
        gpu_s, throttle = steptime.throttled_gpu_s(cost, begin_s, PowerThrottle(stage.throttle, stage.throttled_at_s))
        stage.throttle, stage.throttled_at_s = throttle.level, throttle.at_s
        ready_s = max(begin_s + gpu_s, state.host_s + cost.launch_s)
        stage.free_s = max(stage.free_s, ready_s + worker_s)
    launched.done_s = ready_s
    state.host_s += launch_s
    engine.memory.poll_transfers(engine)


@part
def _fed_back_index(engine: Engine) -> int:
    """Return the index in `Engine.launched` of the step whose tokens the newest needs, if `Settings.feedback` > 0."""
    index = engine.state.next_launched - 1 - engine.settings.feedback
    return index if index >= 0 else index + engine.settings.most_in_flight


@part
def finish_oldest(engine: Engine) -> None:
    """Wait for the oldest step in flight and process its outputs. Record them if the step is recorded."""
    settings, state = engine.settings, engine.state
    launched = engine.launched[in_flight.oldest(engine)]
    counts_outputs = settings.num_drafts > 0 and settings.records_schedule and launched.is_recorded
    if launched.is_recorded:
        state.host_s = max(state.host_s, launched.done_s)
    state.seq += 1
    processed_s = state.host_s  # an update that takes time does not delay its outputs
    if counts_outputs:
        journal.count_outputs(engine, -1)
    engine.scheduler.update(engine)
    if counts_outputs:
        journal.count_outputs(engine, 1)
    if launched.is_recorded:
        output = engine.outputs[state.num_outputs - state.first_output]
        output.seq, output.time_s = state.seq, processed_s
        state.num_outputs += 1
        if state.num_outputs == state.num_steps:
            totals.settle_unsure_slots(engine, processed_s)
            gap = begin_gap(engine, processed_s)
            gap.unusable_units = state.unusable_units if state.num_waiting > 0 else 0
            write_totals(engine, gap, 0)
        state.host_s += launched.turnaround_s


def step_time(model: steptime.StepTimeModel, shape: StepShape) -> StepTime:
    """Return the time of a step by a step-time model of any kind. Compiled code calls the roofline model instead."""
    return model.step_time(shape)


def entry_s(model: steptime.StepTimeModel, prompt_tokens: int) -> float:
    """Return the host time that adding a request takes, in seconds, by a step-time model of any kind."""
    return model.entry_s(prompt_tokens)


def passing_s(model: Roofline, num_tokens: int) -> float:
    """Return the time that sending the activations of a step to the next pipeline stage takes, in seconds."""
    return model.passing_s(num_tokens)


compiled_as(step_time, Roofline.step_time)
compiled_as(entry_s, Roofline.entry_s)
compiled_as(passing_s, Roofline.passing_s)
compiled_as(steptime.size_s, steptime.size_s_of_one)
for _function in (
    steptime.throttled_gpu_s, steptime.captured_size, steptime.size_place, steptime.overlapped, steptime.larger,
    steptime.smaller, steptime.host_times, steptime.attention_times, steptime.encoder_times,
):  # fmt: skip
    part(_function)


@part
def has_room(engine: Engine) -> bool:
    """Tell whether there is room for all rows that another step may record."""
    settings, state = engine.settings, engine.state
    return (
        state.num_steps - state.first_step < settings.most_steps
        and state.num_memory_rows <= settings.most_memory_rows
        and state.num_schedule_rows <= settings.most_schedule_rows
        and engine.encoder.state.num_rows <= engine.encoder.state.most_rows
        and engine.memory.has_room_for_rows(engine)
    )


@part
def record_step(engine: Engine) -> StepShape:
    """Append a row for the scheduled step to `Engine.steps`, and return the shape of the step."""
    state, encoder = engine.state, engine.encoder.state
    context_tokens = state.context_tokens + 2 * state.num_copied_slots  # a copy reads every byte and writes it again
    shape = StepShape(
        state.num_in_batch, state.num_tokens_in_batch, state.num_prefill_tokens, context_tokens,
        state.attention_pairs, 0.0, 0.0,
        engine.memory.shared_tokens(engine, context_tokens), state.num_new_seqs,
        encoder.step_images, encoder.step_tokens, encoder.step_pairs,
    )  # fmt: skip
    write_step(engine, shape, 0)
    totals.settle_unsure_slots(engine, state.host_s)
    return shape


@part
def write_step(engine: Engine, shape: StepShape, padding: int) -> None:
    """Append a row to `Engine.steps`: the shape of the step, the lengths of the queues, and the totals of the slots.
    `padding` is the number of padding slots in the pool.
    """
    state = engine.state
    step = engine.steps[state.num_steps - state.first_step]
    step.seq, step.start_s = state.seq, state.host_s
    step.num_scheduled, step.num_tokens = shape.num_seqs, shape.num_tokens
    step.prefill_tokens, step.context_tokens = shape.num_prefill_tokens, shape.context_tokens
    step.attention_pairs = shape.attention_pairs
    step.new_shape, step.new_kernels = shape.new_shape, shape.new_kernels
    step.shared_tokens, step.num_new_seqs = shape.shared_tokens, shape.num_new_seqs
    step.preempted = state.num_preempted
    state.unusable_units = 0
    if state.num_queued > 0:
        state.unusable_units = engine.memory.unusable_units(engine, waiting_queue.peek(engine))
    step.unusable_units = state.unusable_units
    step.swapped_out, step.swapped_in = state.num_swapped_out, state.num_swapped_in
    step.num_admitted = state.num_admitted
    write_totals(engine, step, padding)
    state.num_steps += 1


@part
def begin_gap(engine: Engine, begin_s: float) -> Gap:
    """Append a row to `Engine.gaps`, for the time from `begin_s` to the next step; return it."""
    state = engine.state
    gap = engine.gaps[state.num_gaps]
    state.num_gaps += 1
    gap.before, gap.begin_s = state.num_steps, begin_s
    return gap


@part
def write_totals(engine: Engine, row: QueuesAndSlots, padding: int) -> None:
    """Write queue lengths and slot totals to the row of a step or gap. `padding` is the number of padding slots."""
    state = engine.state
    row.running, row.waiting = engine.scheduler.num_running(engine), state.num_waiting
    row.free_units, row.cached_units = engine.memory.free_units(engine), engine.memory.cached_units(engine)
    row.free_windows, row.cached_windows = engine.memory.free_windows(engine), engine.memory.cached_windows(engine)
    row.written, row.useful = state.written, state.useful
    row.padding, row.rounding = padding, state.rounding
    row.shared, row.expired = totals.shared_slots(engine), engine.memory.expired_slots(engine)
