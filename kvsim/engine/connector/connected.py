"""The memory manager of an engine with a KV connector: vLLM's paged pool with KV that comes from outside.

The KV comes from a store, which may have tokens after the prefix hits, or from another server, which has computed the
whole prompt.

- An asynchronous load runs between steps. All its blocks are allocated when it begins, and the scheduler skips its
  sequence until the end of the load is reported.
- A load begins only if the pool also has room for the rest of every unfinished prompt.
- A sequence that has ended may keep its blocks until another server has read them.
- The clock of the simulated link decides when a transfer ends, or the caller if it follows a real scheduler.
"""

from __future__ import annotations

from dataclasses import replace

from kvsim.engine import encoder_cache, scheduler, totals, waiting_queue
from kvsim.engine.connector import failed_loads
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.memory import SKIP, STOP
from kvsim.engine.paged import external_kv, kv_cache
from kvsim.engine.records import Sequence
from kvsim.engine.state import ABORTED, LOADING, NO_KEY, PREEMPTED, RUNNING, Engine, table_of


@part
def use_load(engine: Engine, sequence: Sequence) -> bool:
    """Return False while the KV of a waiting sequence is being loaded. Once the load has ended, put the loaded blocks
    into the prefix cache, or free them if none of the KV is valid.
    """
    if sequence.status != LOADING:
        return True
    transfer = engine.connector.transfers[sequence.number]
    if not transfer.is_load_reported:
        return False
    external_kv.wait_again(sequence)
    if transfer.has_failed and sequence.computed == 0:
        totals.remove_computed(engine, sequence)
        kv_cache.free_tables(engine, sequence)
        sequence.num_units = 0
    else:
        external_kv.end_load(engine, sequence)
    transfer.is_load_reported = transfer.has_failed = False
    return True


@part
def find_prefix(engine: Engine, sequence: Sequence) -> int:
    """Return the number of leading tokens of a waiting sequence that need not be computed: hits, and KV from outside.

    Return `SKIP` if an asynchronous load begins or the store has not answered yet, and `STOP` if the pool has no room
    for such a load.
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
    """Allocate blocks for `num_tokens` tokens of a waiting sequence after its first `computed`; False without room."""
    if not external_kv.admit(engine, sequence, computed, num_tokens):
        return False
    _record_allocation(engine, sequence, engine.connector.state.num_external)
    return True


@part
def free(engine: Engine, sequence: Sequence) -> None:
    """Free all blocks of a sequence. If a transfer reads or writes them, they are freed once its end is reported."""
    connector = engine.connector
    transfer = connector.transfers[sequence.number]
    external_kv.end_prefilling(engine, sequence)
    if sequence.status == LOADING and not transfer.is_load_reported:
        _hold(engine, sequence)
        return
    transfer.is_load_reported = transfer.has_failed = False
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
    external_kv.free(engine, sequence)


@part
def may_preempt(engine: Engine, sequence: Sequence) -> bool:
    """Tell whether a running sequence may be preempted. With `ConnectorSettings.spares_busy`, it may not while a step
    in flight computes its tokens, because its blocks would be freed only after this step.
    """
    return not engine.connector.settings.spares_busy or external_kv.frees_at_once(engine, sequence)


@part
def awaits_transfers(engine: Engine) -> bool:
    """Tell whether a transfer has not been reported as ended, so that the scheduler is called again."""
    return engine.connector.state.num_held > 0 or engine.connector.state.num_loading > 0


@part
def after_schedule(engine: Engine) -> None:
    """Record the number of the step just scheduled in each of its sequences. Cancel the reservations of blocks for
    prompts that the step completes.
    """
    state = engine.state
    external_kv.record_step(engine, state.num_in_batch + state.num_preempted + engine.connector.state.num_loads > 0)


@part
def before_update(engine: Engine, launched: int) -> None:
    """Free the blocks that were kept until the output of the oldest step in flight. Handle the blocks that this output
    reports as bad. `launched` is the index of the step in `Engine.launched`.
    """
    external_kv.before_update(engine, launched)
    failed_loads.fall_back(engine, launched)


@part
def after_update(engine: Engine) -> None:
    """Abort the sequences in `ConnectorTables.errors`, whose loads failed. Then end the transfers whose end is reported
    with the output just processed.
    """
    _abort_failed(engine)
    _end_reported(engine)


@part
def _abort_failed(engine: Engine) -> None:
    connector = engine.connector
    for index in range(connector.state.num_errors):
        sequence = engine.sequences[connector.errors[index]]
        if sequence.status != RUNNING:
            waiting_queue.remove(engine, sequence)
        free(engine, sequence)
        encoder_cache.release(engine, sequence)
        connector.transfers[sequence.number].is_error = True
        scheduler.end(engine, sequence, ABORTED, engine.state.host_s)
    connector.state.num_errors = 0


@part
def _end_reported(engine: Engine) -> None:
    """End the transfers whose end is reported with the output just processed, and remove their reports."""
    connector, num_due = engine.connector, 0
    while num_due < connector.state.num_reports:  # reports are in the order of their steps
        report = connector.reports[num_due]
        if report.reported_in > engine.external.state.num_updates:
            break
        sequence = engine.sequences[report.sequence]
        connector.state.num_loading -= report.is_load
        connector.transfers[sequence.number].ended_seq = engine.state.seq
        if sequence.status == LOADING:
            connector.transfers[sequence.number].is_load_reported = True
        elif connector.transfers[sequence.number].is_held:
            connector.transfers[sequence.number].is_held = False
            connector.state.num_held -= 1
            external_kv.free(engine, sequence)
        num_due += 1
    connector.state.num_reports -= num_due
    if num_due > 0:
        engine.external.state.num_idle_calls = 0
    for index in range(connector.state.num_reports):
        report, later = connector.reports[index], connector.reports[index + num_due]
        report.sequence, report.is_load, report.reported_in = later.sequence, later.is_load, later.reported_in


@part
def report(engine: Engine, sequence: Sequence, is_load: bool, step: int) -> None:
    """Schedule the report of a transfer's end with the output of `step`, a call of the scheduler, counted from 1. If
    `is_load`, the transfer is the sequence's load; otherwise another server has read the blocks that were kept for it.
    """
    connector = engine.connector
    report = connector.reports[connector.state.num_reports]
    connector.state.num_reports += 1
    report.sequence, report.is_load, report.reported_in = sequence.number, is_load, step
    if is_load:
        failed_loads.report(engine, sequence, connector.transfers[sequence.number].loads_from, step)


@part
def _num_external(engine: Engine, sequence: Sequence, hit_tokens: int) -> int:
    """Return the number of tokens to load after the first `hit_tokens`, or `SKIP` if the store has not answered."""
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
    connector = engine.connector
    if not external_kv.begin_load(engine, sequence, hit_tokens, hit_tokens + external):
        return False
    connector.loads[connector.state.num_loads] = sequence.number
    connector.state.num_loads += 1
    connector.state.num_loading += 1
    _record_allocation(engine, sequence, external)
    _record_begin(engine, sequence, connector.transfers[sequence.number].loads_from, external)
    return True


@part
def _record_allocation(engine: Engine, sequence: Sequence, external: int) -> None:
    """Record that blocks were allocated to a sequence, and that `external` of its tokens come from outside.

    If KV comes from another server, set `Transfer.loads_from`, the table entry at which the load begins: the first one
    whose block is not in the prefix cache.
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
    """Record that the server that computed the prompt can free its blocks, because nothing is fetched from it."""
    connector = engine.connector
    connector.transfers[sequence.number].fetches = False
    connector.notices[connector.state.num_notices] = sequence.number
    connector.state.num_notices += 1


@part
def _record_begin(engine: Engine, sequence: Sequence, first: int, num_tokens: int) -> None:
    """Record that a transfer of `num_tokens` tokens begins. It covers the table's entries from `first` on."""
    transfer = engine.connector.transfers[sequence.number]
    transfer.begun_seq, transfer.ended_seq = engine.state.seq, -1
    transfer.first_entry, transfer.num_tokens = first, num_tokens
    transfer.num_blocks = table_of(engine, sequence, 0).num_blocks - first


@part
def _hold(engine: Engine, sequence: Sequence) -> None:
    engine.connector.transfers[sequence.number].is_held = True
    engine.connector.state.num_held += 1


CONNECTED = replace(
    kv_cache.PAGED,
    name="connected",
    use_load=use_load,
    find_prefix=find_prefix,
    admit=admit,
    free=free,
    may_preempt=may_preempt,
    awaits_transfers=awaits_transfers,
    after_schedule=after_schedule,
    before_update=before_update,
    after_update=after_update,
)
