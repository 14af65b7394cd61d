"""The decisions of `kvsim.scheduling.continuous`: serve what runs, admit from the queue, take the outputs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvsim.simulation.compiled import memory, waiting
from kvsim.simulation.compiled.engine import FINISHED, PREEMPTED, RUNNING, WAITING, Engine
from kvsim.simulation.compiled.jit import jit


@jit
def has_work(engine: Engine) -> bool:
    """Whether another call of `schedule` is due."""
    state = engine.state[0]
    return state.num_running > 0 or state.num_waiting > 0 or state.unflushed


@jit
def schedule(engine: Engine, emitting: npt.NDArray[np.int32]) -> int:
    """Decide the next step and allocate its memory; return how many sequences are `emitting` an output in it."""
    settings, state = engine.settings[0], engine.state[0]
    state.num_in_batch = state.num_preempted = state.num_new_seqs = 0
    budget = _serve_running(engine, settings.max_num_batched_tokens)
    if state.num_preempted == 0:
        budget = _admit(engine, budget)
    state.num_tokens_in_batch = settings.max_num_batched_tokens - budget
    state.written += state.num_tokens_in_batch
    num_emitting = 0
    for index in range(state.num_in_batch):
        node = engine.batch[index]
        sequence = engine.sequences[node]
        sequence.computed += engine.batch_tokens[index]
        if sequence.computed >= sequence.num_tokens + sequence.placeholders:
            emitting[num_emitting] = node
            num_emitting += 1
            sequence.placeholders += settings.ahead
    state.unflushed = False
    return num_emitting


@jit
def update(engine: Engine, emitting: npt.NDArray[np.int32], num_emitting: int) -> None:
    """Process the outputs of a step."""
    settings, state = engine.settings[0], engine.state[0]
    num_ended = state.num_ended
    for index in range(num_emitting):
        node = emitting[index]
        sequence = engine.sequences[node]
        # A step scheduled ahead may hold a sequence that has ended since; its token is thrown away.
        if sequence.status == FINISHED:
            continue
        if sequence.num_tokens == sequence.prompt_tokens:
            engine.times[node].first_token_s = state.host_s
        sequence.num_tokens += 1
        if settings.ahead:
            sequence.placeholders -= 1
            known = sequence.computed - sequence.placeholders
            if sequence.status == RUNNING and memory.fills_block(settings, sequence, known):
                memory.commit(engine, node, known)
        if sequence.num_tokens >= sequence.end_tokens:
            memory.free(engine, node)
            if sequence.status == PREEMPTED:
                waiting.remove(engine, node)
            sequence.status = FINISHED
            engine.times[node].finished_s = state.host_s
            state.num_ended += 1
    if state.num_ended > num_ended:
        _drop_finished(engine)
        state.unflushed = True


@jit
def _serve_running(engine: Engine, budget: int) -> int:
    """Give every running sequence its next tokens; return what is left of `budget`."""
    settings, state = engine.settings[0], engine.state[0]
    threshold, index = settings.long_prefill_token_threshold, 0
    while index < state.num_running and budget > 0:
        node = engine.running[index]
        sequence = engine.sequences[node]
        placeholders = sequence.placeholders
        index += 1
        if placeholders > 0 and sequence.computed + 2 - placeholders >= sequence.limit_tokens:
            continue  # its last token is under way already
        num_tokens = sequence.num_tokens + placeholders - sequence.computed
        if 0 < threshold < num_tokens:
            num_tokens = threshold
        num_tokens = min(num_tokens, budget, settings.max_model_len - 1 - sequence.computed)
        if num_tokens <= 0:
            continue
        while not (memory.has_room(settings, sequence, num_tokens) or memory.grow(engine, node, num_tokens)):
            victim = _remove_victim(engine)
            tokens = _take_out_of_batch(engine, victim)
            if tokens > 0:
                budget += tokens
                index -= 1
            _preempt(engine, victim)
            if victim == node:
                return budget
        _put_into_batch(engine, node, num_tokens)
        budget -= num_tokens
    return budget


@jit
def _admit(engine: Engine, budget: int) -> int:
    """Admit from the head of the queue for as long as the head fits; nobody overtakes it."""
    settings, state = engine.settings[0], engine.state[0]
    threshold = settings.long_prefill_token_threshold
    while state.num_waiting > 0 and budget > 0 and state.num_running < settings.max_num_seqs:
        node = waiting.peek(engine)
        sequence = engine.sequences[node]
        num_hits = memory.lookup(engine, node)
        computed = num_hits * settings.unit_tokens
        num_tokens = sequence.num_tokens - computed
        if 0 < threshold < num_tokens:
            num_tokens = threshold
        if not settings.chunked_prefill and num_tokens > budget:
            break
        num_tokens = min(num_tokens, budget)
        if not memory.admit(engine, node, num_tokens, num_hits):
            break
        waiting.remove(engine, node)
        engine.running[state.num_running] = node
        state.num_running += 1
        if sequence.status == WAITING:
            engine.times[node].first_scheduled_s = state.host_s
            sequence.cached_tokens = computed
            state.num_admitted += 1
        state.num_new_seqs += 1
        sequence.status = RUNNING
        sequence.computed = computed
        state.written += computed
        _put_into_batch(engine, node, num_tokens)
        budget -= num_tokens
    return budget


@jit
def _put_into_batch(engine: Engine, node: int, num_tokens: int) -> None:
    state = engine.state[0]
    engine.batch[state.num_in_batch] = node
    engine.batch_tokens[state.num_in_batch] = num_tokens
    state.num_in_batch += 1


@jit
def _take_out_of_batch(engine: Engine, node: int) -> int:
    """Undo what the step being scheduled gave to a sequence; return its tokens, 0 if it had none yet."""
    state = engine.state[0]
    for index in range(state.num_in_batch):
        if engine.batch[index] == node:
            tokens: int = engine.batch_tokens[index]
            state.num_in_batch -= 1
            for later in range(index, state.num_in_batch):
                engine.batch[later] = engine.batch[later + 1]
                engine.batch_tokens[later] = engine.batch_tokens[later + 1]
            return tokens
    return 0


@jit
def _remove_victim(engine: Engine) -> int:
    """Take the sequence to preempt out of those that run: the last admitted, or the least important."""
    state, chosen = engine.state[0], engine.state[0].num_running - 1
    if engine.settings[0].by_priority:
        chosen = 0
        for index in range(1, state.num_running):
            if _is_less_important(engine, engine.running[index], engine.running[chosen]):
                chosen = index
    victim: int = engine.running[chosen]
    state.num_running -= 1
    for index in range(chosen, state.num_running):
        engine.running[index] = engine.running[index + 1]
    return victim


@jit
def _is_less_important(engine: Engine, one: int, other: int) -> bool:
    a, b = engine.sequences[one].priority, engine.sequences[other].priority
    if a != b:
        return a > b
    return engine.times[one].arrival_s > engine.times[other].arrival_s


@jit
def _preempt(engine: Engine, node: int) -> None:
    """Take everything back from a sequence that has left those that run; it will compute its tokens again."""
    sequence = engine.sequences[node]
    sequence.status = PREEMPTED
    memory.free(engine, node)
    sequence.computed = 0
    sequence.preemptions += 1
    engine.state[0].num_preempted += 1
    waiting.push_preempted(engine, node)


@jit
def _drop_finished(engine: Engine) -> None:
    state, kept = engine.state[0], 0
    for index in range(state.num_running):
        node = engine.running[index]
        if engine.sequences[node].status == RUNNING:
            engine.running[kept] = node
            kept += 1
    state.num_running = kept
