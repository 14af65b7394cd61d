"""The scheduler of vLLM V1: in every step, it decides which sequences compute how many tokens.

`schedule` gives tokens to the running sequences, in order of admission, and preempts if memory is short. Then it admits
waiting sequences. `update` processes the outputs of the oldest step in flight. With asynchronous scheduling, a step is
scheduled before the outputs of earlier steps are known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvsim.engine import adapters, cadence, drafting, encoder_cache, fast_forward, in_flight, waiting_queue
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.memory import SKIP, STOP
from kvsim.engine.paged import block_pool, groups
from kvsim.engine.records import NEVER, Sequence
from kvsim.engine.scheduling import Scheduler
from kvsim.engine.state import ABORTED, FINISHED, LOADING, PREEMPTED, RUNNING, WAITING, Engine


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BuiltInRules:
    """Decisions of a step, as functions that can be compiled. The fields are the methods of `state.Rules`."""

    name: str
    fill_step: Callable[[Engine], int]
    choose_victim: Callable[[Engine, Sequence], int]
    choose_next: Callable[[Engine], Sequence]
    choose_evicted: Callable[[Engine], int]
    note_cached: Callable[[Engine, Sequence, int, int], None]
    note_hit: Callable[[Engine, Sequence, int], None]
    note_freed: Callable[[Engine, int], None]

    def __repr__(self) -> str:
        return self.name


@part
def has_work(engine: Engine) -> bool:
    """Tell whether another call of `schedule` is due."""
    state = engine.state
    return state.num_running > 0 or state.num_waiting > 0 or state.unflushed or engine.memory.awaits_transfers(engine)


@part
def schedule(engine: Engine) -> None:
    """Decide the next step, allocate its memory and put it in flight.

    `Engine.batch` then lists the sequences of the step, except quiet ones (see `fast_forward`), and `Engine.emitting`
    those of `batch` for which the step yields an output.
    """
    state = engine.state
    state.num_scheduled += 1
    state.num_listed = state.num_preempted = state.num_new_seqs = 0
    state.num_swapped_out = state.num_swapped_in = state.num_copied_slots = 0
    state.prompt_token_limit = _prompt_token_limit(engine)
    if engine.settings.prefill_interval > 1:
        cadence.begin_step(engine)
    if engine.settings.encoder_tokens > 0:
        encoder_cache.begin_step(engine)
    state.has_chunk = False
    state.budget_left = engine.settings.max_num_batched_tokens
    budget = engine.rules.fill_step(engine)
    assert 0 <= budget <= engine.settings.max_num_batched_tokens
    state.num_tokens_in_batch = engine.settings.max_num_batched_tokens - budget
    state.num_in_batch = state.num_listed + state.num_quiet
    count_shape(engine)
    if engine.settings.num_drafts > 0:
        drafting.end_step(engine)
    _commit(engine)
    if engine.settings.prefill_interval > 1:
        cadence.end_step(engine)
    engine.memory.after_schedule(engine)
    state.next_launched = in_flight.later(engine, state.next_launched)
    state.num_in_flight += 1
    state.unflushed = False


@part
def awaits_output(engine: Engine) -> bool:
    """Tell whether the oldest step's output is processed before another step is scheduled."""
    state = engine.state
    if state.num_in_flight == engine.settings.most_in_flight:
        return True
    if engine.settings.fills_pipeline:
        return state.num_in_batch == 0 and not has_work(engine)
    oldest = engine.launched[in_flight.oldest(engine)]
    return state.num_in_batch == 0 or (oldest.is_recorded and oldest.done_s < state.host_s)


@part
def update(engine: Engine) -> None:
    """Process the outputs of the oldest step in flight."""
    settings, state = engine.settings, engine.state
    launched = in_flight.oldest(engine)
    first = launched * settings.max_num_seqs
    state.num_in_flight -= 1
    if settings.counts_flight:
        in_flight.settle_tokens(engine, launched)
    engine.memory.before_update(engine, launched)
    num_ended, now_s, num_settled = state.num_ended, state.host_s, 0
    for index in range(first, first + engine.launched[launched].num_emitting):
        sequence = engine.sequences[engine.emitting[index]]
        if settings.encoder_tokens > 0:
            rejected = drafting.num_rejected(engine, sequence, index)
            num_settled = encoder_cache.settle(engine, launched, num_settled, sequence.number, rejected)
        # The sequence may have ended after this step was scheduled ahead: its token is discarded.
        if sequence.status in (FINISHED, ABORTED):
            continue
        if settings.ahead and sequence.placeholders == 0 and not settings.late_outputs_block:
            state.num_unawaited_outputs += 1  # vLLM ends here, with an AssertionError
            continue
        _append_output(engine, sequence, index, now_s)
        if sequence.num_tokens >= sequence.end_tokens:
            engine.memory.free(engine, sequence)
            encoder_cache.release(engine, sequence)
            if sequence.status == PREEMPTED:
                if sequence.is_skipped and not settings.skipped_keep_places:
                    state.num_left_skipped += 1  # vLLM leaves it there, and ends when it is admitted
                waiting_queue.remove(engine, sequence)
            end(engine, sequence, FINISHED, now_s)
    if settings.encoder_tokens > 0:
        encoder_cache.settle(engine, launched, num_settled, 0, 0)
    if settings.num_drafts > 0 and not settings.ahead:
        drafting.propose(engine, launched)
    engine.memory.after_update(engine)
    if state.num_ended > num_ended:
        _drop_ended(engine)
        state.unflushed = True


@part
def abort(engine: Engine, sequence: Sequence) -> None:
    """End a sequence at once, in any state. Its outputs in flight will be ignored."""
    if sequence.status in (WAITING, PREEMPTED, LOADING):
        waiting_queue.remove(engine, sequence)
    engine.memory.free(engine, sequence)
    encoder_cache.release(engine, sequence)
    end(engine, sequence, ABORTED, engine.state.host_s)
    engine.state.unflushed = True
    _drop_ended(engine)


@part
def is_stalled(engine: Engine) -> bool:
    """Tell whether the engine would wait for ever. This is so if no sequence runs and the head of the queue cannot be
    admitted, or if every running sequence waits for room in the encoder cache that other running sequences occupy.
    """
    state = engine.state
    if engine.settings.encoder_tokens > 0 and state.num_running > 0:
        for back in range(state.num_in_flight):
            place = (state.next_launched - 1 - back) % engine.settings.most_in_flight
            if engine.launched[place].num_computing > 0:
                return False
        state.stalled_sequence = engine.running[0]
        return not engine.memory.awaits_transfers(engine) and not engine.memory.awaits_others(engine)
    if state.num_running > 0 or state.num_waiting == 0 or engine.memory.awaits_transfers(engine):
        return False
    if engine.memory.awaits_others(engine):
        return False
    state.stalled_sequence = waiting_queue.next_in_pass(engine).number
    return True


@part
def end(engine: Engine, sequence: Sequence, status: int, now_s: float) -> None:
    """Record that a request has ended at `now_s` seconds, with `status`."""
    state = engine.state
    sequence.status = status
    engine.times[sequence.number].finished_s = now_s
    engine.lines[state.num_ended].ended = sequence.number
    state.num_ended += 1


@part
def _fill_step(engine: Engine) -> int:
    budget = serve_running(engine, engine.settings.max_num_batched_tokens)
    if engine.state.num_preempted == 0:
        budget = admit_waiting(engine, budget)
    return budget


@part
def serve_running(engine: Engine, budget: int) -> int:
    """Assign `budget` to the running sequences in order of admission, preempting for memory; return what is left."""
    settings, state, index = engine.settings, engine.state, 0
    while index < state.num_running and budget > 0:
        num_passed = fast_forward.pass_over(engine, index, budget)
        index += num_passed
        budget -= num_passed
        most = drafting.num_tokens_left(engine, budget)
        if index == state.num_running or most <= 0:
            break
        sequence = engine.sequences[engine.running[index]]
        index += 1
        num_tokens = num_tokens_to_continue(engine, sequence, most)
        if num_tokens <= 0:
            continue
        while not (has_room(sequence, num_tokens) or engine.memory.grow(engine, sequence, num_tokens)):
            chosen = engine.rules.choose_victim(engine, sequence)
            if not engine.memory.may_preempt(engine, engine.sequences[engine.running[chosen]]):
                fast_forward.catch_up_from(engine, index, state.num_scheduled - 1)
                return budget
            victim = remove_running(engine, chosen)
            tokens = take_out_of_batch(engine, victim)
            if tokens >= 0:
                budget += tokens
            # All after the victim move up by one. vLLM moves the index with them if the victim is in the batch.
            # Otherwise, and if the victim was visited already, only releases with `keeps_turns` do so; others miss the
            # next sequence.
            if tokens >= 0 or (settings.keeps_turns and chosen < index):
                index -= 1
            preempt(engine, victim)
            if victim.number == sequence.number:
                break
        if sequence.status == PREEMPTED:
            if settings.preempted_self_stops:
                return budget
            continue
        state.has_chunk |= sequence.is_chunk
        encoder_cache.encode(engine, sequence)
        _put_into_batch(engine, sequence, num_tokens)
        budget -= num_tokens
    fast_forward.catch_up_from(engine, index, state.num_scheduled - 1)  # the rest computes nothing in this step
    return budget


@part
def admit_waiting(engine: Engine, budget: int) -> int:
    """Admit waiting sequences until one does not fit or `budget` is used up; return the rest of `budget`."""
    settings, state, memory = engine.settings, engine.state, engine.memory
    waiting_queue.begin_pass(engine)
    if settings.max_adapters > 0:
        adapters.begin_pass(engine)
    while budget > 0 and state.num_running < settings.max_num_active_seqs and waiting_queue.has_next(engine):
        most = drafting.num_tokens_left(engine, budget)
        if most <= 0:
            break
        sequence = engine.rules.choose_next(engine)
        is_late = settings.late_outputs_block and not settings.drops_late and sequence.in_flight > 0
        is_ready = memory.use_load(engine, sequence) and not is_late
        needs_slot = settings.max_adapters > 0 and not adapters.has_slot(engine, sequence)
        computed = SKIP if needs_slot or not is_ready else memory.find_prefix(engine, sequence)
        if computed == STOP or (computed >= 0 and state.bars_prefills and cadence.is_prefill(sequence, computed)):
            break
        if computed == SKIP:
            waiting_queue.skip(engine, sequence)
            continue
        num_tokens = _num_tokens_to_start(engine, sequence, computed, most)
        if num_tokens == SKIP:
            waiting_queue.skip(engine, sequence)
            continue
        if num_tokens == 0 or not _admit(engine, sequence, computed, num_tokens):
            break
        state.has_prefill |= cadence.is_prefill(sequence, computed)
        _run(engine, sequence, computed, num_tokens)
        budget -= num_tokens
    waiting_queue.end_pass(engine)
    if settings.prefill_interval > 1:
        cadence.end_pass(engine)
    return budget


@part
def _admit(engine: Engine, sequence: Sequence, computed: int, num_tokens: int) -> bool:
    settings = engine.settings
    if not engine.memory.admit(engine, sequence, computed, num_tokens):
        encoder_cache.release(engine, sequence)
        return False
    waiting_queue.pop(engine, sequence)
    if settings.max_adapters > 0:
        adapters.use(engine, sequence)
    encoder_cache.encode(engine, sequence)
    return True


@part
def num_tokens_to_continue(engine: Engine, sequence: Sequence, budget: int) -> int:
    """Return the number of tokens that a running sequence computes in the step; 0 or less if it computes none."""
    settings, placeholders = engine.settings, sequence.placeholders
    if placeholders > 0 and sequence.computed + 2 - placeholders >= sequence.limit_tokens:
        return 0  # a step in flight yields its last allowed token
    if engine.state.num_scheduled < sequence.decodes_from:
        return 0  # its last token has not come back to the first stage
    if engine.state.bars_prefills and sequence.is_chunk:
        return 0
    num_tokens = sequence.num_tokens + sequence.drafts + placeholders - sequence.computed
    if 0 < engine.state.prompt_token_limit < num_tokens:
        num_tokens = engine.state.prompt_token_limit
    num_tokens = min(num_tokens, budget, settings.max_model_len - 1 - sequence.computed)
    aligns_first = settings.aligns_before_images or settings.encoder_tokens == 0
    if settings.boundary_tokens > 0 and aligns_first:
        num_tokens = groups.aligned_tokens(engine, sequence, sequence.computed, num_tokens, 0)
    if settings.encoder_tokens > 0 and num_tokens > 0:
        num_tokens = encoder_cache.plan(engine, sequence, sequence.computed, num_tokens)
    if settings.boundary_tokens > 0 and not aligns_first:
        num_tokens = groups.aligned_tokens(engine, sequence, sequence.computed, num_tokens, 0)
    if settings.num_drafts > 0:
        num_tokens = drafting.unsplit_tokens(engine, sequence, sequence.computed, num_tokens)
    return num_tokens


@part
def _num_tokens_to_start(engine: Engine, sequence: Sequence, computed: int, budget: int) -> int:
    """Return the number of tokens that a waiting sequence computes in its first step. If it cannot be admitted, return
    0 to end the admissions of this step, or `SKIP` to skip only this sequence.
    """
    settings, num_tokens = engine.settings, sequence.num_tokens - computed
    engine.state.num_padding_drafts = 0
    if settings.num_drafts > 0 and num_tokens == 1:
        num_tokens = drafting.padded_tokens(engine, computed, budget)
        if num_tokens == 0:
            return 0
        engine.state.num_padding_drafts = num_tokens - 1
    if 0 < engine.state.prompt_token_limit < num_tokens:
        num_tokens = engine.state.prompt_token_limit
    if not settings.chunked_prefill and num_tokens > budget:
        return 0
    num_tokens = min(num_tokens, budget)
    aligns_first = settings.aligns_before_images or settings.encoder_tokens == 0
    if settings.boundary_tokens > 0 and aligns_first:
        num_tokens = groups.aligned_tokens(engine, sequence, computed, num_tokens, engine.state.num_partly_cached)
    if settings.encoder_tokens > 0 and num_tokens > 0:
        num_tokens = encoder_cache.plan(engine, sequence, computed, num_tokens)
        if num_tokens == 0 and settings.cuts_before_images:
            return SKIP
    if settings.boundary_tokens > 0 and not aligns_first and num_tokens > 0:
        num_tokens = groups.aligned_tokens(engine, sequence, computed, num_tokens, engine.state.num_partly_cached)
    if settings.num_drafts > 0 and num_tokens > 0:
        num_tokens = drafting.unsplit_tokens(engine, sequence, computed, num_tokens)
        if num_tokens == 0:
            return SKIP
    return num_tokens


@part
def _prompt_token_limit(engine: Engine) -> int:
    """Return the limit for the tokens that this step computes of one prompt; 0 if only the budget limits them.

    This is `long_prefill_token_threshold`, which may be adaptive. Most releases of vLLM ignore it if no other sequence
    runs or waits.
    """
    settings, state = engine.settings, engine.state
    if not settings.lone_prompt_is_limited and state.num_running + state.num_waiting <= 1:
        return 0
    if settings.threshold_is_adaptive:
        share = settings.max_num_batched_tokens // max(state.num_running + state.num_waiting, 1)
        return max(settings.long_prefill_token_threshold, share)
    return settings.long_prefill_token_threshold


@part
def has_room(sequence: Sequence, num_tokens: int) -> bool:
    """Tell whether a running sequence can compute `num_tokens` more tokens without a change of its tables, and without
    a block that becomes ready for the prefix cache.
    """
    total = sequence.computed + num_tokens
    return total <= sequence.room_tokens and min(total, sequence.num_tokens) < sequence.cache_at


@part
def preempt(engine: Engine, sequence: Sequence) -> None:
    """Preempt a sequence that was removed from the running ones: free its memory, and return it to the queue."""
    state = engine.state
    sequence.status = PREEMPTED
    engine.memory.expect_return(engine, sequence)
    engine.memory.free(engine, sequence)
    encoder_cache.release(engine, sequence)
    sequence.computed = sequence.drafts = 0
    if engine.settings.late_outputs_block:
        sequence.placeholders = 0
    if engine.settings.drops_late:
        in_flight.drop_all_outputs(engine, sequence)
    sequence.preemptions += 1
    engine.lists[state.num_preempted].preempted = sequence.number
    state.num_preempted += 1
    waiting_queue.push_again(engine, sequence)


@part
def remove_running(engine: Engine, chosen: int) -> Sequence:
    """Remove the sequence at index `chosen` of `Engine.running`; return it."""
    state = engine.state
    fast_forward.catch_up(engine, chosen, state.num_scheduled - 1)
    sequence = engine.sequences[engine.running[chosen]]
    state.num_running -= 1
    for index in range(chosen, state.num_running):
        engine.running[index] = engine.running[index + 1]
    return sequence


@part
def take_out_of_batch(engine: Engine, sequence: Sequence) -> int:
    """Remove a sequence from the current step; return the number of its tokens there, or -1 if it is not there."""
    state = engine.state
    for index in range(state.num_listed):
        if engine.batch[index] == sequence.number:
            tokens = engine.batch_tokens[index]
            drafting.return_tokens(engine, tokens)
            if engine.settings.encoder_tokens > 0:
                encoder_cache.return_budget(engine, sequence)
            state.num_listed -= 1
            for later in range(index, state.num_listed):
                engine.batch[later] = engine.batch[later + 1]
                engine.batch_tokens[later] = engine.batch_tokens[later + 1]
            return tokens
    return -1


@part
def _choose_victim(engine: Engine, needs: Sequence) -> int:  # noqa: ARG001  a policy in Python may look at it
    """Return the index in `Engine.running` of the last admitted or, with priorities, the least important sequence."""
    state = engine.state
    chosen = state.num_running - 1
    if engine.settings.by_priority:
        chosen = 0
        for index in range(1, state.num_running):
            victim, candidate = engine.sequences[engine.running[chosen]], engine.sequences[engine.running[index]]
            if waiting_queue.is_more_important(engine, victim, candidate):
                chosen = index
    return chosen


@part
def _run(engine: Engine, sequence: Sequence, computed: int, num_tokens: int) -> None:
    state = engine.state
    assert state.num_running < engine.settings.max_num_seqs
    engine.running[state.num_running] = sequence.number
    engine.quiet_until[state.num_running] = 0
    state.num_running += 1
    if sequence.status == WAITING:
        engine.times[sequence.number].first_scheduled_s = state.host_s
        sequence.cached_tokens = computed
        state.num_admitted += 1
    state.num_new_seqs += 1
    sequence.status = RUNNING
    sequence.drafts = state.num_padding_drafts
    sequence.computed = computed
    sequence.handed_tokens = sequence.num_tokens
    if engine.settings.answers_awaited:
        sequence.handed_tokens = NEVER  # no output comes that is not awaited; see `_commit`
    _put_into_batch(engine, sequence, num_tokens)


@part
def _put_into_batch(engine: Engine, sequence: Sequence, num_tokens: int) -> None:
    state = engine.state
    assert num_tokens > 0
    engine.batch[state.num_listed] = sequence.number
    engine.batch_tokens[state.num_listed] = num_tokens
    drafting.use_tokens(engine, num_tokens)
    state.num_listed += 1


@part
def count_shape(engine: Engine) -> None:
    """Count the prefill tokens, context tokens and attention pairs of the step, on which its time depends."""
    state = engine.state
    num_prefill_tokens = attention_pairs = 0
    context_tokens = state.quiet_tokens + state.num_quiet * state.num_scheduled
    for index in range(state.num_listed):
        sequence, tokens = engine.sequences[engine.batch[index]], engine.batch_tokens[index]
        context_tokens += sequence.computed + tokens
        # Several tokens after the prompt are recomputed after a preemption, unless they are drafts to verify.
        is_again = tokens > 1 and (engine.settings.num_drafts == 0 or sequence.computed < sequence.num_tokens - 1)
        if is_again or sequence.computed < sequence.prompt_tokens:
            num_prefill_tokens += tokens
            attention_pairs += tokens * sequence.computed + tokens * (tokens + 1) // 2
    state.num_prefill_tokens, state.context_tokens = num_prefill_tokens, context_tokens
    state.attention_pairs = attention_pairs


@part
def _commit(engine: Engine) -> None:
    """Count the tokens of the step as computed, and list the sequences for which it yields an output."""
    settings, state = engine.settings, engine.state
    state.written += state.num_tokens_in_batch * settings.token_slots
    first = state.next_launched * settings.max_num_seqs
    num_emitting = engine.launched[state.next_launched].num_computing = 0
    for index in range(state.num_listed):
        sequence = engine.sequences[engine.batch[index]]
        sequence.computed += engine.batch_tokens[index]
        if settings.counts_flight:
            in_flight.add_tokens(engine, state.next_launched, sequence, engine.batch_tokens[index])
        # The step writes the slots of rejected drafts again, which `written` counts already. Padding drafts that were
        # cut off are rejected too, so `computed` may be below 0: the tokens up to 0 stay rejected.
        rejected = max(-sequence.computed, 0)
        state.written += (rejected - sequence.rejected) * settings.token_slots
        sequence.rejected = rejected
        sequence.is_chunk = True
        if sequence.computed >= sequence.num_tokens + sequence.placeholders:
            sequence.is_chunk = False
            engine.emitting[first + num_emitting] = sequence.number
            if settings.num_drafts > 0:
                is_new = index >= state.num_listed - state.num_new_seqs
                engine.emitting_drafts[first + num_emitting] = drafting.take_drafts(engine, sequence, is_new)
            num_emitting += 1
            if settings.ahead:
                sequence.placeholders += 0 if settings.num_drafts > 0 else 1
                sequence.decodes_from = state.num_scheduled + settings.decode_interval
        elif sequence.computed >= sequence.handed_tokens:
            # The sequence was resumed while one of its tokens was in flight. vLLM's model runner was not handed that
            # token, so it generates it once more, although the scheduler does not await it.
            engine.emitting[first + num_emitting] = sequence.number
            num_emitting += 1
        if sequence.is_chunk:
            sequence.drafts = 0  # the budget has cut the chunk: its drafts are lost
    engine.launched[state.next_launched].num_emitting = num_emitting


@part
def _append_output(engine: Engine, sequence: Sequence, index: int, now_s: float) -> None:
    """Append the output of a step to a sequence, which is at `index` of `Engine.emitting`."""
    settings = engine.settings
    if sequence.num_tokens == sequence.prompt_tokens:
        engine.times[sequence.number].first_token_s = now_s
    if settings.num_drafts > 0:
        drafting.verify(engine, sequence, index)
        return
    sequence.num_tokens += 1
    if settings.ahead:
        if sequence.placeholders > 0:  # a preempted sequence may await nothing
            sequence.placeholders -= 1
        known = sequence.computed - (sequence.in_flight if settings.caches_processed else sequence.placeholders)
        if sequence.status == RUNNING and known >= sequence.cache_at:
            engine.memory.cache(engine, sequence, known)


@part
def _drop_ended(engine: Engine) -> None:
    state, kept = engine.state, 0
    for index in range(state.num_running):
        sequence = engine.sequences[engine.running[index]]
        if sequence.status == RUNNING:
            engine.running[kept] = sequence.number
            engine.quiet_until[kept] = engine.quiet_until[index]
            kept += 1
    state.num_running = kept


@part
def num_running(engine: Engine) -> int:
    """Return `State.num_running`, as `Scheduler.num_running`."""
    return engine.state.num_running


@part
def _ignore_cached(engine: Engine, sequence: Sequence, group: int, index: int) -> None:
    pass


@part
def _ignore_hit(engine: Engine, sequence: Sequence, block: int) -> None:
    pass


@part
def _ignore_freed(engine: Engine, block: int) -> None:
    pass


VLLM = BuiltInRules(
    name="vllm",
    fill_step=_fill_step,
    choose_victim=_choose_victim,
    choose_next=waiting_queue.next_in_pass,
    choose_evicted=block_pool.least_recently_freed,
    note_cached=_ignore_cached,
    note_hit=_ignore_hit,
    note_freed=_ignore_freed,
)
SCHEDULER = Scheduler(
    name="vllm",
    has_work=has_work,
    add=waiting_queue.push,
    schedule=schedule,
    awaits_output=awaits_output,
    update=update,
    abort=abort,
    num_running=num_running,
    is_stalled=is_stalled,
)
