"""The memory manager of an engine with vLLM 0.25.1's offload: a paged pool with a second tier in host memory.

It differs from the paged pool in three ways:

- A waiting sequence may load blocks from the host before it is admitted. During the load, other sequences are admitted.
- With asynchronous scheduling, a sequence's blocks become free only when the outputs of its earlier steps are
  processed. So a sequence that is preempted frees no block for the step that preempts it.
- The end of a copy is reported with the output of a step. Until this report, loaded GPU blocks are not read, and host
  blocks of the copy are not evicted.
"""

from __future__ import annotations

from dataclasses import replace

from kvsim.engine.host import copies, host_jobs, offload
from kvsim.engine.host_tier import NO_JOB
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.memory import SKIP, STOP
from kvsim.engine.paged import external_kv, kv_cache
from kvsim.engine.records import Sequence
from kvsim.engine.state import LOADING, Engine, table_of


@part
def use_load(engine: Engine, sequence: Sequence) -> bool:
    """Return False while a waiting sequence's KV is being loaded. Then put the blocks into the prefix cache."""
    if sequence.status != LOADING:
        return True
    if engine.host.sequences[sequence.number].num_jobs > 0:
        return False
    external_kv.end_load(engine, sequence)
    external_kv.wait_again(sequence)
    return True


@part
def find_prefix(engine: Engine, sequence: Sequence) -> int:
    """Return the number of leading tokens of a waiting sequence that need not be computed. If the host has more of its
    tokens, begin to load them.

    Return `SKIP` if the sequence has to wait for a copy, such as the load just begun. Return `STOP` if the load does
    not fit into the pool.
    """
    if sequence.num_units > 0:  # the sequence was loaded
        return sequence.computed
    hit_tokens = kv_cache.find_prefix(engine, sequence)
    load_tokens = offload.find(engine, sequence, hit_tokens)
    if load_tokens > 0:
        return SKIP if offload.begin_load(engine, sequence, hit_tokens, load_tokens) else STOP
    return SKIP if load_tokens == SKIP else hit_tokens


@part
def free(engine: Engine, sequence: Sequence) -> None:
    """Free all GPU blocks of a sequence. If a load still writes to them, they are freed once its end is reported. If
    steps in flight still write to them, they are freed once the outputs of these steps are processed.
    """
    host = engine.host
    external_kv.end_prefilling(engine, sequence)
    if sequence.status == LOADING and host.sequences[sequence.number].num_jobs > 0:
        return
    if not external_kv.free(engine, sequence) and host.settings.is_timed:
        engine.state.host_s += host.settings.deferred_block_s * table_of(engine, sequence, 0).num_blocks


@part
def awaits_transfers(engine: Engine) -> bool:
    """Tell whether a copy has not been reported as ended, so that the scheduler is called again."""
    return engine.host.state.num_jobs > 0


@part
def after_schedule(engine: Engine) -> None:
    """Begin stores of the blocks that the scheduled step fills. Cancel reservations for prompts that it completes."""
    state = engine.state
    external_kv.record_step(engine, state.num_in_batch + state.num_preempted + state.num_swapped_in > 0)
    offload.end_step(engine)


@part
def after_update(engine: Engine) -> None:
    """End the copies whose end is reported with the output just processed."""
    while True:
        job = host_jobs.pop_reported(engine, engine.external.state.num_updates)
        if job == NO_JOB:
            break
        sequence, is_load = engine.sequences[engine.host.jobs[job].sequence], engine.host.jobs[job].is_load
        offload.end_job(engine, job)
        if is_load and sequence.status != LOADING:  # the sequence was aborted during the load
            free(engine, sequence)


@part
def has_room_for_rows(engine: Engine) -> bool:
    """Tell whether the copies that the next step may report can be recorded."""
    return engine.host.state.num_copy_rows <= engine.host.settings.most_copy_rows


TIERED = replace(
    kv_cache.PAGED,
    name="tiered",
    use_load=use_load,
    find_prefix=find_prefix,
    admit=external_kv.admit,
    free=free,
    awaits_transfers=awaits_transfers,
    after_schedule=after_schedule,
    before_update=external_kv.before_update,
    after_update=after_update,
    start_transfers=copies.begin,
    poll_transfers=copies.poll,
    wait_for_transfers=copies.pass_time,
    has_room_for_rows=has_room_for_rows,
)
