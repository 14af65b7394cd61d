"""Iteration-level scheduling as in vLLM V1: every step decides anew which sequences compute how many tokens.

`schedule` first serves what runs, in order of admission, preempting when memory is short, then admits from the queue.
`update` takes the outputs of a step that was scheduled earlier, so that an engine may schedule ahead.
"""

from __future__ import annotations

from kvsim.engine import groups, in_flight, memory, quiet, running, speculation, tiered, totals, waiting_queue
from kvsim.engine.compiled import chosen_by_memory, compiled_as, part
from kvsim.engine.state import ABORTED, FINISHED, LOADING, PREEMPTED, RUNNING, WAITING, Engine


@part
def has_work(engine: Engine) -> bool:
    """Whether another call of `schedule` is due."""
    state = engine.state[0]
    return state.num_running > 0 or state.num_waiting > 0 or state.unflushed or memory.has_pending(engine)


@part
def schedule(engine: Engine) -> None:
    """Decide the next step, allocate its memory and put it in flight: it stands in `batch` and in `emitting`."""
    settings, state = engine.settings[0], engine.state[0]
    state.num_scheduled += 1
    state.num_listed = state.num_preempted = state.num_new_seqs = 0
    state.num_swapped_out = state.num_swapped_in = state.num_copied_slots = 0
    budget = fill_step(engine)
    state.num_tokens_in_batch = settings.max_num_batched_tokens - budget
    state.written += state.num_tokens_in_batch * settings.token_slots
    state.num_in_batch = state.num_listed + state.num_quiet
    first = state.next_launched * settings.max_num_seqs
    num_emitting = num_prefill_tokens = attention_pairs = 0
    context_tokens = state.quiet_tokens + state.num_quiet * state.num_scheduled
    for index in range(state.num_listed):
        node, tokens = engine.batch[index], engine.batch_tokens[index]
        sequence = engine.sequences[node]
        before = sequence.computed
        sequence.computed = before + tokens
        context_tokens += before + tokens
        state.written -= sequence.rejected * settings.token_slots
        sequence.rejected = 0
        if sequence.computed >= sequence.num_tokens + sequence.placeholders:
            engine.emitting[first + num_emitting] = node
            num_emitting += 1
            if settings.ahead:
                sequence.placeholders += 1
                sequence.decodes_from = state.num_scheduled + settings.decode_interval
            elif settings.lookahead_tokens > 0:
                sequence.drafts = sequence.computed - sequence.num_tokens
        elif sequence.computed >= sequence.handed_tokens:
            # Resumed while a token of it was under way. The scheduler awaits nothing, but vLLM's model runner does not
            # know of that token, and answers it again.
            engine.emitting[first + num_emitting] = node
            num_emitting += 1
        if tokens - sequence.drafts > 1 or before < sequence.prompt_tokens:
            num_prefill_tokens += tokens
            attention_pairs += tokens * before + tokens * (tokens + 1) // 2
    state.num_prefill_tokens, state.context_tokens = num_prefill_tokens, context_tokens
    state.attention_pairs = attention_pairs
    engine.launched[state.next_launched].num_emitting = num_emitting
    memory.end_step(engine)
    state.next_launched = in_flight.later(engine, state.next_launched)
    state.num_in_flight += 1
    state.unflushed = False


@part
def update(engine: Engine) -> None:
    """Process the outputs of the oldest step in flight."""
    settings, state = engine.settings[0], engine.state[0]
    launched = in_flight.oldest(engine)
    first = launched * settings.max_num_seqs
    state.num_in_flight -= 1
    memory.begin_update(engine, launched)
    num_ended, now_s = state.num_ended, state.host_s
    for index in range(first, first + engine.launched[launched].num_emitting):
        node = engine.emitting[index]
        sequence = engine.sequences[node]
        # A step scheduled ahead may hold a sequence that has left since; its token is thrown away.
        if sequence.status in (FINISHED, ABORTED):
            continue
        if settings.ahead and sequence.placeholders == 0:  # vLLM 0.25.1 ends here, with an AssertionError
            state.num_failures += 1
            continue
        if sequence.num_tokens == sequence.prompt_tokens:
            engine.times[node].first_token_s = now_s
        sequence.num_tokens += speculation.num_outputs(engine, node)
        if settings.ahead:
            sequence.placeholders -= 1
            known = sequence.computed - sequence.placeholders
            if sequence.status == RUNNING and known >= sequence.cache_at:
                memory.cache_known(engine, node, known)
        elif settings.lookahead_tokens > 0:
            totals.note_computed(engine, node)
            # The slots of rejected drafts will be written again; until then they hold what was computed.
            sequence.rejected = sequence.computed - (sequence.num_tokens - 1)
            sequence.computed = sequence.num_tokens - 1
            sequence.drafts = settings.lookahead_tokens
        if sequence.num_tokens >= sequence.end_tokens:
            memory.free(engine, node)
            if sequence.status == PREEMPTED:
                memory.leave_queue(engine, node)
            leave(engine, node, FINISHED, now_s)
    memory.end_update(engine)
    if state.num_ended > num_ended:
        _drop_what_left(engine)
        state.unflushed = True


@part
def abort(engine: Engine, node: int) -> None:
    """Drop a sequence at once, wherever it stands; outputs still under way are ignored."""
    sequence = engine.sequences[node]
    if sequence.status in (WAITING, PREEMPTED, LOADING):
        memory.leave_queue(engine, node)
    memory.free(engine, node)
    leave(engine, node, ABORTED, engine.state[0].host_s)
    engine.state[0].unflushed = True
    _drop_what_left(engine)


@part
def leave(engine: Engine, node: int, status: int, now_s: float) -> None:
    """A request has ended, at `now_s`."""
    state = engine.state[0]
    engine.sequences[node].status = status
    engine.times[node].finished_s = now_s
    engine.lines[state.num_ended].ended = node
    state.num_ended += 1


@part
def _fill_step(engine: Engine) -> int:
    """Give the step its tokens: first those that run, then those that wait. Return what is left of its budget."""
    settings, state = engine.settings[0], engine.state[0]
    budget = _serve_running(engine, settings.max_num_batched_tokens)
    if state.num_preempted == 0:
        budget = admit_waiting(engine, budget)
    return budget


def fill_step(engine: Engine) -> int:
    """Choose the sequences of a step, by the rules of a policy in Python if the engine has any; return what is left."""
    return engine.rules[0].fill_step(engine) if engine.rules else _fill_step(engine)


compiled_as(fill_step, _fill_step)


@part
def _serve_running(engine: Engine, budget: int) -> int:
    """Give every running sequence its next tokens; return what is left of `budget`."""
    settings, state = engine.settings[0], engine.state[0]
    threshold, index = settings.long_prefill_token_threshold, 0
    launched = state.num_scheduled - 1
    while index < state.num_running and budget > 0:
        if engine.quiet_until[index] > launched:
            index += 1
            budget -= 1
            continue
        if engine.quiet_until[index] > 0:
            quiet.catch_up(engine, index, launched)
        if settings.leaves_alone and quiet.begin(engine, index):
            index += 1
            budget -= 1
            continue
        node = engine.running[index]
        sequence = engine.sequences[node]
        placeholders = sequence.placeholders
        index += 1
        if placeholders > 0 and sequence.computed + 2 - placeholders >= sequence.limit_tokens:
            continue  # its last token is under way already
        if state.num_scheduled < sequence.decodes_from:
            continue  # the first stage has its last token only then
        num_tokens = sequence.num_tokens + sequence.drafts + placeholders - sequence.computed
        if 0 < threshold < num_tokens:
            num_tokens = threshold
        num_tokens = min(num_tokens, budget, settings.max_model_len - 1 - sequence.computed)
        if settings.boundary_tokens > 0:
            num_tokens = groups.aligned_tokens(engine, node, sequence.computed, num_tokens, 0)
        if num_tokens <= 0:
            continue
        while not (memory.has_room(sequence, num_tokens) or memory.grow(engine, node, num_tokens)):
            victim = _remove(engine, choose_victim(engine, node))
            tokens = _take_out_of_batch(engine, victim)
            if tokens >= 0:
                budget += tokens
                index -= 1
            _preempt(engine, victim)
            if victim == node:
                return budget
        running.put_into_batch(engine, node, num_tokens)
        budget -= num_tokens
    quiet.catch_up_all(engine, index, launched)  # those that get nothing
    return budget


@part
def _admit_from_queue(engine: Engine, budget: int) -> int:
    """Admit from the head of the queue for as long as the head fits; nothing overtakes it."""
    settings, state = engine.settings[0], engine.state[0]
    while state.num_waiting > 0 and budget > 0 and state.num_running < settings.max_num_seqs:
        node = choose_next(engine)
        sequence = engine.sequences[node]
        hit_tokens = memory.find_hits(engine, node)
        computed = max(hit_tokens, sequence.parked_tokens)
        num_tokens = running.num_tokens_to_begin_with(engine, node, computed, budget)
        if settings.boundary_tokens > 0:
            num_tokens = groups.aligned_tokens(engine, node, computed, num_tokens, state.num_uncached)
        if num_tokens == 0:
            break
        if not memory.admit(engine, node, hit_tokens, computed, num_tokens):
            break
        waiting_queue.remove(engine, node)
        state.written += computed * settings.token_slots
        running.join(engine, node, computed, num_tokens)
        budget -= num_tokens
    return budget


@part
def _take_out_of_batch(engine: Engine, node: int) -> int:
    """Undo what the step being scheduled gave to a sequence; return its tokens, -1 if it was not in it."""
    state = engine.state[0]
    for index in range(state.num_listed):
        if engine.batch[index] == node:
            tokens = engine.batch_tokens[index]
            state.num_listed -= 1
            for later in range(index, state.num_listed):
                engine.batch[later] = engine.batch[later + 1]
                engine.batch_tokens[later] = engine.batch_tokens[later + 1]
            return tokens
    return -1


@part
def _choose_victim(engine: Engine, needs: int) -> int:  # noqa: ARG001  a policy in Python may look at it
    """Where the sequence to preempt stands among those that run: the last admitted, or the least important."""
    state, chosen = engine.state[0], engine.state[0].num_running - 1
    if engine.settings[0].by_priority:
        chosen = 0
        for index in range(1, state.num_running):
            if _is_less_important(engine, engine.running[index], engine.running[chosen]):
                chosen = index
    return chosen


def choose_victim(engine: Engine, needs: int) -> int:
    """The sequence that gives way to `needs`, by the rules of a policy in Python if the engine has any."""
    return engine.rules[0].choose_victim(engine, needs) if engine.rules else _choose_victim(engine, needs)


def choose_next(engine: Engine) -> int:
    """Which waiting sequence is admitted next: the head of the queue, or whom a policy in Python names."""
    return engine.rules[0].choose_next(engine) if engine.rules else waiting_queue.peek(engine)


compiled_as(choose_victim, _choose_victim)
compiled_as(choose_next, waiting_queue.peek)


@part
def _remove(engine: Engine, chosen: int) -> int:
    """Take the sequence at index `chosen` out of those that run."""
    state = engine.state[0]
    if engine.quiet_until[chosen] > 0:
        quiet.catch_up(engine, chosen, state.num_scheduled - 1)
    victim = engine.running[chosen]
    state.num_running -= 1
    for index in range(chosen, state.num_running):
        engine.running[index] = engine.running[index + 1]
    return victim


@part
def _is_less_important(engine: Engine, one: int, other: int) -> bool:
    a, b = engine.sequences[one].priority, engine.sequences[other].priority
    if a != b:
        return a > b
    return engine.times[one].arrival_s > engine.times[other].arrival_s


@part
def _preempt(engine: Engine, node: int) -> None:
    """Take everything back from a sequence that has left those that run; it computes its tokens again."""
    state, sequence = engine.state[0], engine.sequences[node]
    sequence.status = PREEMPTED
    memory.expect_return(engine, node)
    memory.free(engine, node)
    sequence.computed = sequence.drafts = 0
    sequence.preemptions += 1
    engine.lists[state.num_preempted].preempted = node
    state.num_preempted += 1
    waiting_queue.push_preempted(engine, node)


@part
def _drop_what_left(engine: Engine) -> None:
    """Keep only those among the running sequences that still run."""
    state, kept = engine.state[0], 0
    for index in range(state.num_running):
        node = engine.running[index]
        if engine.sequences[node].status == RUNNING:
            engine.running[kept] = node
            engine.quiet_until[kept] = engine.quiet_until[index]
            kept += 1
    state.num_running = kept


admit_waiting = chosen_by_memory(_admit_from_queue, _admit_from_queue, tiered.admit_waiting, _admit_from_queue)
"""Admit waiting sequences within a budget of tokens; return what is left of it."""
