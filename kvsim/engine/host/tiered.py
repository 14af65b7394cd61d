"""The memory manager of an engine with vLLM 0.25.1's offload: a paged pool with a second tier in host memory.

It differs from the paged pool in three ways:

- A waiting sequence may load blocks from the host before it is admitted; meanwhile others are admitted before it.
- Where steps are scheduled ahead, blocks become free only once the output of all steps scheduled before is processed.
  So a preempted sequence frees no block for the step that preempts it.
- Copies are reported with the output of a step; until then, their blocks stay in use.
"""

from __future__ import annotations

from dataclasses import replace

from kvsim.engine import totals
from kvsim.engine.host import copies, host_jobs, offload
from kvsim.engine.host_tier import NO_JOB
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.memory import SKIP, STOP
from kvsim.engine.paged import groups, kv_cache
from kvsim.engine.records import Sequence
from kvsim.engine.state import LOADING, PREEMPTED, WAITING, Engine, table_of


@part
def find_prefix(engine: Engine, sequence: Sequence) -> int:
    """Return the number of computed tokens of a waiting sequence; begin a load if the host holds more of its prefix.

    The result is `SKIP` while the sequence loads, and `STOP` if the pool lacks the blocks for a load.
    """
    if sequence.status == LOADING:
        if engine.host.asked[sequence.number].num_jobs > 0:
            return SKIP
        offload.take_over(engine, sequence)
        sequence.status = PREEMPTED if sequence.preemptions > 0 else WAITING
    if sequence.num_units > 0:  # it was loaded
        return sequence.computed
    hit_tokens = kv_cache.find_prefix(engine, sequence)
    load_tokens = offload.find(engine, sequence, hit_tokens)
    if load_tokens > 0:
        return SKIP if offload.begin_load(engine, sequence, hit_tokens, load_tokens) else STOP
    return SKIP if load_tokens == SKIP else hit_tokens


@part
def admit(engine: Engine, sequence: Sequence, computed: int, num_tokens: int) -> bool:
    """Allocate blocks for tokens of a waiting sequence, which has a table already if it was loaded."""
    if sequence.num_units == 0:
        fits = kv_cache.admit(engine, sequence, computed, num_tokens)
    else:
        fits = _has_room_to_go_on(engine, sequence, num_tokens) and kv_cache.grow(engine, sequence, num_tokens)
    if fits:
        engine.host.asked[sequence.number].is_prefilling = computed + num_tokens < sequence.num_tokens
    return fits


@part
def free(engine: Engine, sequence: Sequence) -> None:
    """Free all blocks of a sequence, at once or when the steps and the load that write to them have ended."""
    host = engine.host
    asked = host.asked[sequence.number]
    if sequence.num_units == 0 or (sequence.status == LOADING and asked.num_jobs > 0):
        return
    asked.is_prefilling = False
    sequence.num_units = 0
    totals.lose_tokens(engine, sequence)
    if asked.last_step <= host.state.num_steps_processed or engine.settings.most_in_flight == 1:
        kv_cache.free_tables(engine, sequence)
        return
    if host.settings.is_timed:
        num_blocks = table_of(engine, sequence, 0).num_blocks
        engine.state.host_s += host.settings.deferred_block_s * num_blocks
    asked.free_after, asked.dead_tokens = host.state.num_steps_begun, sequence.computed
    engine.state.written += sequence.computed
    host.deferred[host.state.num_deferred] = sequence.number
    host.state.num_deferred += 1


@part
def awaits_transfers(engine: Engine) -> bool:
    """Tell whether a copy is still to be reported, so that the engine must go on even with nothing to compute."""
    return engine.host.state.num_jobs > 0


@part
def after_schedule(engine: Engine) -> None:
    """Store the blocks that the scheduled step fills; end the reservations of prompts that it completes."""
    state, host = engine.state, engine.host
    launched = engine.launched[state.next_launched]
    launched.computes = state.num_in_batch > 0
    if launched.computes:
        host.state.num_steps_begun += 1
    host.state.num_settled_calls += 1
    if state.num_in_batch + state.num_preempted + state.num_swapped_in > 0:
        host.state.num_settled_calls = 0
    for index in range(state.num_in_batch):
        host.asked[engine.batch[index]].last_step = host.state.num_steps_begun
    offload.end_step(engine)
    first = state.next_launched * engine.settings.max_num_seqs
    for index in range(first, first + launched.num_emitting):
        host.asked[engine.emitting[index]].is_prefilling = False


@part
def before_update(engine: Engine, launched: int) -> None:
    """Free the blocks that waited for the end of a step; `launched` is its index in the ring of steps in flight."""
    host = engine.host
    state = host.state
    state.num_updates += 1
    if not engine.launched[launched].computes:
        return
    state.num_steps_processed += 1
    num_freed = 0
    while num_freed < state.num_deferred:
        sequence = engine.sequences[host.deferred[num_freed]]
        if host.asked[sequence.number].free_after > state.num_steps_processed:
            break
        engine.state.written -= host.asked[sequence.number].dead_tokens
        kv_cache.free_tables(engine, sequence)
        num_freed += 1
    if num_freed > 0:
        state.num_deferred -= num_freed
        for index in range(state.num_deferred):
            host.deferred[index] = host.deferred[index + num_freed]


@part
def after_update(engine: Engine) -> None:
    """End the copies that are reported with the output that has just been processed."""
    while True:
        job = host_jobs.next_reported(engine, engine.host.state.num_updates)
        if job == NO_JOB:
            break
        sequence, is_load = engine.sequences[engine.host.jobs[job].sequence], engine.host.jobs[job].is_load
        offload.end_job(engine, job)
        if is_load and sequence.status != LOADING:  # the sequence was aborted during the load
            free(engine, sequence)


@part
def has_room_for_rows(engine: Engine) -> bool:
    """Tell whether the rows of copies have room for those that the next step reports."""
    return engine.host.state.num_copy_rows <= engine.host.settings.most_copy_rows


@part
def is_crowded(engine: Engine) -> bool:
    """Tell whether the rows of the recording had no room for the blocks of a load, so that the slice must end."""
    return engine.host.state.is_crowded


@part
def _has_room_to_go_on(engine: Engine, sequence: Sequence, num_tokens: int) -> bool:
    """Tell whether the pool has room for `num_tokens` of a waiting sequence after those that it has loaded."""
    free = kv_cache.num_admissible(engine)
    has = table_of(engine, sequence, 0).num_blocks
    whole = max(groups.num_blocks_for(engine, 0, sequence.num_tokens) - has, 0)
    if engine.settings.reserve_full_prompt and whole > free:
        return False
    return max(groups.num_blocks_for(engine, 0, sequence.computed + num_tokens) - has, 0) <= free


TIERED = replace(
    kv_cache.PAGED,
    name="tiered",
    find_prefix=find_prefix,
    admit=admit,
    free=free,
    awaits_transfers=awaits_transfers,
    after_schedule=after_schedule,
    before_update=before_update,
    after_update=after_update,
    start_transfers=copies.begin,
    poll_transfers=copies.poll,
    wait_for_transfers=copies.pass_time,
    has_room_for_rows=has_room_for_rows,
    is_crowded=is_crowded,
)
