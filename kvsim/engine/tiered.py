"""What a scheduler asks of a memory with a second tier on the host: who is next, what is free when, what is reported.

Sequences that load, or that are looked up again later, stand before the queue, and others overtake them. Where steps
are scheduled ahead, blocks are free only when the output of every step scheduled before is processed: a victim frees
nothing for the step that preempts it.
"""

from __future__ import annotations

from kvsim.engine import groups, host_jobs, kv_cache, linked_list, offload, running, totals, waiting_queue
from kvsim.engine.compiled import part
from kvsim.engine.host_tier import NO_JOB
from kvsim.engine.linked_list import HEAD
from kvsim.engine.state import LOADING, PREEMPTED, WAITING, Engine

_STOP, _LATER = -2, offload.LATER


@part
def has_pending(engine: Engine) -> bool:
    """Whether copies have to be reported: then the engine goes on although it has nothing to compute."""
    return engine.host.state[0].num_jobs > 0


@part
def is_crowded(engine: Engine) -> bool:
    """Whether a load could not be written down."""
    return engine.host.state[0].is_crowded


@part
def has_room_for_copies(engine: Engine) -> bool:
    """Whether the copies that the next step reports can be written down."""
    return engine.host.state[0].num_copy_rows <= engine.host.settings[0].most_copy_rows


@part
def admit_waiting(engine: Engine, budget: int) -> int:
    """Admit those that were set aside before, then from the queue, until one does not fit."""
    settings, state, host = engine.settings[0], engine.state[0], engine.host.state[0]
    host.num_looked_at = host.num_kept = 0
    while budget > 0 and state.num_running < settings.max_num_seqs:
        node = next_waiting(engine)
        if node == HEAD:
            break
        num_tokens = _consider(engine, node, budget)
        if num_tokens == _STOP:
            break
        _leave_head(engine, node)
        if num_tokens == _LATER:
            engine.host.set_aside[host.num_kept] = node
            engine.host.asked[node].is_set_aside = True
            host.num_kept += 1
            state.num_waiting += 1
        else:
            budget -= num_tokens
    for index in range(host.num_looked_at, host.num_set_aside):
        engine.host.set_aside[host.num_kept] = engine.host.set_aside[index]
        host.num_kept += 1
    host.num_set_aside = host.num_kept
    host.num_looked_at = host.num_kept = 0
    return budget


@part
def leave_queue(engine: Engine, node: int) -> None:
    """Take out a sequence, wherever it waits."""
    host = engine.host.state[0]
    if not engine.host.asked[node].is_set_aside:
        waiting_queue.remove(engine, node)
        return
    engine.host.asked[node].is_set_aside = False
    engine.state[0].num_waiting -= 1
    index = 0
    while engine.host.set_aside[index] != node:
        index += 1
    host.num_set_aside -= 1
    for later in range(index, host.num_set_aside):
        engine.host.set_aside[later] = engine.host.set_aside[later + 1]


@part
def end_step(engine: Engine) -> None:
    """A step is scheduled; see what it stores, and who computes its last piece of a prompt."""
    state, host = engine.state[0], engine.host
    launched = engine.launched[state.next_launched]
    launched.computes = state.num_in_batch > 0
    if launched.computes:
        host.state[0].num_steps_begun += 1
    host.state[0].num_settled_calls += 1
    if state.num_in_batch + state.num_preempted + state.num_swapped_in > 0:
        host.state[0].num_settled_calls = 0
    for index in range(state.num_in_batch):
        host.asked[engine.batch[index]].last_step = host.state[0].num_steps_begun
    offload.end_step(engine)
    first = state.next_launched * engine.settings[0].max_num_seqs
    for index in range(first, first + launched.num_emitting):
        host.asked[engine.emitting[index]].is_prefilling = False


@part
def begin_update(engine: Engine, launched: int) -> None:
    """The GPU has done a step: what was waiting for that is free."""
    host = engine.host
    state = host.state[0]
    state.num_updates += 1
    if not engine.launched[launched].computes:
        return
    state.num_steps_processed += 1
    num_freed = 0
    while num_freed < state.num_deferred:
        node = host.deferred[num_freed]
        if host.asked[node].free_after > state.num_steps_processed:
            break
        engine.state[0].written -= host.asked[node].dead_tokens
        kv_cache.free(engine, node)
        num_freed += 1
    if num_freed > 0:
        state.num_deferred -= num_freed
        for index in range(state.num_deferred):
            host.deferred[index] = host.deferred[index + num_freed]


@part
def end_update(engine: Engine) -> None:
    """Take note of the copies that are reported with the output that was processed."""
    while True:
        job = host_jobs.next_reported(engine, engine.host.state[0].num_updates)
        if job == NO_JOB:
            break
        node, is_load = engine.host.jobs[job].sequence, engine.host.jobs[job].is_load
        offload.end_job(engine, job)
        if is_load and engine.sequences[node].status != LOADING:  # it was aborted meanwhile
            free(engine, node)


@part
def free(engine: Engine, node: int) -> None:
    """Take everything back from a sequence, as soon as no step and no load writes there any more."""
    host, sequence = engine.host, engine.sequences[node]
    asked = host.asked[node]
    if sequence.num_units == 0 or (sequence.status == LOADING and asked.num_jobs > 0):
        return
    asked.is_prefilling = False
    sequence.num_units = 0
    totals.lose_tokens(engine, node)
    if asked.last_step <= host.state[0].num_steps_processed or engine.settings[0].most_in_flight == 1:
        kv_cache.free(engine, node)
        return
    if host.settings[0].is_timed:
        num_blocks = engine.tables[groups.table_of(engine, node, 0)].num_blocks
        engine.state[0].host_s += host.settings[0].deferred_block_s * num_blocks
    asked.free_after, asked.dead_tokens = host.state[0].num_steps_begun, sequence.computed
    engine.state[0].written += sequence.computed
    host.deferred[host.state[0].num_deferred] = node
    host.state[0].num_deferred += 1


@part
def next_waiting(engine: Engine) -> int:
    """The request that is next, `HEAD` where none is."""
    host = engine.host.state[0]
    if host.num_looked_at < host.num_set_aside:
        return engine.host.set_aside[host.num_looked_at]
    return engine.sequences[HEAD].next


@part
def _leave_head(engine: Engine, node: int) -> None:
    """Take out who was next."""
    host, state = engine.host.state[0], engine.state[0]
    if host.num_looked_at < host.num_set_aside:
        host.num_looked_at += 1
        engine.host.asked[node].is_set_aside = False
    else:
        linked_list.remove(engine.sequences, node)
    state.num_waiting -= 1


@part
def _consider(engine: Engine, node: int, budget: int) -> int:
    """Admit who is next: return the tokens that it computes, `_LATER` if others go on, `_STOP` if it does not fit."""
    sequence = engine.sequences[node]
    if sequence.status == LOADING:
        if engine.host.asked[node].num_jobs > 0:
            return _LATER
        offload.take_over(engine, node)
        sequence.status = PREEMPTED if sequence.preemptions > 0 else WAITING
    hit_tokens, computed, is_loaded = 0, sequence.computed, sequence.num_units > 0
    if not is_loaded:
        hit_tokens = computed = kv_cache.find_hits(engine, node)
        load_tokens = offload.find(engine, node, hit_tokens)
        if load_tokens == offload.LATER:
            return _LATER
        if load_tokens > 0:
            return _LATER if offload.begin_load(engine, node, hit_tokens, load_tokens) else _STOP
    num_tokens = running.num_tokens_to_begin_with(engine, node, computed, budget)
    if num_tokens == 0:
        return _STOP
    if is_loaded:
        fits = _go_on(engine, node, num_tokens)
    else:
        fits = kv_cache.admit(engine, node, hit_tokens, computed, num_tokens)
    if not fits:
        return _STOP
    if not is_loaded:
        engine.state[0].written += computed
    running.join(engine, node, computed, num_tokens)
    engine.host.asked[node].is_prefilling = computed + num_tokens < sequence.num_tokens
    return num_tokens


@part
def _go_on(engine: Engine, node: int, num_tokens: int) -> bool:
    """Make room for tokens of a waiting sequence behind those that were loaded."""
    settings, state, sequence = engine.settings[0], engine.state[0], engine.sequences[node]
    free = state.num_free
    if state.num_running > 0:
        free -= settings.watermark_blocks
    has = engine.tables[groups.table_of(engine, node, 0)].num_blocks
    if settings.reserve_full_prompt and max(groups.num_blocks_for(engine, 0, sequence.num_tokens) - has, 0) > free:
        return False
    if max(groups.num_blocks_for(engine, 0, sequence.computed + num_tokens) - has, 0) > free:
        return False
    return kv_cache.grow(engine, node, num_tokens)
