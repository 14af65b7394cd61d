"""The memory manager of an engine with a KV connector: vLLM's paged pool with KV that comes from outside.

The KV comes from a store, which holds a number of tokens after the prefix hits, or from another server, which has
computed the whole prompt.

- An asynchronous load runs between steps. It takes blocks at once, and its sequence is skipped until the end of the
  load is reported. Blocks for the rest of every unfinished prompt stay reserved.
- A sequence that has ended may keep its blocks until another server has read them.
- The clock of a link, an oracle or a recording decides when a transfer ends.
"""

from __future__ import annotations

from dataclasses import replace

from kvsim.engine import encoder_cache, prefilling, scheduler, totals, waiting_queue
from kvsim.engine.connector import failed_loads
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.memory import SKIP, STOP
from kvsim.engine.paged import groups, kv_cache
from kvsim.engine.records import Sequence
from kvsim.engine.state import ABORTED, LOADING, NO_KEY, PREEMPTED, RUNNING, WAITING, Engine, table_of


@part
def use_load(engine: Engine, sequence: Sequence) -> bool:
    """Put the blocks that a waiting sequence has loaded into the prefix cache; return False while it still loads."""
    if sequence.status != LOADING:
        return True
    transfer = engine.connector.transfers[sequence.number]
    if not transfer.has_come:
        return False
    sequence.status = PREEMPTED if sequence.preemptions > 0 else WAITING
    if transfer.has_failed and sequence.computed == 0:
        totals.lose_tokens(engine, sequence)
        kv_cache.free_tables(engine, sequence)
        sequence.num_units = 0
    else:
        kv_cache.cache_blocks(engine, sequence, sequence.computed)
        if sequence.computed == sequence.num_tokens:
            sequence.computed -= 1
            sequence.rejected = 1  # the slot of the last token is written already, and will be written again
    transfer.has_come = transfer.has_failed = False
    return True


@part
def find_prefix(engine: Engine, sequence: Sequence) -> int:
    """Return the number of tokens of a waiting sequence that need not be computed: hits, and KV from outside.

    The result is `SKIP` if this begins an asynchronous load or the store has not answered yet, and `STOP` if the pool
    has no room for such a load.
    """
    engine.connector.state.num_external = 0
    if sequence.computed > 0:  # an asynchronous load has ended
        return sequence.computed
    hit_tokens = kv_cache.find_prefix(engine, sequence)
    external = _num_external(engine, sequence, hit_tokens)
    if external == SKIP:
        return SKIP
    if external > 0 and engine.connector.transfers[sequence.number].is_async:
        return SKIP if _begin_load(engine, sequence, hit_tokens, external) else STOP
    engine.connector.state.num_external = external
    return hit_tokens + external


@part
def admit(engine: Engine, sequence: Sequence, computed: int, num_tokens: int) -> bool:
    """Allocate blocks for tokens of a waiting sequence, which has a table already if it was loaded."""
    if sequence.num_units == 0:
        fits = kv_cache.admit(engine, sequence, computed, num_tokens)
    else:
        fits = _has_room_to_go_on(engine, sequence, num_tokens) and kv_cache.grow(engine, sequence, num_tokens)
    if fits:
        _record_allocation(engine, sequence, engine.connector.state.num_external)
        if computed + num_tokens < sequence.num_tokens:
            prefilling.add(engine, sequence)
    return fits


@part
def free(engine: Engine, sequence: Sequence) -> None:
    """Free all blocks of a sequence, or keep them until the transfer that reads or writes them is reported."""
    connector = engine.connector
    transfer = connector.transfers[sequence.number]
    prefilling.leave(engine, sequence)
    if sequence.status == LOADING and not transfer.has_come:
        _hold(engine, sequence)
        return
    transfer.has_come = transfer.has_failed = False
    if transfer.fetches:  # the sequence leaves before blocks were allocated for the fetch
        _notify_unneeded(engine, sequence)
    has_ended = sequence.num_tokens >= sequence.end_tokens and sequence.status in (RUNNING, PREEMPTED)
    if has_ended and transfer.is_kept and (connector.settings.is_store or sequence.num_units > 0):
        _hold(engine, sequence)
        _record_begin(engine, sequence, 0, sequence.computed)
        transfer.begin_s = engine.state.host_s
        connector.sends[connector.state.num_sends] = sequence.number
        connector.state.num_sends += 1
        return
    _release(engine, sequence)


@part
def frees_at_once(engine: Engine, sequence: Sequence) -> bool:
    """Tell whether a running sequence may be preempted: some releases spare those whose blocks are not free at once."""
    return not engine.connector.settings.spares_busy or _can_free_now(engine, sequence)


@part
def awaits_transfers(engine: Engine) -> bool:
    """Tell whether a transfer is still to be reported, so that the engine must go on even with nothing to compute."""
    return engine.connector.state.num_held > 0 or engine.connector.state.num_loading > 0


@part
def after_schedule(engine: Engine) -> None:
    """Record the last step of each sequence in the batch; end the reservations of prompts that the step completes."""
    state, connector = engine.state, engine.connector
    launched = engine.launched[state.next_launched]
    launched.computes = state.num_in_batch > 0
    if launched.computes:
        connector.state.num_steps_begun += 1
    has_effect = state.num_in_batch + state.num_preempted + connector.state.num_loads > 0
    connector.state.num_settled_calls = 0 if has_effect else connector.state.num_settled_calls + 1
    for index in range(state.num_in_batch):
        connector.transfers[engine.batch[index]].last_step = connector.state.num_steps_begun
    first = state.next_launched * engine.settings.max_num_seqs
    for index in range(first, first + launched.num_emitting):
        prefilling.leave(engine, engine.sequences[engine.emitting[index]])


@part
def before_update(engine: Engine, launched: int) -> None:
    """Free the blocks that waited for the oldest step in flight, and handle the loads reported as failed."""
    connector = engine.connector
    connector.state.num_updates += 1
    if engine.launched[launched].computes:
        connector.state.num_steps_processed += 1
        _free_deferred(engine)
    failed_loads.fall_back(engine, launched)


@part
def after_update(engine: Engine) -> None:
    """End the sequences whose loads failed, then the transfers that are reported with this output."""
    connector = engine.connector
    for index in range(connector.state.num_errors):
        sequence = engine.sequences[connector.errors[index]]
        if sequence.status != RUNNING:
            waiting_queue.remove(engine, sequence)
        free(engine, sequence)
        if engine.settings.encoder_tokens > 0:
            encoder_cache.let_go(engine, sequence)
        connector.transfers[sequence.number].is_error = True
        scheduler.end(engine, sequence, ABORTED, engine.state.host_s)
    connector.state.num_errors = 0
    num_due = 0
    while num_due < connector.state.num_reports:
        report = connector.reports[num_due]
        if report.reported_in > connector.state.num_updates:
            break
        sequence = engine.sequences[report.sequence]
        connector.state.num_loading -= report.is_load
        connector.transfers[sequence.number].ended_seq = engine.state.seq
        if sequence.status == LOADING:
            connector.transfers[sequence.number].has_come = True
        elif connector.transfers[sequence.number].is_held:
            connector.transfers[sequence.number].is_held = False
            connector.state.num_held -= 1
            _release(engine, sequence)
        num_due += 1
    connector.state.num_reports -= num_due
    if num_due > 0:
        connector.state.num_settled_calls = 0
    for index in range(connector.state.num_reports):
        report, later = connector.reports[index], connector.reports[index + num_due]
        report.sequence, report.is_load, report.reported_in = later.sequence, later.is_load, later.reported_in


@part
def report(engine: Engine, sequence: Sequence, is_load: bool, step: int) -> None:
    """Let the end of a load, or of the reading of kept blocks, be reported with the output of `step`."""
    connector = engine.connector
    report = connector.reports[connector.state.num_reports]
    connector.state.num_reports += 1
    report.sequence, report.is_load, report.reported_in = sequence.number, is_load, step
    if is_load:
        failed_loads.report(engine, sequence, connector.transfers[sequence.number].loads_from, step)


@part
def _num_external(engine: Engine, sequence: Sequence, hit_tokens: int) -> int:
    """Return the number of tokens after the hits that can be loaded; `SKIP` while the store has not answered."""
    connector = engine.connector
    transfer = connector.transfers[sequence.number]
    if connector.settings.is_store:
        if transfer.num_unknown > 0:
            transfer.num_unknown -= 1
            return SKIP
        most = sequence.num_tokens if transfer.is_async else sequence.num_tokens - 1
        return max(min(transfer.stored_tokens, most) - hit_tokens, 0)
    if not transfer.fetches:
        return 0
    backoff = connector.settings.backoff_tokens
    fetched = sequence.prompt_tokens - (backoff if sequence.prompt_tokens > backoff else 0)
    return max(fetched - hit_tokens, 0)


@part
def _begin_load(engine: Engine, sequence: Sequence, hit_tokens: int, external: int) -> bool:
    """Allocate blocks for the load of a waiting sequence and begin it; return False if the pool lacks the blocks."""
    settings, state, connector = engine.settings, engine.state, engine.connector
    loaded = hit_tokens + external
    free_blocks = kv_cache.num_admissible(engine)
    if sequence.num_units == 0:
        whole = groups.num_needed_at_admission(engine, 0, sequence.num_tokens, hit_tokens, True)
        needed = groups.num_needed_at_admission(engine, 0, loaded, hit_tokens, False)
    else:
        num_blocks = table_of(engine, sequence, 0).num_blocks
        whole = max(groups.num_blocks_for(engine, 0, sequence.num_tokens) - num_blocks, 0)
        needed = max(groups.num_blocks_for(engine, 0, loaded) - num_blocks, 0)
    if settings.reserve_full_prompt and whole > free_blocks:
        return False
    if needed > free_blocks - prefilling.num_reserved(engine):
        return False
    if settings.records_memory and state.num_memory_rows > connector.settings.most_rows:
        connector.state.is_crowded = True
        return False
    if sequence.num_units == 0:
        kv_cache.begin_tables(engine, sequence, hit_tokens, loaded, loaded)
        state.written += loaded * settings.token_slots
    else:
        state.written += (loaded - sequence.computed - sequence.rejected) * settings.token_slots
        sequence.rejected = 0
    sequence.status = LOADING
    sequence.computed = loaded
    prefilling.add(engine, sequence)
    connector.loads[connector.state.num_loads] = sequence.number
    connector.state.num_loads += 1
    connector.state.num_loading += 1
    _record_allocation(engine, sequence, external)
    _record_begin(engine, sequence, connector.transfers[sequence.number].loads_from, external)
    return True


@part
def _record_allocation(engine: Engine, sequence: Sequence, external: int) -> None:
    """Record that a sequence has its blocks, and that `external` tokens in them come from outside.

    The load fills the table from `loads_from` on, after the leading blocks that are in the prefix cache.
    """
    connector = engine.connector
    transfer = connector.transfers[sequence.number]
    transfer.external_tokens = external
    transfer.loads_from = 0
    if connector.settings.is_store:
        if external > 0 and sequence.status != LOADING:
            failed_loads.report(engine, sequence, 0, engine.state.num_scheduled)
        return
    if not transfer.fetches:
        return
    table = table_of(engine, sequence, 0)
    while (
        transfer.loads_from < table.num_blocks
        and engine.blocks[engine.entries[table.begin + transfer.loads_from]].key != NO_KEY
    ):
        transfer.loads_from += 1
    if external == 0:
        _notify_unneeded(engine, sequence)
    transfer.fetches = False


@part
def _notify_unneeded(engine: Engine, sequence: Sequence) -> None:
    """Tell the other server that this sequence fetches nothing from it, so it can free its blocks."""
    connector = engine.connector
    connector.transfers[sequence.number].fetches = False
    connector.notices[connector.state.num_notices] = sequence.number
    connector.state.num_notices += 1


@part
def _record_begin(engine: Engine, sequence: Sequence, first: int, num_tokens: int) -> None:
    """Record the begin of a transfer of a table's entries from `first` on, which hold `num_tokens` tokens."""
    transfer = engine.connector.transfers[sequence.number]
    transfer.begun_seq, transfer.ended_seq = engine.state.seq, -1
    transfer.first_entry, transfer.num_tokens = first, num_tokens
    transfer.num_blocks = table_of(engine, sequence, 0).num_blocks - first


@part
def _hold(engine: Engine, sequence: Sequence) -> None:
    """Keep the blocks of an ended sequence until its transfer is reported."""
    engine.connector.transfers[sequence.number].is_held = True
    engine.connector.state.num_held += 1


@part
def _can_free_now(engine: Engine, sequence: Sequence) -> bool:
    """Tell whether the blocks of a sequence can be freed now.

    They can if no step in flight writes to them, or if the engine does not defer frees (`frees_late`).
    """
    connector = engine.connector
    last_step = connector.transfers[sequence.number].last_step
    return not engine.settings.frees_late or last_step <= connector.state.num_steps_processed


@part
def _release(engine: Engine, sequence: Sequence) -> None:
    """Free the blocks of a sequence at once, or when the steps in flight that write to them are processed."""
    if sequence.num_units == 0:
        return
    connector = engine.connector
    sequence.num_units = 0
    totals.lose_tokens(engine, sequence)
    if _can_free_now(engine, sequence):
        kv_cache.free_tables(engine, sequence)
        return
    transfer = connector.transfers[sequence.number]
    transfer.free_after, transfer.dead_tokens = connector.state.num_steps_begun, sequence.computed
    engine.state.written += sequence.computed * engine.settings.token_slots
    connector.deferred[connector.state.num_deferred] = sequence.number
    connector.state.num_deferred += 1


@part
def _free_deferred(engine: Engine) -> None:
    """Free the blocks that waited for steps whose output is now processed."""
    connector, num_freed = engine.connector, 0
    state = connector.state
    while num_freed < state.num_deferred:
        sequence = engine.sequences[connector.deferred[num_freed]]
        transfer = connector.transfers[sequence.number]
        if transfer.free_after > state.num_steps_processed:
            break
        engine.state.written -= transfer.dead_tokens * engine.settings.token_slots
        kv_cache.free_tables(engine, sequence)
        num_freed += 1
    state.num_deferred -= num_freed
    for index in range(state.num_deferred):
        connector.deferred[index] = connector.deferred[index + num_freed]


@part
def _has_room_to_go_on(engine: Engine, sequence: Sequence, num_tokens: int) -> bool:
    """Tell whether the pool has room for `num_tokens` of a waiting sequence after those that it has loaded."""
    settings = engine.settings
    free_blocks = kv_cache.num_admissible(engine)
    num_blocks = table_of(engine, sequence, 0).num_blocks
    whole = max(groups.num_blocks_for(engine, 0, sequence.num_tokens) - num_blocks, 0)
    if settings.reserve_full_prompt and whole > free_blocks:
        return False
    slots = min(sequence.computed + num_tokens + settings.lookahead_tokens, settings.max_model_len)
    return max(groups.num_blocks_for(engine, 0, slots) - num_blocks, 0) <= free_blocks


@part
def is_crowded(engine: Engine) -> bool:
    """Tell whether the rows of memory had no room for a load."""
    return engine.connector.state.is_crowded


CONNECTED = replace(
    kv_cache.PAGED,
    name="connected",
    take_over=use_load,
    find_prefix=find_prefix,
    admit=admit,
    free=free,
    frees_at_once=frees_at_once,
    awaits_transfers=awaits_transfers,
    after_schedule=after_schedule,
    before_update=before_update,
    after_update=after_update,
    is_crowded=is_crowded,
)
