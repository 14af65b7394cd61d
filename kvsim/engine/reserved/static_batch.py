"""Static batching as in `generate()`: sequences wait for a batch, are padded to the longest prompt, and end together.

The memory of a batch is a rectangle whose rows are its sequences, and whose columns are their tokens. Step 0 is the
prefill: it writes as many columns as the longest prompt has tokens, and yields the first output token of every row.
Each further step writes one more column. The KV of a row's last token is never written. A dynamic cache grows by a
column in each step; a preallocated cache has columns for the longest answer from the beginning.
"""

from __future__ import annotations

import math

from kvsim import steptime
from kvsim.engine import clock, journal, length_index, scheduler, waiting_queue
from kvsim.engine.clock import ANSWERED, BATCHED, CHECK, FULL, IDLE, REACHED, STALLED
from kvsim.engine.length_index import NO_SEQUENCE
from kvsim.engine.linked_list import HEAD
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.memory import MemoryManager
from kvsim.engine.records import Sequence
from kvsim.engine.state import ABORTED, FINISHED, RUNNING, Engine
from kvsim.steptime import StepShape

_HALF_ULP_OF_ONE = 2.0**-53
"""Half of the distance from 1.0 to the next larger float."""


@part
def advance(engine: Engine, until_s: float) -> int:  # noqa: PLR0911  one return for each outcome
    """Run until the caller has to act, and return the outcome (see `clock.IDLE`). After the outcome `BATCHED`, the
    caller must write `Engine.first_uses`: for each step of the new batch, the additional time if it uses kernels for
    the first time.
    """
    settings, state, batch = engine.settings, engine.state, engine.rectangle
    while clock.has_room(engine):
        if batch.num_rows > 0 and batch.step == batch.num_steps:
            _end_batch(engine)
            if settings.answers:
                return ANSWERED
        if state.host_s >= until_s:
            return REACHED
        num_ended = state.num_ended
        clock.take_arrivals(engine)
        if settings.answers and state.num_ended > num_ended:
            return ANSWERED  # a refused request has ended on arrival
        if batch.num_rows == 0:
            if _form_batch(engine):
                return BATCHED
            if state.num_waiting > 0 and (state.num_waiting >= settings.batch_size or state.host_s >= _due_s(engine)):
                state.stalled_sequence = waiting_queue.peek(engine).number
                return STALLED
            wake_s = next_due_s(engine)
            if wake_s == math.inf:
                return IDLE
            if wake_s >= until_s:
                return REACHED
            # Adding the difference may round to just before that time.
            state.host_s += max(wake_s - state.host_s, _ulp(wake_s))
            continue
        _take_step(engine)
        if settings.checking:
            return CHECK
    return FULL


@part
def row_slots_at(engine: Engine, step: int) -> int:
    """Return the number of slots that every row of the batch has during step `step` of the batch, counted from 0."""
    batch = engine.rectangle
    return batch.stride if engine.settings.preallocated else batch.prompt_width + step


@part
def _form_batch(engine: Engine) -> bool:
    """Form a batch if enough sequences wait or the oldest has waited for `timeout_s`. Return False if no batch is due,
    or if there is no room for any sequence.
    """
    settings, state, batch = engine.settings, engine.state, engine.rectangle
    if state.num_waiting == 0 or (state.num_waiting < settings.batch_size and state.host_s < _due_s(engine)):
        return False
    batch.num_rows = batch.prompt_width = batch.most_new_tokens = 0
    if settings.sort_by_length:
        _choose_similar_lengths(engine)
    else:
        number = waiting_queue.peek(engine).number
        while number != HEAD and _join(engine, engine.sequences[number]):
            number = engine.sequences[number].next
    if batch.num_rows == 0:
        return False
    for row in range(batch.num_rows):
        sequence = engine.sequences[engine.running[row]]
        waiting_queue.remove(engine, sequence)
        if settings.sort_by_length:
            length_index.remove(engine, sequence)
    _begin_batch(engine)
    return True


@part
def _choose_similar_lengths(engine: Engine) -> None:
    """Fill the batch with the sequences whose prompt lengths are closest to that of the oldest waiting sequence. Among
    equally close ones, the one that arrived first comes first.
    """
    width = waiting_queue.peek(engine).prompt_tokens
    for distance in range(max(width, len(engine.buckets) - width)):  # up to the shortest and the longest prompt
        shorter = length_index.first_at(engine, width - distance)
        longer = length_index.first_at(engine, width + distance) if distance > 0 else NO_SEQUENCE
        while shorter != NO_SEQUENCE or longer != NO_SEQUENCE:
            sequence = engine.sequences[length_index.earlier(engine, shorter, longer)]
            if not _join(engine, sequence):
                return
            if sequence.number == shorter:
                shorter = sequence.next_in_bucket
            else:
                longer = sequence.next_in_bucket


@part
def _join(engine: Engine, sequence: Sequence) -> bool:
    """Add a sequence to the batch as a row. Return False if the batch has all of its rows or, with `memory_guard`, if
    the rectangle might become too large for the memory.

    Output lengths are not known in advance, so the guard counts the largest number of output tokens that any row
    allows, minus one, because a row's last token has no KV.
    """
    settings, batch = engine.settings, engine.rectangle
    wider = max(batch.prompt_width, sequence.prompt_tokens)
    longer = max(batch.most_new_tokens, sequence.limit_tokens - sequence.prompt_tokens)
    too_large = settings.memory_guard and (batch.num_rows + 1) * (wider + longer - 1) > settings.num_units
    if batch.num_rows == settings.batch_size or too_large:
        return False
    engine.running[batch.num_rows] = sequence.number
    batch.num_rows += 1
    batch.prompt_width, batch.most_new_tokens = wider, longer
    return True


@part
def _begin_batch(engine: Engine) -> None:
    """Set the figures of a new batch, among these `Rectangle.num_steps`: the number of steps until its last row ends,
    or fewer if the memory is full before.

    It is 0 if the prompts do not fit or, with a preallocated cache, if the longest allowed answer does not fit.
    """
    settings, state, batch = engine.settings, engine.state, engine.rectangle
    state.num_running, batch.num_live = batch.num_rows, batch.num_rows
    batch.live_prompt_tokens = batch.live_new_tokens = batch.longest_answer = batch.step = 0
    for row in range(batch.num_rows):
        sequence = engine.sequences[engine.running[row]]
        sequence.status = RUNNING
        new_tokens = sequence.end_tokens - sequence.prompt_tokens
        batch.live_prompt_tokens += sequence.prompt_tokens
        batch.live_new_tokens += new_tokens
        batch.longest_answer = max(batch.longest_answer, new_tokens)
        batch.next_end = new_tokens if row == 0 else min(batch.next_end, new_tokens)
    columns = settings.num_units // batch.num_rows
    if settings.preallocated:
        batch.stride = batch.prompt_width + batch.most_new_tokens - 1
        batch.num_steps = batch.longest_answer if batch.stride <= columns else 0
    else:
        batch.stride = batch.prompt_width + batch.longest_answer - 1
        batch.num_steps = max(0, min(batch.longest_answer, columns - batch.prompt_width + 1))


@part
def _take_step(engine: Engine) -> None:
    state, batch = engine.state, engine.rectangle
    step, rows, width = batch.step, batch.num_rows, batch.prompt_width
    if step == batch.next_end:
        _drop_ended(engine)
    state.seq += 1
    if step < 2:  # the rows of step 1 are repeated for all later steps
        _record_rows(engine)
    tokens = rows * width if step == 0 else rows
    # In order: sequences, tokens, prefill tokens, context tokens, attention pairs, time to choose kernels, time to
    # build kernels. The rest is 0, because a static batch has no shared slots, no sequences that join, and no images.
    shape = StepShape(
        rows, tokens, tokens if step == 0 else 0, rows * (width + step),
        rows * width * (width + 1) // 2 if step == 0 else 0,
        engine.first_uses[step], engine.first_uses[batch.num_steps + step], 0, 0, 0, 0, 0,
    )  # fmt: skip
    _count_slots(engine)
    padding = batch.num_live * width - batch.live_prompt_tokens + (rows - batch.num_live) * (width + step)
    clock.write_step(engine, shape, padding)
    cost = clock.step_time(engine.step_time_models[0], shape)
    gpu_s = cost.gpu_s
    for index in range(1, len(engine.step_time_models)):  # stages compute one after the other
        gpu_s += clock.passing_s(engine.step_time_models[index], tokens)
        gpu_s += clock.step_time(engine.step_time_models[index], shape).gpu_s
    state.host_s += steptime.larger(cost.prepare_s + gpu_s, cost.launch_s) + cost.turnaround_s
    state.seq += 1
    output = engine.outputs[state.num_outputs - state.first_output]
    output.seq, output.time_s = state.seq, state.host_s
    state.num_outputs += 1
    if step == 0:
        for row in range(rows):
            engine.times[engine.running[row]].first_token_s = state.host_s
    batch.step += 1
    if batch.step == batch.num_steps:  # the batch leaves an empty pool, so all other figures are 0
        clock.begin_gap(engine, state.host_s).free_units = engine.settings.num_units


@part
def _drop_ended(engine: Engine) -> None:
    """Count again the rows that still generate in the next step (`Rectangle.step`), and their tokens. Set
    `Rectangle.next_end` to the first step in which fewer rows generate.
    """
    batch = engine.rectangle
    batch.num_live = batch.live_prompt_tokens = batch.live_new_tokens = 0
    batch.next_end = batch.longest_answer
    for row in range(batch.num_rows):
        sequence = engine.sequences[engine.running[row]]
        new_tokens = sequence.end_tokens - sequence.prompt_tokens
        if new_tokens > batch.step:
            batch.num_live += 1
            batch.live_prompt_tokens += sequence.prompt_tokens
            batch.live_new_tokens += new_tokens
            batch.next_end = min(batch.next_end, new_tokens)


@part
def _count_slots(engine: Engine) -> None:
    settings, state, batch = engine.settings, engine.state, engine.rectangle
    state.num_free = settings.num_units - batch.num_rows * row_slots_at(engine, batch.step)
    state.written = state.useful = batch.live_prompt_tokens + batch.num_live * batch.step
    if settings.preallocated:
        state.useful += batch.live_new_tokens - batch.num_live * (batch.step + 1)


@part
def _record_rows(engine: Engine) -> None:
    """Record the slots and tokens of every row. Call this in step 0, which computes the prompts, and in step 1, whose
    rows are repeated for all later steps.
    """
    settings, state, batch = engine.settings, engine.state, engine.rectangle
    step, width, stride = batch.step, batch.prompt_width, row_slots_at(engine, batch.num_steps - 1)
    repeat = 1 if step == 0 else batch.num_steps - 1
    for row in range(batch.num_rows):
        sequence = engine.sequences[engine.running[row]]
        if step == 0:
            engine.times[sequence.number].first_scheduled_s = state.host_s
            journal.append_extent(
                engine, sequence, 0, row * stride, row_slots_at(engine, 0), row_slots_at(engine, 0), 1
            )
        elif not settings.preallocated:
            journal.append_extent(engine, sequence, width, row * stride + width, 1, 1, repeat)
    if settings.records_schedule:
        for row in range(batch.num_rows):
            sequence = engine.sequences[engine.running[row]]
            journal.scheduled(engine, sequence, 0 if step == 0 else width, width if step == 0 else 1, repeat)


@part
def _end_batch(engine: Engine) -> None:
    """End all sequences of the batch: as finished or, if the memory was full before the last row ended, as aborted."""
    settings, state, batch = engine.settings, engine.state, engine.rectangle
    is_complete = batch.num_steps == batch.longest_answer
    for row in range(batch.num_rows):
        sequence = engine.sequences[engine.running[row]]
        scheduler.end(engine, sequence, FINISHED if is_complete else ABORTED, state.host_s)
        sequence.num_tokens = min(sequence.end_tokens, sequence.prompt_tokens + batch.num_steps)
        if batch.num_steps > 0:
            journal.release_extent(engine, sequence, row_slots_at(engine, batch.num_steps - 1))
    state.num_admitted += batch.num_rows
    state.num_running = batch.num_rows = 0
    state.num_free = settings.num_units
    state.written = state.useful = 0


@part
def _due_s(engine: Engine) -> float:
    """Return the time, in seconds, at which the oldest waiting sequence has waited for `timeout_s`, so that a batch is
    formed even if it is not full. A sequence must wait.
    """
    return engine.times[waiting_queue.peek(engine).number].arrival_s + engine.settings.timeout_s


@part
def next_due_s(engine: Engine) -> float:
    """Return the time, in seconds, of the next arrival or of the timeout of the oldest waiting sequence, whichever is
    earlier: a batch may be formed then. Return infinity if there is neither.
    """
    arrival_s = clock.next_arrival_s(engine)
    return min(arrival_s, _due_s(engine)) if engine.state.num_waiting > 0 else arrival_s


@part
def _ulp(value: float) -> float:
    """Return a number that, added to `value`, gives the next larger float: machine code has no `nextafter`."""
    if value == 0.0:
        return _HALF_ULP_OF_ONE
    # The product is more than half of the distance to the next float, so the sum is rounded to that float.
    return value + value * _HALF_ULP_OF_ONE * (1.0 + 2.0 * _HALF_ULP_OF_ONE) - value


RECTANGLE = MemoryManager(name="static")
