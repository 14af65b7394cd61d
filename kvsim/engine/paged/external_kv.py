"""Loads between steps, and blocks that are freed late: rules for both host memory and KV connectors.

All blocks of a load are allocated when it begins, and its sequence is skipped until the load has ended. To prevent
deadlock, a load begins only if the pool also has room for the rest of all unfinished prompts. If blocks to which a step
in flight still writes were freed, a transfer might overwrite them. So these blocks are freed only when the output of
this step is processed.
"""

from __future__ import annotations

from kvsim.engine import totals
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.paged import groups, kv_cache
from kvsim.engine.records import LOADS_UNRECORDED, Sequence
from kvsim.engine.state import LOADING, PREEMPTED, WAITING, Engine, table_of

_ENOUGH_IDLE_CALLS = 2
"""Number of consecutive calls of the scheduler without effect after which no further call has an effect, until a
transfer ends or a request arrives.
"""


@part
def begin_load(engine: Engine, sequence: Sequence, hit_tokens: int, loaded: int) -> bool:
    """Allocate blocks for the first `loaded` tokens of a waiting sequence, and mark the sequence as loading.

    Its first `hit_tokens` tokens are in the prefix cache. Return False, and allocate nothing, if too few blocks are
    free, or if there is no room to record the load.
    """
    settings, state = engine.settings, engine.state
    if sequence.num_units == 0:
        whole = groups.num_needed_at_admission(engine, 0, sequence.num_tokens, hit_tokens, True)
        needed = groups.num_needed_at_admission(engine, 0, loaded, hit_tokens, False)
    else:
        whole, needed = _num_missing(engine, sequence, sequence.num_tokens), _num_missing(engine, sequence, loaded)
    if not _fits(engine, whole, needed + num_reserved(engine)):
        return False
    if settings.records_memory and state.num_memory_rows > settings.most_rows_before_load:
        state.failure = LOADS_UNRECORDED
        return False
    if sequence.num_units == 0:
        kv_cache.begin_tables(engine, sequence, hit_tokens, loaded, loaded)
        state.written += loaded * settings.token_slots
    else:
        state.written += (loaded - sequence.computed - sequence.rejected) * settings.token_slots
        sequence.rejected = 0
    sequence.status = LOADING
    sequence.computed = loaded
    _add_prefilling(engine, sequence)
    return True


@part
def end_load(engine: Engine, sequence: Sequence) -> None:
    """Put the blocks that a sequence has loaded into the prefix cache. If all of its tokens were loaded, count the last
    one as not computed, because a step must compute it to yield an output token.
    """
    kv_cache.cache_blocks(engine, sequence, sequence.computed)
    if sequence.computed == sequence.num_tokens:
        sequence.computed -= 1
        sequence.rejected = 1  # the slot of the last token is written already, and will be written again


@part
def wait_again(sequence: Sequence) -> None:
    """Set the status of a sequence whose load has ended: `PREEMPTED` if it was ever preempted, else `WAITING`."""
    sequence.status = PREEMPTED if sequence.preemptions > 0 else WAITING


@part
def admit(engine: Engine, sequence: Sequence, computed: int, num_tokens: int) -> bool:
    """Allocate blocks for the `num_tokens` tokens of a waiting sequence after its first `computed`. Return False if the
    pool has too little room. If KV was loaded for the sequence, it already has a table, which is extended.
    """
    if sequence.num_units == 0:
        fits = kv_cache.admit(engine, sequence, computed, num_tokens)
    else:
        slots = min(sequence.computed + num_tokens + engine.settings.lookahead_tokens, engine.settings.max_model_len)
        whole, needed = _num_missing(engine, sequence, sequence.num_tokens), _num_missing(engine, sequence, slots)
        fits = _fits(engine, whole, needed) and kv_cache.grow(engine, sequence, num_tokens)
    if fits and computed + num_tokens < sequence.num_tokens:
        _add_prefilling(engine, sequence)
    return fits


@part
def record_step(engine: Engine, has_effect: bool) -> None:
    """Record the number of the step just scheduled in each of its sequences. Cancel the reservations of blocks for
    prompts that the step completes. `has_effect` is True if this call of the scheduler changed anything.
    """
    state, external = engine.state, engine.external
    launched = engine.launched[state.next_launched]
    launched.computes = state.num_in_batch > 0
    if launched.computes:
        external.state.num_steps_begun += 1
    external.state.num_idle_calls = 0 if has_effect else external.state.num_idle_calls + 1
    for index in range(state.num_in_batch):
        external.sequences[engine.batch[index]].last_step = external.state.num_steps_begun
    first = state.next_launched * engine.settings.max_num_seqs
    for index in range(first, first + launched.num_emitting):
        end_prefilling(engine, engine.sequences[engine.emitting[index]])


@part
def before_update(engine: Engine, launched: int) -> None:
    """Free the blocks kept until the output of the oldest step in flight: number `launched` in `Engine.launched`."""
    external, num_freed = engine.external, 0
    state = external.state
    state.num_updates += 1
    if not engine.launched[launched].computes:
        return
    state.num_steps_processed += 1
    while num_freed < state.num_deferred:
        sequence = engine.sequences[external.deferred[num_freed]]
        record = external.sequences[sequence.number]
        if record.free_after > state.num_steps_processed:
            break
        engine.state.written -= record.dead_tokens * engine.settings.token_slots
        kv_cache.free_tables(engine, sequence)
        num_freed += 1
    state.num_deferred -= num_freed
    for index in range(state.num_deferred):
        external.deferred[index] = external.deferred[index + num_freed]


@part
def frees_at_once(engine: Engine, sequence: Sequence) -> bool:
    """Tell whether freeing the blocks of a sequence would make them free at once, because no step in flight computes
    its tokens or because this engine does not wait for such steps.
    """
    settings, external = engine.settings, engine.external
    is_idle = external.sequences[sequence.number].last_step <= external.state.num_steps_processed
    return is_idle or not settings.frees_late or settings.most_in_flight == 1


@part
def free(engine: Engine, sequence: Sequence) -> bool:
    """Free any blocks of a sequence. Return False if they stay in use until steps in flight are processed."""
    if sequence.num_units == 0:
        return True
    sequence.num_units = 0  # the sequence has no table from here on, even if its blocks are freed later
    totals.remove_computed(engine, sequence)
    if frees_at_once(engine, sequence):
        kv_cache.free_tables(engine, sequence)
        return True
    external = engine.external
    record = external.sequences[sequence.number]
    record.free_after, record.dead_tokens = external.state.num_steps_begun, sequence.computed
    engine.state.written += sequence.computed * engine.settings.token_slots
    external.deferred[external.state.num_deferred] = sequence.number
    external.state.num_deferred += 1
    return False


@part
def is_settled(engine: Engine) -> bool:
    """Tell whether further calls of the scheduler have no effect until a transfer ends or a request arrives."""
    return engine.external.state.num_idle_calls >= _ENOUGH_IDLE_CALLS


@part
def end_prefilling(engine: Engine, sequence: Sequence) -> None:
    """End the reservation for the rest of a sequence's prompt, if there is one."""
    external = engine.external
    place = external.sequences[sequence.number].prefilling_place
    if place == 0:
        return
    external.sequences[sequence.number].prefilling_place = 0
    external.state.num_prefilling -= 1
    last = external.prefilling[external.state.num_prefilling]
    if last != sequence.number:
        external.prefilling[place - 1] = last
        external.sequences[last].prefilling_place = place


@part
def num_reserved(engine: Engine) -> int:
    """Return the number of blocks that are reserved for the rest of the unfinished prompts of admitted sequences. If
    `Settings.reserved_draft_tokens` is not 0, add blocks for this number of drafts of each of these sequences, and of
    the sequence that is being admitted.
    """
    external, settings = engine.external, engine.settings
    draft_tokens, block_size = settings.reserved_draft_tokens, settings.unit_tokens
    num_blocks = -(-draft_tokens // block_size)
    for index in range(external.state.num_prefilling):
        sequence = engine.sequences[external.prefilling[index]]
        held = table_of(engine, sequence, 0).num_blocks if sequence.num_units > 0 else 0
        num_tokens = min(sequence.num_tokens, settings.max_model_len) + draft_tokens
        num_blocks += max(-(-num_tokens // block_size) - held, 0)
    return num_blocks


@part
def _add_prefilling(engine: Engine, sequence: Sequence) -> None:
    """Reserve blocks, once, for the rest of a sequence's prompt, until `end_prefilling` is called for it."""
    external = engine.external
    record = external.sequences[sequence.number]
    if record.prefilling_place == 0:
        external.prefilling[external.state.num_prefilling] = sequence.number
        external.state.num_prefilling += 1
        record.prefilling_place = external.state.num_prefilling


@part
def _num_missing(engine: Engine, sequence: Sequence, num_tokens: int) -> int:
    return max(groups.num_blocks_for(engine, 0, num_tokens) - table_of(engine, sequence, 0).num_blocks, 0)


@part
def _fits(engine: Engine, whole: int, needed: int) -> bool:
    """Tell whether enough blocks are free to allocate `needed` blocks to a waiting sequence. With
    `reserve_full_prompt`, at least `whole` blocks must be free, enough for all tokens of the sequence.
    """
    free_blocks = kv_cache.num_admissible(engine)
    return needed <= free_blocks and not (engine.settings.reserve_full_prompt and whole > free_blocks)
