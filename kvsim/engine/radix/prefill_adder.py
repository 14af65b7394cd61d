"""Admission of requests to the next prefill, as in SGLang's `PrefillAdder`.

In a pass, which is one iteration of the scheduler, candidates are admitted until one does not fit. Admission estimates
the slots that requests will need. A candidate must fit with its whole prompt and its longest possible answer. A running
request is expected to use only a part of the output tokens that it may still generate: the share `RadixState.ratio`. A
hit saves no room: the candidate locks the hit prefix, so that its slots can no longer be evicted for others.
"""

from __future__ import annotations

from kvsim.engine.machine_code.compiled import part
from kvsim.engine.radix import request_rows, token_slots, tree_copies, tree_nodes, tree_windows
from kvsim.engine.radix_records import NOT_CHUNKED, SHORTEST_PREFILL_FIRST
from kvsim.engine.records import NEVER, Sequence
from kvsim.engine.state import RUNNING, Engine

CONTINUE, NO_TOKEN, OTHER = range(3)
"""Verdicts after a candidate, by SGLang's names in `AddReqResult`.

- `CONTINUE`: go on with the next candidate.
- `NO_TOKEN`: stop, because memory is short.
- `OTHER`: stop, because another budget is used up.
"""
_IGNORE_EOS_RESERVE_TOKENS = 1
"""Slots that stay free for each unfinished request if requests ignore stop tokens; see `_add_one_req_ignore_eos`."""
_SHORT_OF_MEMORY, _OVER_BUDGET = -1, 0
"""Results of `_select_prefill_admission` for a request that does not fit: the verdicts `NO_TOKEN` and `OTHER`."""


@part
def begin(engine: Engine) -> None:
    """Set the budgets of a new pass, and compute the number of slots that running requests are expected to need."""
    settings, state, radix = engine.radix.settings, engine.state, engine.radix.state
    num_mixed = state.num_running if settings.mixes else 0
    radix.input_left = settings.max_prefill_tokens - num_mixed
    radix.chunk_left = settings.chunk_tokens - num_mixed
    radix.num_held_rows, radix.admitted_chunked, radix.num_needs = 0, NOT_CHUNKED, -1
    radix.window_offset = 0
    expected = 0.0
    for index in range(state.num_running):
        expected += running_request_offset(engine, engine.sequences[engine.running[index]])
    radix.total_offset, radix.current_offset = num_mixed + expected, num_mixed


@part
def running_request_offset(engine: Engine, sequence: Sequence) -> float:
    """Return the number of further slots that a running request is expected to need: its remaining output limit, at
    most `most_new_tokens`, times `RadixState.ratio`. For a request that ignores stop tokens, the factor is 1.
    """
    holding = engine.radix.holdings[sequence.number]
    left = min(holding.limit - num_outputs(sequence), engine.radix.settings.most_new_tokens)
    return left * (1.0 if holding.ignores_eos else engine.radix.state.ratio)


@part
def num_outputs(sequence: Sequence) -> int:
    """Return the number of known output tokens of a request."""
    return sequence.num_tokens - sequence.prompt_tokens


@part
def rem_total_tokens(engine: Engine) -> float:
    """Return the number of slots, free or evictable from the tree, minus those that running requests and the requests
    admitted in this pass are expected to need until they end. It is a float because the expectation is.
    """
    return _num_reachable(engine) - engine.radix.state.total_offset


@part
def _cur_rem_tokens(engine: Engine) -> float:
    """Return the number of slots, free or evictable from the tree, minus those that the batch of this pass takes."""
    return _num_reachable(engine) - engine.radix.state.current_offset


@part
def _num_reachable(engine: Engine) -> int:
    return (engine.state.num_free + engine.state.num_cached) * engine.settings.unit_tokens


@part
def _rem_window_tokens(engine: Engine) -> int:
    """Return how many window slots are free or evictable, minus those that requests admitted in this pass need."""
    radix = engine.radix.state
    reachable = (radix.num_free_windows + radix.num_cached_windows) * engine.settings.unit_tokens
    return reachable - radix.window_offset


@part
def _window_tokens(engine: Engine, num_tokens: int, most_new: int, most_at_once: int) -> int:
    """Return the number of window slots for which a request needs room: an upper bound of those that it holds at the
    same time. It computes `num_tokens` tokens of its prompt, at most `most_at_once` in one step, and then `most_new`
    output tokens.
    """
    window = engine.radix.settings.window_tokens
    beyond = max(min(num_tokens, most_at_once) - window, 0)
    return beyond + min(num_tokens + most_new, window) + engine.settings.unit_tokens


@part
def _most_at_once(engine: Engine) -> int:
    """Return the largest number of prompt tokens that this pass may still compute; `NEVER` if there is no limit."""
    return engine.radix.state.chunk_left if engine.radix.settings.chunk_tokens > 0 else NEVER


@part
def budget_state(engine: Engine) -> int:
    """Return the verdict for the next candidate, by the memory and the other budgets that are left in this pass."""
    radix = engine.radix.state
    if rem_total_tokens(engine) <= 0 or _cur_rem_tokens(engine) <= 0:
        return NO_TOKEN
    if tree_windows.has_windows(engine) and _rem_window_tokens(engine) <= 0:
        return NO_TOKEN
    is_spent = radix.input_left <= 0 or (engine.radix.settings.chunk_tokens > 0 and radix.chunk_left <= 0)
    return OTHER if is_spent else CONTINUE


@part
def add_chunked_req(engine: Engine, sequence: Sequence, most: int) -> bool:
    """Add up to `most` tokens of the chunked request, whose prompt earlier passes have computed in part, to the batch.
    Return True if a part of the prompt is left after that.

    With windows, add nothing and return True if memory is short.
    """
    radix, holding = engine.radix.state, engine.radix.holdings[sequence.number]
    holding.laid_out_tokens = sequence.num_tokens
    available = min(radix.chunk_left, int(rem_total_tokens(engine)))
    if tree_windows.has_windows(engine):
        available = min(available, _rem_window_tokens(engine) - engine.settings.unit_tokens)
        if available <= 0:
            return True
    elif available <= 0:
        available = radix.chunk_left  # the request must go on, or its memory would never be freed
    available = min(available, most)
    num_left = sequence.num_tokens - holding.prefix_tokens
    is_cut = num_left > available
    radix.num_held_rows += 1
    _admit(engine, sequence, min(num_left, available), is_cut)
    return is_cut


@part
def add_one_req(engine: Engine, sequence: Sequence, has_chunked: bool) -> int:
    """Admit a waiting request if it fits, and return the verdict for the pass. `has_chunked` is True if the batch
    already has a prompt of which it computes only a part.
    """
    settings, holding = engine.radix.settings, engine.radix.holdings[sequence.number]
    if 0 < settings.prefill_max_requests <= engine.state.num_listed:
        return OTHER
    if holding.ignores_eos and not settings.has_tree:
        return _add_one_req_ignore_eos(engine, sequence)
    edge = tree_nodes.inc_lock_ref(engine, holding.node)
    num_tokens = _select_prefill_admission(engine, sequence, has_chunked)
    if num_tokens > 0 and holding.host_tokens > 0:
        if _load_back(engine, sequence):
            tree_nodes.dec_lock_ref(engine, holding.node, edge)
            holding.node, holding.protected_tokens = holding.host_node, holding.prefix_tokens
            edge = tree_nodes.inc_lock_ref(engine, holding.node)
        else:
            num_tokens = _select_prefill_admission(engine, sequence, has_chunked)
    if num_tokens <= 0:
        tree_nodes.dec_lock_ref(engine, holding.node, edge)
        return NO_TOKEN if num_tokens == _SHORT_OF_MEMORY else OTHER
    holding.lock, holding.edge = holding.node, edge
    _begin_request(engine, sequence, num_tokens)
    return budget_state(engine)


@part
def _load_back(engine: Engine, sequence: Sequence) -> bool:
    """Begin to load the part of a request's hit that is only on the host. Evict from the tree if necessary. Return
    False, and load nothing, if the device still has too little room, or if the part is too short to load.
    """
    holding = engine.radix.holdings[sequence.number]
    top, node, num_tokens = holding.node, holding.host_node, holding.host_tokens
    holding.host_tokens = 0
    tree_nodes.inc_lock_ref(engine, node)
    engine.radix.nodes[node].host_locks += 1
    if num_tokens >= tree_copies.LEAST_LOADED_TOKENS:
        request_rows.evict_from_tree_cache(engine, num_tokens)
    is_loaded = tree_copies.begin_load(engine, node, top, sequence.number)
    engine.radix.nodes[node].host_locks -= 1
    tree_nodes.dec_lock_ref(engine, node, 0)
    if is_loaded:
        holding.prefix_tokens += num_tokens
        holding.loaded_pages = num_tokens // engine.settings.unit_tokens
    return is_loaded


@part
def _select_prefill_admission(engine: Engine, sequence: Sequence, has_chunked: bool) -> int:
    """Return the number of tokens of a waiting request's first prefill; `_SHORT_OF_MEMORY` or `_OVER_BUDGET` if the
    request does not fit. For `has_chunked`, see `add_one_req`.
    """
    settings, radix, unit = engine.radix.settings, engine.radix.state, engine.settings.unit_tokens
    holding = engine.radix.holdings[sequence.number]
    num_tokens = sequence.num_tokens - holding.prefix_tokens
    most_new = min(max(holding.limit - num_outputs(sequence), 0), settings.most_new_tokens)
    if not num_tokens + most_new + unit < rem_total_tokens(engine):
        return _SHORT_OF_MEMORY
    num_tokens -= holding.host_tokens  # these take slots, but are loaded instead of computed
    whole, begin = token_slots.ceil_tokens(engine, num_tokens), holding.prefix_tokens + holding.host_tokens
    chunk_left = _fit_windows(engine, whole, most_new) if tree_windows.has_windows(engine) else _most_at_once(engine)
    if chunk_left <= 0:
        return _SHORT_OF_MEMORY
    if settings.chunk_tokens == 0:  # only the first prompt of a batch may exceed the budget
        return _OVER_BUDGET if engine.state.num_listed > 0 and whole >= radix.input_left else num_tokens
    if whole <= chunk_left:
        return num_tokens
    if has_chunked and settings.order == SHORTEST_PREFILL_FIRST:
        return _OVER_BUDGET
    # The chunk ends with a whole page.
    return max((begin + chunk_left // unit * unit) // unit * unit - begin, _OVER_BUDGET)


@part
def _fit_windows(engine: Engine, num_tokens: int, most_new: int) -> int:
    """Return the largest number of prompt tokens that a request may compute in this pass, by the window slots that are
    left; 0 if they do not suffice. The request has `num_tokens` prompt tokens left and at most `most_new` outputs.

    A result between 0 and `_most_at_once` is returned only for a request whose windows would not fit the pool.
    """
    most, unit = _most_at_once(engine), engine.settings.unit_tokens
    needed = _window_tokens(engine, num_tokens, most_new, most)
    if needed < _rem_window_tokens(engine):
        return most
    if engine.radix.settings.chunk_tokens == 0 or needed < engine.radix.settings.window_pages * unit:
        return 0
    room = _rem_window_tokens(engine) - _window_tokens(engine, 0, most_new, NEVER)
    return min(most, max(room // unit * unit, 0))


@part
def _begin_request(engine: Engine, sequence: Sequence, num_tokens: int) -> None:
    holding = engine.radix.holdings[sequence.number]
    is_cut = num_tokens < sequence.num_tokens - holding.prefix_tokens
    if is_cut:
        engine.radix.state.admitted_chunked = sequence.number
    sequence.computed = holding.prefix_tokens
    _admit(engine, sequence, num_tokens, is_cut)


@part
def _admit(engine: Engine, sequence: Sequence, num_tokens: int, is_cut: bool) -> None:
    """Add `num_tokens` tokens of a request to the batch, and subtract them from the budgets. If these tokens end the
    prompt (`is_cut` is False), also subtract the request's output limit, at most `most_new_tokens`.
    """
    settings, state, radix = engine.radix.settings, engine.state, engine.radix.state
    holding = engine.radix.holdings[sequence.number]
    holding.extend_end = holding.prefix_tokens + num_tokens
    engine.batch[state.num_listed], engine.batch_tokens[state.num_listed] = sequence.number, num_tokens
    state.num_listed += 1
    charge = token_slots.ceil_tokens(engine, num_tokens)
    most_new = 0 if is_cut else min(holding.limit, settings.most_new_tokens)
    if tree_windows.has_windows(engine):
        radix.window_offset += _window_tokens(engine, charge, most_new, _most_at_once(engine))
    radix.total_offset += charge + engine.settings.unit_tokens + most_new
    radix.current_offset += charge + engine.settings.unit_tokens
    radix.input_left -= charge
    radix.chunk_left -= charge


@part
def _add_one_req_ignore_eos(engine: Engine, sequence: Sequence) -> int:
    """Admit a waiting request that ignores stop tokens, if memory is expected to suffice until all requests have ended;
    return the verdict for the pass. Used without a prefix cache.

    The estimate visits the expected ends of requests in order; a request that ignores stop tokens ends at its limit.
    Before each end, the requests that are left must have room for their tokens. After it, the slots of the ended
    request are free. With windows, this estimate is left out, and the room for windows is checked instead.
    """
    settings, radix, unit = engine.radix.settings, engine.radix.state, engine.settings.unit_tokens
    holding = engine.radix.holdings[sequence.number]
    whole = token_slots.ceil_tokens(engine, sequence.num_tokens) + unit
    if whole > min(_cur_rem_tokens(engine), rem_total_tokens(engine)):
        return NO_TOKEN
    has_windows = tree_windows.has_windows(engine)
    if has_windows:
        most_new = min(max(holding.limit - num_outputs(sequence), 0), settings.most_new_tokens)
        needed = _window_tokens(engine, sequence.num_tokens, most_new, _most_at_once(engine))
        if needed > _rem_window_tokens(engine):
            return NO_TOKEN
    _insert_needs(engine, sequence)
    # Visit the ends of requests, the next one first. Until an end, each request that is left takes `need.left` slots.
    free_now, freed = _cur_rem_tokens(engine) - whole, 0
    for index in range(0 if has_windows else radix.num_needs):
        need, num_left = engine.radix.needs[index], radix.num_needs - index
        if free_now + freed - need.left * num_left <= _IGNORE_EOS_RESERVE_TOKENS * num_left:
            return NO_TOKEN
        freed += need.held
    if settings.chunk_tokens == 0 or sequence.num_tokens <= radix.chunk_left:
        _begin_request(engine, sequence, sequence.num_tokens)
    elif radix.chunk_left <= 0:
        return OTHER
    else:
        _begin_request(engine, sequence, radix.chunk_left)
    return budget_state(engine)


@part
def _insert_needs(engine: Engine, sequence: Sequence) -> None:
    """Insert a candidate's future needs into `RadixTables.needs`. The first call of a pass also inserts the needs of
    all running requests, and of those already in the batch.
    """
    radix, state = engine.radix.state, engine.state
    if radix.num_needs >= 0:
        _insert_later_need(engine, sequence)
        return
    radix.num_needs = 0
    _insert_in_order(engine, sequence)
    for index in range(state.num_running):
        _insert_in_order(engine, engine.sequences[engine.running[index]])
    for index in range(state.num_listed):
        _insert_in_order(engine, engine.sequences[engine.batch[index]])


@part
def _tokens_left(engine: Engine, sequence: Sequence) -> float:
    holding = engine.radix.holdings[sequence.number]
    return holding.limit * (1.0 if holding.ignores_eos else engine.radix.state.ratio) - num_outputs(sequence)


@part
def _insert_in_order(engine: Engine, sequence: Sequence) -> None:
    """Insert a request's future needs, if any, in ascending order of `Need.left`, after equal ones."""
    left, index = _tokens_left(engine, sequence), engine.radix.state.num_needs
    if left > 0:
        while index > 0 and engine.radix.needs[index - 1].left > left:
            index -= 1
        _insert_at(engine, index, left, sequence.num_tokens)


@part
def _insert_later_need(engine: Engine, sequence: Sequence) -> None:
    """Insert the future need of a pass's second or later candidate in ascending order of `Need.left`, before equal
    ones. As in SGLang, even a need larger than that of the last record is put before that record. Do nothing if the
    candidate is expected to need no more tokens.
    """
    left, index = _tokens_left(engine, sequence), 0
    last = engine.radix.state.num_needs - 1
    if left > 0:
        while index < last and engine.radix.needs[index].left < left:
            index += 1
        _insert_at(engine, index, left, sequence.num_tokens)


@part
def _insert_at(engine: Engine, place: int, left: float, held: int) -> None:
    needs, radix = engine.radix.needs, engine.radix.state
    for index in range(radix.num_needs, place, -1):
        needs[index].left, needs[index].held = needs[index - 1].left, needs[index - 1].held
    needs[place].left, needs[place].held = left, held
    radix.num_needs += 1


@part
def preempt_to_schedule(engine: Engine, sequence: Sequence) -> int:
    """Choose the running requests to preempt for a candidate. Write them to `RadixTables.order`, the least important
    first, and return their number.

    A request can be chosen if the candidate is more important by more than `preemption_threshold`. If all such requests
    together would free too little memory, return 0.
    """
    settings, num_victims = engine.radix.settings, 0
    holding = engine.radix.holdings[sequence.number]
    missing = holding.laid_out_tokens - holding.prefix_tokens + min(holding.limit, settings.most_new_tokens)
    to_free = missing - rem_total_tokens(engine)
    while True:
        victim = _least_important(engine, num_victims)
        if victim == NOT_CHUNKED or _lead(engine, sequence.number, victim) <= settings.preemption_threshold:
            break
        engine.radix.order[num_victims] = victim
        num_victims += 1
        to_free -= running_request_offset(engine, engine.sequences[victim])
        if to_free <= 0:
            break
    return num_victims if to_free <= 0 else 0


@part
def _lead(engine: Engine, number: int, other: int) -> int:
    """Return the difference of the priorities of two requests; positive if request `number` is the more important."""
    lead = engine.radix.holdings[number].priority - engine.radix.holdings[other].priority
    return -lead if engine.radix.settings.low_values_first else lead


@part
def _least_important(engine: Engine, num_chosen: int) -> int:
    """Return the number of the least important running request that is not among the `num_chosen` chosen ones; of
    equally important ones, that which entered the queue last. Return 0 if there is none; requests are numbered from 1.
    """
    found = 0
    for index in range(engine.state.num_running):
        number = engine.running[index]
        if engine.sequences[number].status != RUNNING or is_chosen(engine, num_chosen, number):
            continue
        lead = 1 if found == 0 else _lead(engine, found, number)
        is_later = engine.radix.holdings[number].entered > engine.radix.holdings[found].entered
        if lead > 0 or (lead == 0 and is_later):
            found = number
    return found


@part
def is_chosen(engine: Engine, num_chosen: int, number: int) -> bool:
    """Tell whether request `number` is among the first `num_chosen` requests in `RadixTables.order`."""
    found = False
    for index in range(num_chosen):
        found |= engine.radix.order[index] == number
    return found
