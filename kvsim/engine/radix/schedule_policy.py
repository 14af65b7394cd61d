"""SGLang's schedule policies, which sort the waiting queue, and the order in which running requests are retracted."""

from __future__ import annotations

from kvsim.engine import linked_list
from kvsim.engine.known_requests import BEGIN_TOKENS
from kvsim.engine.linked_list import HEAD
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.radix import radix_tree, request_rows, token_slots
from kvsim.engine.radix.prefill_adder import num_outputs
from kvsim.engine.radix_records import DFS_WEIGHT, FCFS, HRRN, LOF, LPM, LRU, ROOT, SHORTEST_PREFILL_FIRST
from kvsim.engine.records import NEVER, Sequence
from kvsim.engine.state import Engine

_MOST_SORTED_BY_PREFIX = 128
"""Most waiting requests for which `LPM` and `HRRN` match and sort. With more, the queue is in order of arrival."""
_MOST_TOUCHED = 128
"""Largest number of waiting requests for which `_touch_waiting_prefixes` matches prefixes."""
_LARGEST_RATIO = 1e300
"""Response ratio of a request that has no tokens to compute. It is larger than any other."""
_REFRESH_INTERVAL = 32
"""Passes of the scheduler with waiting requests from one effective call of `_touch_waiting_prefixes` to the next."""


@part
def calc_priority(engine: Engine) -> None:
    """Sort the waiting queue by the schedule policy. If the order depends on prefix hits, first match all waiting
    requests with the tree. If it is `FCFS` or `LOF`, match some waiting requests in every 32nd pass, only to mark their
    prefixes as used; see `_touch_waiting_prefixes`.
    """
    settings, state = engine.radix.settings, engine.state
    order = settings.order
    if order in (LPM, HRRN) and state.num_waiting > _MOST_SORTED_BY_PREFIX:
        order = FCFS
    if order in (LPM, DFS_WEIGHT, HRRN, SHORTEST_PREFILL_FIRST):
        _compute_prefix_matches(engine)
    if order == DFS_WEIGHT:
        _sort_by_dfs_weight(engine)
    elif order != FCFS or (settings.order == FCFS and settings.by_priority):
        _sort(engine)
    if order in (FCFS, LOF):
        _touch_waiting_prefixes(engine)


@part
def _compute_prefix_matches(engine: Engine) -> None:
    """Match all waiting requests with the tree, and set `Holding.is_put_back`, by which some requests are sorted last.

    A request is put back if the tree has at most its first `BEGIN_TOKENS` tokens, and another request, nearer to the
    head of the queue, begins with the same `BEGIN_TOKENS` tokens and is not put back. Once that request has computed
    these tokens, the one that was put back can hit them.
    """
    order, num_compared = engine.radix.order, 0
    number = engine.sequences[HEAD].next
    while number != HEAD:
        sequence, holding = engine.sequences[number], engine.radix.holdings[number]
        request_rows.match_kv_cache(engine, sequence, sequence.num_tokens)
        holding.is_put_back = False
        if holding.prefix_tokens <= BEGIN_TOKENS:
            if sequence.num_tokens >= BEGIN_TOKENS:
                for index in range(num_compared):
                    if engine.radix.holdings[order[index]].begin_key == holding.begin_key:
                        holding.is_put_back = True
                        break
            if not holding.is_put_back and sequence.num_tokens >= BEGIN_TOKENS:
                order[num_compared] = number
                num_compared += 1
        number = sequence.next


@part
def _sort(engine: Engine) -> None:
    """Sort the waiting queue by `_goes_before`. Equal requests keep their order."""
    order, size, number = engine.radix.order, 0, engine.sequences[HEAD].next
    while number != HEAD:
        place = size
        while place > 0 and _goes_before(engine, number, order[place - 1]):
            order[place] = order[place - 1]
            place -= 1
        order[place] = number
        size += 1
        number = engine.sequences[number].next
    _queue_in_order(engine, size)


@part
def _queue_in_order(engine: Engine, size: int) -> None:
    engine.sequences[HEAD].next = engine.sequences[HEAD].previous = HEAD
    for index in range(size):
        linked_list.push_back(engine.sequences, engine.radix.order[index])


@part
def _goes_before(engine: Engine, number: int, other: int) -> bool:
    order, first, second = engine.radix.settings.order, engine.radix.holdings[number], engine.radix.holdings[other]
    if order in (FCFS, LOF):
        if engine.radix.settings.by_priority and first.priority != second.priority:
            return (first.priority < second.priority) == engine.radix.settings.low_values_first
        return first.entered < second.entered if order == FCFS else first.limit > second.limit
    if first.is_put_back != second.is_put_back:
        return second.is_put_back
    if order == LPM:
        return not first.is_put_back and first.matched_tokens > second.matched_tokens
    if order == HRRN:
        ratio, least = _response_ratio(engine, number), _response_ratio(engine, other)
        return ratio > least or (ratio == least and first.rank < second.rank)
    work, most = _prefill_work(engine, number), _prefill_work(engine, other)
    return work < most or (work == most and first.entered < second.entered)


@part
def _response_ratio(engine: Engine, number: int) -> float:
    """Return the number of prefilled tokens that `RadixState.num_prefilled` has counted since a request entered the
    queue, divided by the number of prompt tokens that the request has to compute.

    Return 0 for a request that is put back, and `_LARGEST_RATIO` for one that has no tokens to compute.
    """
    holding = engine.radix.holdings[number]
    uncached = engine.sequences[number].prompt_tokens - holding.matched_tokens
    if holding.is_put_back:
        return 0.0
    if uncached <= 0:
        return _LARGEST_RATIO
    return (engine.radix.state.num_prefilled - holding.entered_at) / uncached


@part
def _prefill_work(engine: Engine, number: int) -> int:
    """Return the number of tokens that a waiting request has to compute; 1 if there are none."""
    return max(1, engine.sequences[number].num_tokens - engine.radix.holdings[number].matched_tokens)


@part
def _sort_by_dfs_weight(engine: Engine) -> None:
    """Sort the waiting queue by a depth-first walk of the tree. A waiting request is found at the node at which its
    prefix ends. Of the subtrees below a node, the one with the most waiting requests is visited first. The node's own
    requests come after those in the subtrees.
    """
    nodes, order, size = engine.radix.nodes, engine.radix.order, 0
    number = engine.sequences[HEAD].next
    while number != HEAD:
        _weigh(engine, number)
        number = engine.sequences[number].next
    node = ROOT
    while True:
        child = _take_heaviest_child(engine, node)
        if child != ROOT:  # go down
            node = child
            continue
        # All subtrees below the node were visited: list its own requests, reset its fields, and go up.
        number = nodes[node].first_waiting
        while number != HEAD:
            order[size] = number
            size += 1
            number = engine.radix.holdings[number].next_waiting
        nodes[node].weight = nodes[node].first_waiting = nodes[node].last_waiting = 0
        if node == ROOT:
            break
        node = nodes[node].parent
    _queue_in_order(engine, size)


@part
def _weigh(engine: Engine, number: int) -> None:
    """Append a waiting request to its node's list (`Node.first_waiting`); add 1 to the weights on the path to it."""
    nodes, node = engine.radix.nodes, engine.radix.holdings[number].node
    engine.radix.holdings[number].next_waiting = HEAD
    if nodes[node].first_waiting == HEAD:
        nodes[node].first_waiting = number
    else:
        engine.radix.holdings[nodes[node].last_waiting].next_waiting = number
    nodes[node].last_waiting = number
    while node != ROOT:
        nodes[node].weight += 1
        parent = nodes[node].parent
        if nodes[node].weight == 1:  # the first request below the node: add it to the children of its parent to visit
            nodes[node].next_sibling, nodes[parent].first_child = nodes[parent].first_child, node
        node = parent


@part
def _take_heaviest_child(engine: Engine, parent: int) -> int:
    """Return the heaviest child of `parent` that has waiting requests and was not visited, and mark it as visited. Of
    equally heavy children, choose the one attached first. Return `ROOT` if there is no such child.
    """
    nodes, found, before_found, before = engine.radix.nodes, ROOT, ROOT, ROOT
    child = nodes[parent].first_child
    while child != ROOT:
        one, best = nodes[child], nodes[found]
        is_heavier = one.weight > best.weight or (one.weight == best.weight and one.attached < best.attached)
        if found == ROOT or is_heavier:
            found, before_found = child, before
        before, child = child, one.next_sibling
    if found != ROOT:  # unlink it from the children to visit
        if before_found == ROOT:
            nodes[parent].first_child = nodes[found].next_sibling
        else:
            nodes[before_found].next_sibling = nodes[found].next_sibling
    return found


@part
def chunk_limit(engine: Engine, sequence: Sequence) -> int:
    """Return the largest number of tokens that the chunked request may compute in this pass. With
    `SHORTEST_PREFILL_FIRST`, the rest of the chunk is for waiting requests at the head of the queue that have fewer
    tokens to compute. Return `NEVER` if there are none, and for other orders.
    """
    unit, budget = engine.settings.unit_tokens, engine.radix.state.chunk_left
    if engine.radix.settings.order != SHORTEST_PREFILL_FIRST or budget < 2 * unit:
        return NEVER
    num_left = sequence.num_tokens - engine.radix.holdings[sequence.number].prefix_tokens
    number, reserved = engine.sequences[HEAD].next, 0
    while number != HEAD:
        work = _prefill_work(engine, number)
        charge = token_slots.ceil_tokens(engine, work)
        if work >= num_left or reserved + charge > budget - unit:
            break
        reserved += charge
        number = engine.sequences[number].next
    return (budget - reserved) // unit * unit if reserved > 0 else NEVER


@part
def _touch_waiting_prefixes(engine: Engine) -> None:
    """Match waiting requests with the tree in every 32nd pass, the head of the queue last, so that LRU counts their
    prefixes as used, and evicts other prefixes first.
    """
    settings, state, radix = engine.radix.settings, engine.state, engine.radix.state
    if state.num_waiting == 0 or settings.eviction != LRU or not settings.has_tree:
        return
    radix.num_waiting_passes += 1
    if radix.num_waiting_passes % _REFRESH_INTERVAL != 1:
        return
    number = engine.sequences[HEAD].next
    for _ in range(min(state.num_waiting, _MOST_TOUCHED) - 1):
        number = engine.sequences[number].next
    while number != HEAD:
        sequence = engine.sequences[number]
        radix_tree.match_prefix(engine, sequence, sequence.num_tokens)
        number = sequence.previous


@part
def order_for_retraction(engine: Engine) -> None:
    """Sort the running requests so that the one to retract first comes last.

    The keys are the number of output tokens, in descending order, and then the length of the prompt, in ascending
    order. With `retracts_by_priority`, the first key is the priority, the most important request first.
    """
    running = engine.running
    for index in range(1, engine.state.num_running):
        number, place = running[index], index
        while place > 0 and _is_kept_before(engine, number, running[place - 1]):
            running[place] = running[place - 1]
            place -= 1
        running[place] = number


@part
def _is_kept_before(engine: Engine, number: int, other: int) -> bool:
    first, second = engine.sequences[number], engine.sequences[other]
    if engine.radix.settings.retracts_by_priority:
        lead = engine.radix.holdings[number].priority - engine.radix.holdings[other].priority
        if lead != 0:
            return (lead < 0) == engine.radix.settings.low_values_first
    if num_outputs(first) != num_outputs(second):
        return num_outputs(first) > num_outputs(second)
    return first.prompt_tokens < second.prompt_tokens
