"""The engine loop on two clocks, as in `kvsim.simulation.continuous`: arrivals, steps, outputs.

A run is advanced in slices, so that whoever drives it can report progress, be interrupted, and take what was recorded.
"""

from __future__ import annotations

from kvsim import steptime
from kvsim.simulation.compiled import journal, memory, scheduler, waiting
from kvsim.simulation.compiled.engine import Engine
from kvsim.simulation.compiled.jit import compiled_as, jit, usable_when_compiled
from kvsim.steptime import Roofline, StepShape, Strain

ENDED, PAUSED, STALLED = range(3)
"""Why a slice ended: every request has; there may be no room to write down a step; nothing can ever be scheduled."""

for _helper in (steptime.captured_size, steptime.size_index, steptime.overlapped, steptime.larger, steptime.smaller):
    usable_when_compiled(_helper)
compiled_as(steptime.looked_up, lambda table, index: table[index])
_step_time = jit(Roofline.step_time)
_strained_gpu_s = jit(steptime.strained_gpu_s)
_entry_s = jit(Roofline.entry_s)


@jit
def advance(engine: Engine, memory_margin: int) -> int:
    """Run until nothing is left, or no room to write down a step, which may change ownership `memory_margin` times."""
    settings, state = engine.settings[0], engine.state[0]
    depth = 2 if settings.ahead else 1
    while _has_room(engine, memory_margin):
        if state.num_in_flight == 0 and not scheduler.has_work(engine):
            if state.num_arrived == settings.num_requests:
                return ENDED
            state.host_s = max(state.host_s, engine.times[state.num_arrived + 1].arrival_s)
        _take_arrivals(engine)
        if scheduler.has_work(engine):
            state.seq += 1
            emitting = engine.emitting[state.next_launched]
            num_emitting = scheduler.schedule(engine, emitting)
            if (
                state.num_in_batch == 0
                and state.num_preempted == 0
                and state.num_running == 0
                and state.num_waiting > 0
            ):
                state.stalled_head = waiting.peek(engine)
                return STALLED
            _launch(engine, num_emitting)
            if state.num_in_flight < depth and (state.num_in_batch > 0 or scheduler.has_work(engine)):
                continue
        elif state.num_in_flight == 0:
            continue
        _finish_oldest(engine)
    return PAUSED


@jit
def _has_room(engine: Engine, memory_margin: int) -> bool:
    """Whether another step can be written down, whatever happens in it."""
    settings, state = engine.settings[0], engine.state[0]
    if state.num_steps - state.first_step == len(engine.steps):
        return False
    return not settings.recording or (
        state.num_memory_rows + memory_margin <= len(engine.memory_rows)
        and state.num_schedule_rows + settings.max_num_seqs <= len(engine.schedule_rows)
    )


@jit
def _take_arrivals(engine: Engine) -> None:
    """Queue everybody who has arrived; the host takes time for each."""
    settings, state = engine.settings[0], engine.state[0]
    now_s = state.host_s
    while state.num_arrived < settings.num_requests and state.num_arrived - state.num_ended < settings.limit:
        node = state.num_arrived + 1
        times, sequence = engine.times[node], engine.sequences[node]
        if times.arrival_s > now_s:
            return
        state.num_arrived += 1
        state.seq += 1
        times.arrival_seq = state.seq
        if not sequence.is_refused:
            state.host_s += _entry_s(engine.coefficients[0], sequence.prompt_tokens)
        if settings.stamp_at_entry:
            times.arrival_s = state.host_s
        elif settings.closed_loop:
            times.arrival_s = now_s
        if sequence.is_refused:
            state.num_ended += 1
        else:
            waiting.push(engine, node)


@jit
def _launch(engine: Engine, num_emitting: int) -> None:
    """Launch the step that was scheduled: the GPU begins as soon as it is free, and ends no sooner than the launch."""
    state = engine.state[0]
    launched = engine.launched[state.next_launched]
    launched.num_emitting = num_emitting
    launched.is_recorded = state.num_in_batch > 0 or state.num_preempted > 0
    if launched.is_recorded:
        shape = _record(engine)
        if shape.num_tokens > 0:
            cost = _step_time(engine.coefficients[0], shape)
            begin_s = max(state.host_s + cost.prepare_s, state.gpu_free_s)
            gpu_s, strain = _strained_gpu_s(cost, begin_s, Strain(state.strain, state.strained_at_s))
            state.strain, state.strained_at_s = strain.level, strain.at_s
            state.gpu_free_s = max(begin_s + gpu_s, state.host_s + cost.launch_s)
            state.host_s += cost.launch_s
            launched.turnaround_s = cost.turnaround_s
        else:
            state.gpu_free_s = max(state.host_s, state.gpu_free_s)
            launched.turnaround_s = 0.0
        launched.done_s = state.gpu_free_s
    state.next_launched = 1 - state.next_launched
    state.num_in_flight += 1


@jit
def _record(engine: Engine) -> StepShape:
    """Write down the step that was scheduled; return what it holds."""
    settings, state = engine.settings[0], engine.state[0]
    num_prefill_tokens = context_tokens = attention_pairs = 0
    for index in range(state.num_in_batch):
        node, tokens = engine.batch[index], engine.batch_tokens[index]
        sequence = engine.sequences[node]
        before = sequence.computed - tokens
        if settings.recording:
            journal.scheduled(engine, node, before, tokens)
        context_tokens += sequence.computed
        if tokens > 1 or before < sequence.prompt_tokens:
            num_prefill_tokens += tokens
            attention_pairs += tokens * before + tokens * (tokens + 1) // 2
    step = engine.steps[state.num_steps - state.first_step]
    step.seq, step.start_s = state.seq, state.host_s
    step.prefill_tokens, step.num_tokens = num_prefill_tokens, state.num_tokens_in_batch
    held_slots = (settings.num_units - state.num_free) * settings.unit_tokens
    shared_tokens = 0 if settings.contiguous else max(context_tokens - held_slots, 0)
    step.context_tokens, step.attention_pairs, step.shared_tokens = context_tokens, attention_pairs, shared_tokens
    step.num_scheduled, step.preempted = state.num_in_batch, state.num_preempted
    step.running, step.waiting = state.num_running, state.num_waiting
    step.free_units, step.cached_units = state.num_free, state.num_cached
    step.unusable_units = memory.unusable_units(engine, waiting.peek(engine)) if state.num_waiting > 0 else 0
    step.num_admitted = state.num_admitted
    step.num_new_seqs = state.num_new_seqs
    step.written, step.requested, step.useful = state.written, state.requested, state.useful
    state.num_steps += 1
    memory.settle_last_slots(engine, state.host_s)
    return StepShape(
        state.num_in_batch, state.num_tokens_in_batch, num_prefill_tokens, context_tokens, attention_pairs, 0, 0,
        shared_tokens, step.num_new_seqs,
    )  # fmt: skip


@jit
def _finish_oldest(engine: Engine) -> None:
    """Await the oldest step under way and process its outputs."""
    state = engine.state[0]
    # Two steps at most are under way: the oldest is where the next but one will be, or, if it is alone, the next.
    index = state.next_launched if state.num_in_flight == 2 else 1 - state.next_launched
    launched = engine.launched[index]
    if launched.is_recorded:
        state.host_s = max(state.host_s, launched.done_s)
    state.seq += 1
    state.num_in_flight -= 1
    scheduler.update(engine, engine.emitting[index], launched.num_emitting)
    if launched.is_recorded:
        output = engine.outputs[state.num_outputs - state.first_output]
        output.seq, output.time_s = state.seq, state.host_s
        state.num_outputs += 1
        state.host_s += launched.turnaround_s
