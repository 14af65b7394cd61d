"""SGLang's scheduler: each pass runs a prefill if it can form one, and otherwise one decode of all running requests.

A pass is one iteration of the scheduler's loop; it may launch no batch. Functions have the names that they have in
SGLang. `get_next_batch_to_run` first merges the last prefill into the running batch. Then it tries a prefill
(`get_new_batch_prefill`). If there is none, it decodes (`update_running_batch`); if memory is short, it retracts the
requests with the fewest outputs. `process_batch_result` processes the outputs.

With SGLang's overlap schedule, a batch is launched before the results of the previous batch are processed. So the
scheduler knows in advance that a request ends by its length, but not that it ends by a stop token.
"""

from __future__ import annotations

from kvsim.engine import in_flight, waiting_queue
from kvsim.engine.linked_list import HEAD
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.radix import (
    link_copies,
    prefill_adder,
    radix_events,
    request_rows,
    schedule_policy,
    token_slots,
    tree_copies,
    tree_windows,
)
from kvsim.engine.radix.prefill_adder import CONTINUE, NO_TOKEN, OTHER, num_outputs
from kvsim.engine.radix_records import DECODE, EXTEND, MIXED, NO_BATCH, NOT_CHUNKED
from kvsim.engine.records import NEVER, NO_FAILURE, SLOTS_MISSING, TWO_CHUNKED, Sequence
from kvsim.engine.scheduler import end
from kvsim.engine.scheduling import Scheduler
from kvsim.engine.state import ABORTED, FINISHED, PREEMPTED, RUNNING, WAITING, Engine


@part
def has_work(engine: Engine) -> bool:
    """Tell whether the scheduler must run another pass: there are requests, or the last pass has launched a batch, or
    `RadixState.ratio` is to be reset. So one more pass follows the last batch of a run.
    """
    state, radix = engine.state, engine.radix.state
    has_requests = state.num_running > 0 or state.num_waiting > 0 or radix.chunked != NOT_CHUNKED
    return has_requests or radix.last_mode != NO_BATCH or not radix.is_ratio_reset


@part
def add(engine: Engine, sequence: Sequence) -> None:
    """Append a new or a retracted (preempted) request to the queue."""
    radix, holding = engine.radix.state, engine.radix.holdings[sequence.number]
    radix.num_entered += 1
    radix.num_idle_passes = 0
    holding.entered, holding.entered_at = radix.num_entered, radix.num_prefilled
    waiting_queue.push(engine, sequence)


@part
def schedule(engine: Engine) -> None:
    """Run one pass: choose a batch, allocate its slots and put it in flight.

    With `serializes_prefills`, a pass that chooses a prefill directly after a prefill does not launch it. The next call
    launches it, after the output of the first prefill was processed.
    """
    state, radix = engine.state, engine.radix.state
    mode = radix.chosen_mode
    radix.chosen_mode = NO_BATCH
    if mode == NO_BATCH:
        state.num_scheduled += 1
        state.num_listed = state.num_preempted = state.num_new_seqs = 0
        last_mode = radix.last_mode
        mode = get_next_batch_to_run(engine)
        is_prefill = mode in (EXTEND, MIXED) and last_mode in (EXTEND, MIXED)
        is_prefill &= not (mode == MIXED and radix.runs_last)
        if is_prefill and engine.radix.settings.serializes_prefills and state.num_in_flight > 0:
            radix.chosen_mode = mode
    state.num_in_batch = state.num_tokens_in_batch = 0
    if radix.chosen_mode != NO_BATCH:
        return
    if mode == NO_BATCH:
        radix.num_idle_passes += 1
        _reset_ratio(engine)
    else:
        radix.num_idle_passes = 0
        _run_batch(engine, mode)


@part
def awaits_output(engine: Engine) -> bool:
    """Tell whether the oldest output in flight is processed before the next pass. It is, if as many steps are in flight
    as allowed, or if this pass has launched no batch and there is an output in flight.
    """
    state = engine.state
    is_full = state.num_in_flight >= engine.settings.most_in_flight
    return is_full or (state.num_in_flight > 0 and state.num_in_batch == 0)


@part
def abort(engine: Engine, sequence: Sequence) -> None:
    """Abort a request. A waiting request ends at once. The chunked request ends in the next pass, and any other running
    request when its next output is processed.
    """
    engine.radix.state.num_idle_passes = 0
    if sequence.status in (WAITING, PREEMPTED):
        waiting_queue.remove(engine, sequence)
        end(engine, sequence, ABORTED, engine.state.host_s)
    elif sequence.status == RUNNING:
        engine.radix.holdings[sequence.number].is_aborted = True
        sequence.end_tokens = 0


@part
def num_with_rows(engine: Engine) -> int:
    """Return the number of requests that have a row in the request table. `State.num_running` counts only those in the
    running batch, without requests in a prefill and requests whose last output is in flight.
    """
    return len(engine.radix.free_rows) - engine.radix.state.num_free_rows


@part
def is_stalled(engine: Engine) -> bool:
    """Tell whether the run cannot continue: no request runs or is admitted, and no step or copy is in progress."""
    state = engine.state
    if state.num_running > 0 or state.num_waiting == 0 or state.num_in_flight > 0 or tree_copies.has_copies(engine):
        return False
    state.stalled_sequence = waiting_queue.peek(engine).number
    return True


@part
def _reset_ratio(engine: Engine) -> None:
    """Reset `RadixState.ratio`, by which answers are estimated, in a pass without a batch, request, step or copy."""
    state, radix = engine.state, engine.radix.state
    has_requests = state.num_running > 0 or state.num_waiting > 0 or radix.chunked != NOT_CHUNKED
    if state.num_in_flight == 0 and not has_requests and not tree_copies.has_copies(engine):
        radix.ratio = engine.radix.settings.first_ratio
        radix.is_ratio_reset = True


@part
def _run_batch(engine: Engine, mode: int) -> None:
    """Launch the chosen batch, which is of kind `mode` (see `radix_records.NO_BATCH`). Its tokens count as computed
    from now on. Also sum the figures of the step that `StepShape` needs and, for a decode, allocate its slots.
    """
    # One loop for all of this, because it takes most of a simulation's time.
    state, radix = engine.state, engine.radix.state
    radix.num_launched += 1
    radix.is_ratio_reset, radix.launched_mode = False, mode
    first = state.next_launched * engine.settings.max_num_seqs
    num_tokens = num_prefill_tokens = context_tokens = attention_pairs = 0
    for index in range(state.num_listed):
        number, tokens = engine.batch[index], engine.batch_tokens[index]
        sequence = engine.sequences[number]
        begin = sequence.computed
        if mode == DECODE:
            request_rows.extend(engine, sequence, 1)
        else:
            engine.radix.holdings[number].launched_in = radix.num_launched
        context_tokens += begin + tokens
        if tokens > 1 or begin < sequence.prompt_tokens:
            num_prefill_tokens += tokens
            attention_pairs += tokens * begin + tokens * (tokens + 1) // 2
        sequence.computed = begin + tokens
        num_tokens += tokens
        engine.emitting[first + index] = number
    state.num_tokens_in_batch, state.num_prefill_tokens = num_tokens, num_prefill_tokens
    state.context_tokens, state.attention_pairs = context_tokens, attention_pairs
    state.written += state.num_tokens_in_batch
    if mode != DECODE:
        radix.last_prefill_tokens = state.num_tokens_in_batch
    radix.num_prefilled += radix.running_prefill_tokens if mode == DECODE else state.num_tokens_in_batch
    launch = engine.radix.launches[state.next_launched]
    launch.mode, launch.num_seqs, launch.num_prefills = mode, state.num_listed, radix.num_prefills
    engine.launched[state.next_launched].num_emitting = state.num_in_batch = state.num_listed
    state.next_launched = in_flight.later(engine, state.next_launched)
    state.num_in_flight += 1


@part
def get_next_batch_to_run(engine: Engine) -> int:
    """Choose a pass's batch and allocate its slots, except for a decode. Return its kind, such as `NO_BATCH`."""
    state, radix = engine.state, engine.radix.state
    _process_pending_chunked_abort(engine)
    if tree_copies.has_host_tier(engine):
        link_copies.finish_ended(engine)
    chunked = engine.radix.holdings[radix.chunked]
    if radix.chunked != NOT_CHUNKED and chunked.extend_end > chunked.prefix_tokens:
        request_rows.cache_prefill(engine, engine.sequences[radix.chunked])
    _merge_last_batch(engine)
    _filter_running(engine)
    mode = NO_BATCH
    if not _defers_prefill(engine):
        mode = get_new_batch_prefill(engine)
    if mode == NO_BATCH and state.num_running > 0 and radix.puts_out and state.failure == NO_FAILURE:
        mode = update_running_batch(engine)
    if mode in (EXTEND, MIXED):
        radix.interval_left = engine.radix.settings.prefill_decode_interval
    radix.last_mode = mode
    return mode


@part
def _process_pending_chunked_abort(engine: Engine) -> None:
    """Abort the chunked request if its abort is pending. Its tokens in the tree stay there."""
    radix = engine.radix.state
    sequence = engine.sequences[radix.chunked]
    if radix.chunked != NOT_CHUNKED and engine.radix.holdings[radix.chunked].is_aborted:
        request_rows.release_kv_cache(engine, sequence, False)
        end(engine, sequence, ABORTED, engine.state.host_s)
        radix.chunked = NOT_CHUNKED


@part
def _merge_last_batch(engine: Engine) -> None:
    """Append the last prefill's requests that still run to the running batch, except the one in mid-prompt."""
    state, radix = engine.state, engine.radix.state
    radix.runs_last = False
    if radix.last_mode not in (EXTEND, MIXED):
        return
    was_empty, num_joining = state.num_running == 0, 0
    radix.is_full &= not was_empty
    for index in range(radix.num_last_prefill):
        number = engine.radix.last[index]
        if engine.sequences[number].status != RUNNING or number in (radix.chunked, radix.last_chunked):
            radix.is_full = False
            continue
        engine.running[state.num_running] = number
        state.num_running += 1
        num_joining += 1
    radix.results_until_scan = 0
    if num_joining > 0 and was_empty:
        radix.runs_last = True
        radix.puts_out, radix.running_prefill_tokens = radix.last_puts_out, radix.last_prefill_tokens
    elif num_joining > 0:
        radix.puts_out |= radix.last_puts_out


@part
def _filter_running(engine: Engine) -> None:
    state, radix, kept = engine.state, engine.radix.state, 0
    if state.num_ended == radix.num_ended_before:
        return
    radix.num_ended_before = state.num_ended
    for index in range(state.num_running):
        if engine.sequences[engine.running[index]].status == RUNNING:
            engine.running[kept] = engine.running[index]
            kept += 1
    _shrink_running(engine, kept)


@part
def _filter_finishing(engine: Engine) -> bool:
    """Remove the requests whose last output, by their output limit, is in flight from the running batch. Return True if
    any was removed.

    A scan of all running requests also finds how many more results must come before any can end: a result has at most
    one output of each request. Until then (`RadixState.results_until_scan`), return False without a scan.
    """
    state, radix, kept = engine.state, engine.radix.state, 0
    if radix.results_until_scan > 0:
        return False
    fewest_left = NEVER
    for index in range(state.num_running):
        sequence = engine.sequences[engine.running[index]]
        holding = engine.radix.holdings[sequence.number]
        is_in_last = radix.launched_mode == DECODE or holding.launched_in == radix.num_launched
        left = holding.limit - num_outputs(sequence)
        if not (state.num_in_flight > 0 and is_in_last and left <= 1):
            fewest_left = min(fewest_left, left)
            engine.running[kept] = sequence.number
            kept += 1
    radix.results_until_scan = fewest_left - 1
    return _shrink_running(engine, kept)


@part
def _shrink_running(engine: Engine, num_running: int) -> bool:
    """Keep only the first `num_running` requests of the running batch. Return True if others were removed; then the
    batch does not count as full any longer.
    """
    has_left = num_running < engine.state.num_running
    engine.state.num_running = num_running
    if has_left:
        engine.radix.state.is_full = False
    return has_left


@part
def _defers_prefill(engine: Engine) -> bool:
    """Tell whether this pass must not try a prefill, because `prefill_decode_interval` passes have not gone by since
    the last prefill. If too few requests run, end the interval. Otherwise count this pass.
    """
    radix = engine.radix.state
    if radix.interval_left == 0:
        return False
    if engine.state.num_running < engine.radix.settings.interval_min_seqs:
        radix.interval_left = 0
        return False
    radix.interval_left -= 1
    return True


@part
def get_new_batch_prefill(engine: Engine) -> int:
    """Form a prefill, with decodes if these are mixed in, and allocate its slots. Return the kind of the batch;
    `NO_BATCH` if it has no request, or if `State.failure` is set.
    """
    settings, state, radix = engine.radix.settings, engine.state, engine.radix.state
    if settings.preempts or tree_windows.has_windows(engine) or state.num_running == 0:
        radix.is_full = False
    if (radix.is_full or state.num_waiting == 0) and radix.chunked == NOT_CHUNKED:
        return NO_BATCH
    if _num_allocatable_reqs(engine) <= 0 and radix.chunked == NOT_CHUNKED and not settings.preempts:
        radix.is_full = True
        return NO_BATCH
    schedule_policy.calc_priority(engine)
    prefill_adder.begin(engine)
    has_chunked = False
    if radix.chunked != NOT_CHUNKED:
        sequence = engine.sequences[radix.chunked]
        has_chunked = prefill_adder.add_chunked_req(engine, sequence, schedule_policy.chunk_limit(engine, sequence))
    _admit_waiting(engine, has_chunked)
    if state.num_listed == 0:
        _queue_preempted(engine, 0)
        return NO_BATCH
    for index in range(radix.num_held_rows, state.num_listed):  # the chunked request has a row, and left the queue
        _leave_queue(engine, engine.sequences[engine.batch[index]])
    _queue_preempted(engine, 0)
    if has_chunked and radix.admitted_chunked != NOT_CHUNKED:
        state.failure = TWO_CHUNKED  # one waits for windows, and another one was cut
        return NO_BATCH
    radix.chunked = radix.chunked if has_chunked else radix.admitted_chunked
    if radix.chunked != NOT_CHUNKED:
        engine.radix.holdings[radix.chunked].middle_chunks += 1
    return _prepare_for_extend(engine)


@part
def _num_allocatable_reqs(engine: Engine) -> int:
    state, radix = engine.state, engine.radix.state
    return min(
        engine.radix.settings.max_running_requests - state.num_running, radix.num_free_rows + radix.num_held_rows
    )


@part
def _admit_waiting(engine: Engine, has_chunked: bool) -> None:
    settings, state, radix = engine.radix.settings, engine.state, engine.radix.state
    number = engine.sequences[HEAD].next
    while number != HEAD and prefill_adder.budget_state(engine) != OTHER:
        sequence = engine.sequences[number]
        number = sequence.next
        if state.num_listed >= _num_allocatable_reqs(engine):
            radix.is_full = True
        if radix.is_full and not (settings.preempts and _preempt_to_schedule(engine, sequence)):
            break
        request_rows.init_next_round_input(engine, sequence)
        verdict = prefill_adder.add_one_req(engine, sequence, has_chunked or radix.admitted_chunked != NOT_CHUNKED)
        if verdict == NO_TOKEN:
            radix.is_full = state.num_listed > 0 or state.num_running > 0
        if verdict != CONTINUE:
            break


@part
def _preempt_to_schedule(engine: Engine, sequence: Sequence) -> bool:
    """Preempt less important running requests, so that a waiting request gets memory. Return False if none was."""
    state, radix = engine.state, engine.radix.state
    num_victims = prefill_adder.preempt_to_schedule(engine, sequence)
    if num_victims == 0:
        return False
    num_running, kept, num_released = state.num_running, 0, 0
    for index in range(num_running):
        victim = engine.sequences[engine.running[index]]
        if not prefill_adder.is_chosen(engine, num_victims, victim.number):
            engine.running[kept] = victim.number
            kept += 1
            continue
        radix.total_offset -= prefill_adder.running_request_offset(engine, victim)
        num_released += 1
        release_req(engine, victim, num_running - num_released)
    state.num_running = kept
    return True


@part
def _queue_preempted(engine: Engine, first: int) -> None:
    """Append the requests that this pass has preempted, from entry `first` of `Lists.preempted` on, to the queue."""
    for index in range(first, engine.state.num_preempted):
        add(engine, engine.sequences[engine.lists[index].preempted])


@part
def _leave_queue(engine: Engine, sequence: Sequence) -> None:
    state = engine.state
    waiting_queue.remove(engine, sequence)
    if sequence.status == WAITING:
        engine.times[sequence.number].first_scheduled_s = state.host_s
        sequence.cached_tokens = sequence.computed
        state.num_admitted += 1
    state.num_new_seqs += 1
    sequence.status = RUNNING


@part
def _prepare_for_extend(engine: Engine) -> int:
    """Allocate rows and slots for the chosen prefill, and add decodes if these are mixed in. Return the kind of the
    batch; `NO_BATCH`, and a failure in `State.failure`, if the slots do not suffice.
    """
    state, radix = engine.state, engine.radix.state
    num_prefills = state.num_listed
    request_rows.alloc_req_slots(engine, num_prefills)
    if not request_rows.alloc_for_extend(engine, num_prefills):
        state.failure = SLOTS_MISSING
        return NO_BATCH
    radix.last_chunked, radix.num_prefills, radix.last_puts_out = radix.chunked, num_prefills, False
    for index in range(num_prefills):
        radix.last_puts_out |= engine.radix.holdings[engine.batch[index]].limit > 0
    is_mixed = engine.radix.settings.mixes and state.num_running > 0 and _mix_with_running(engine, num_prefills)
    for index in range(state.num_listed):
        engine.radix.last[index] = engine.batch[index]
    radix.num_last_prefill = state.num_listed
    return MIXED if is_mixed else EXTEND


@part
def _mix_with_running(engine: Engine, num_prefills: int) -> bool:
    """Add a decode of each running request to the batch, which has `num_prefills` prefills, and allocate their slots.
    Return False, and add nothing, if no request is left to decode or if memory is short.
    """
    state, radix = engine.state, engine.radix.state
    _filter_finishing(engine)
    if state.num_running == 0 or not check_decode_mem(engine, state.num_running):
        return False
    _list_running(engine)
    request_rows.make_room_for_decode(engine, num_prefills, state.num_running)
    for index in range(num_prefills, state.num_listed):
        sequence = engine.sequences[engine.batch[index]]
        request_rows.extend(engine, sequence, 1)
        engine.radix.holdings[sequence.number].laid_out_tokens = sequence.num_tokens
    state.num_running = radix.running_prefill_tokens = 0  # they are in the last prefill's batch now
    radix.last_puts_out = True
    return True


@part
def update_running_batch(engine: Engine) -> int:
    """Choose a decode of one token of each running request, and return `DECODE`. If memory is short, retract requests
    first. Return `NO_BATCH` if no request is left, or if requests that are about to end will free memory.
    """
    settings, state, radix = engine.radix.settings, engine.state, engine.radix.state
    is_foreseen = _filter_finishing(engine)
    if state.num_running == 0:
        radix.is_full = False
        return NO_BATCH
    has_room = check_decode_mem(engine, state.num_running)
    if not has_room and is_foreseen:
        return NO_BATCH  # the requests that end will free their memory first
    if has_room:
        radix.ratio = max(radix.ratio - settings.ratio_decay, settings.least_ratio)
    else:
        num_preempted = state.num_preempted
        _retract_decode(engine)
        _queue_preempted(engine, num_preempted)
    if state.num_running == 0:
        return NO_BATCH
    _list_running(engine)
    request_rows.make_room_for_decode(engine, 0, state.num_running)
    return DECODE


@part
def _list_running(engine: Engine) -> None:
    state = engine.state
    for index in range(state.num_running):
        engine.batch[state.num_listed], engine.batch_tokens[state.num_listed] = engine.running[index], 1
        state.num_listed += 1


@part
def check_decode_mem(engine: Engine, num_running: int) -> bool:
    """Evict from the tree, if necessary, so that the first `num_running` running requests can decode a token each.
    Return False if the slots still do not suffice.
    """
    needed = num_running if engine.settings.unit_tokens == 1 else 0
    for index in range(0 if engine.settings.unit_tokens == 1 else num_running):
        needed += request_rows.num_tokens_required_next_decode(engine, engine.sequences[engine.running[index]])
    request_rows.evict_from_tree_cache(engine, needed)
    if tree_windows.has_windows(engine) and token_slots.num_free_window_tokens(engine) < needed:
        return False
    return token_slots.num_free_tokens(engine) >= needed


@part
def _retract_decode(engine: Engine) -> None:
    """Retract running requests, in the order of `schedule_policy.order_for_retraction`, until the others can decode. If
    several run, retract at least one. If the last one left cannot decode either, abort it. Then set `RadixState.ratio`.
    """
    settings, state, radix = engine.radix.settings, engine.state, engine.radix.state
    schedule_policy.order_for_retraction(engine)
    is_first = True
    while state.num_running > 1 and (is_first or not check_decode_mem(engine, state.num_running)):
        is_first = False
        _shrink_running(engine, state.num_running - 1)
        release_req(engine, engine.sequences[engine.running[state.num_running]], state.num_running)
    if state.num_running <= 1 and not check_decode_mem(engine, state.num_running):
        _shrink_running(engine, 0)
        last = engine.sequences[engine.running[0]]
        release_req(engine, last, 0)
        state.num_preempted -= 1
        last.preemptions -= 1
        end(engine, last, ABORTED, state.host_s)
    num_known = most = 0
    for index in range(state.num_running):
        sequence = engine.sequences[engine.running[index]]
        num_known += num_outputs(sequence)
        most += engine.radix.holdings[sequence.number].limit
    radix.ratio = min(1.0, (num_known + settings.retract_steps * state.num_running) / (most + 1))


@part
def release_req(engine: Engine, sequence: Sequence, num_others: int) -> None:
    """Preempt a running request: free its row, without inserting its tokens into the tree. Then evict from the tree so
    that the `num_others` requests that continue can decode.

    The request keeps its output tokens, and computes their KV again after its next admission.
    """
    state, holding = engine.state, engine.radix.holdings[sequence.number]
    radix_events.retracted(engine, sequence, num_others)
    request_rows.release_kv_cache(engine, sequence, False)
    request_rows.evict_from_tree_cache(engine, num_others * engine.radix.settings.retract_steps)
    sequence.status = PREEMPTED
    sequence.computed = 0
    sequence.preemptions += 1
    holding.prefix_tokens = holding.protected_tokens = holding.inserted_tokens = holding.matched_tokens = 0
    holding.middle_chunks = 0
    engine.lists[state.num_preempted].preempted = sequence.number
    state.num_preempted += 1


@part
def process_batch_result(engine: Engine) -> None:
    """Process the outputs of the oldest step in flight. Pages that become free are collected, and freed in one call at
    the end, as in SGLang: this decides the order in which they are allocated again.
    """
    state = engine.state
    place = in_flight.oldest(engine)
    launch, first = engine.radix.launches[place], place * engine.settings.max_num_seqs
    state.num_in_flight -= 1
    engine.radix.state.results_until_scan -= 1
    engine.radix.state.num_idle_passes = 0
    token_slots.begin_free_group(engine)
    for index in range(launch.num_seqs):
        sequence = engine.sequences[engine.emitting[first + index]]
        if launch.mode != DECODE and engine.radix.holdings[sequence.number].middle_chunks > 0:
            engine.radix.holdings[sequence.number].middle_chunks -= 1
        elif sequence.status == RUNNING:
            _append_output(engine, sequence, index < launch.num_prefills and launch.mode != DECODE)
    token_slots.end_free_group(engine)
    if tree_copies.has_host_tier(engine):
        link_copies.start_stores(engine)


@part
def _append_output(engine: Engine, sequence: Sequence, is_prefill: bool) -> None:
    """Append an output token to a request. If it is the last one, free the request's row after inserting its tokens
    into the tree, and end the request. Otherwise, after a prefill (`is_prefill`), insert the prefilled tokens.
    """
    state = engine.state
    if sequence.num_tokens == sequence.prompt_tokens:
        engine.times[sequence.number].first_token_s = state.host_s
    sequence.num_tokens += 1
    if sequence.num_tokens >= sequence.end_tokens:
        is_aborted = engine.radix.holdings[sequence.number].is_aborted
        request_rows.release_kv_cache(engine, sequence, True)
        end(engine, sequence, ABORTED if is_aborted else FINISHED, state.host_s)
    elif is_prefill:
        request_rows.cache_prefill(engine, sequence)


SGLANG = Scheduler(
    name="sglang",
    has_work=has_work,
    add=add,
    schedule=schedule,
    awaits_output=awaits_output,
    update=process_batch_result,
    abort=abort,
    num_running=num_with_rows,
    is_stalled=is_stalled,
)
