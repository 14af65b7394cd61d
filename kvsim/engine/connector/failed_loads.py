"""Handling of blocks that failed to load from outside (bad blocks), as in vLLM.

A sequence keeps only the tokens before its first bad block. With `ConnectorSettings.recomputes`, it computes the rest
again; otherwise it ends with an error.
"""

from __future__ import annotations

from kvsim.engine import fast_forward, in_flight, journal
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.paged import prefix_cache
from kvsim.engine.records import Sequence
from kvsim.engine.state import LOADING, NO_KEY, Engine, table_of

_GOOD, _BAD, _SEEN = range(3)
"""Marks of blocks while an output is processed. A sequence that is cut at a bad block, to compute it again, marks the
block as seen. Other sequences with this block are then not cut at it.
"""


@part
def report(engine: Engine, sequence: Sequence, first: int, step: int) -> None:
    """Schedule the report of a sequence's bad blocks with the output of `step`: a call of the scheduler, from 1 on.

    `ConnectorTables.bad_places` count from the table entry `first`; places after the end of the table are ignored. Bad
    blocks of a sequence are reported only once.
    """
    connector = engine.connector
    transfer, table = connector.transfers[sequence.number], table_of(engine, sequence, 0)
    for index in range(transfer.first_bad, transfer.first_bad + transfer.num_bad):
        entry = first + connector.bad_places[index]
        if entry < table.num_blocks:
            bad = connector.bad_blocks[connector.state.num_bad]
            connector.state.num_bad += 1
            bad.block, bad.reported_in = engine.entries[table.begin + entry], step
    transfer.num_bad = 0


@part
def fall_back(engine: Engine, launched: int) -> None:
    """Handle the blocks that are reported as bad with the output being processed. `launched` is the index of its step
    in `Engine.launched`.

    `_cut` reduces the computed tokens of each sequence with such a block. With `ConnectorSettings.recomputes`, the
    sequence computes the removed tokens again; otherwise it ends with an error.
    """
    state, connector = engine.state, engine.connector
    if not _mark(engine):
        return
    fast_forward.catch_up_from(engine, 0, state.num_scheduled)
    for index in range(state.num_skipped):
        sequence = engine.sequences[engine.skipped[index]]
        if sequence.status == LOADING and _cut(engine, sequence, sequence.computed, False):
            if connector.settings.recomputes:
                connector.transfers[sequence.number].has_failed = True
            else:
                _fail(engine, sequence)
    _mark(engine)  # once more: running sequences also recompute the blocks that loading sequences have marked as seen
    for index in range(state.num_running):
        sequence = engine.sequences[engine.running[index]]
        computed = sequence.computed - in_flight.tokens_of(engine, launched, sequence)
        if _cut(engine, sequence, computed, not connector.settings.recomputes):
            in_flight.drop_outputs(engine, launched, sequence)
            if not connector.settings.recomputes:
                _fail(engine, sequence)
    _unmark(engine)


@part
def _mark(engine: Engine) -> bool:
    """Mark the blocks that are reported as bad with the output being processed. Return False if there are none."""
    connector = engine.connector
    is_any = False
    for index in range(connector.state.num_bad):
        bad = connector.bad_blocks[index]
        if bad.reported_in <= engine.external.state.num_updates:
            connector.marks[bad.block] = _BAD
            is_any = True
    return is_any


@part
def _unmark(engine: Engine) -> None:
    connector, kept = engine.connector, 0
    for index in range(connector.state.num_bad):
        bad = connector.bad_blocks[index]
        if bad.reported_in <= engine.external.state.num_updates:
            connector.marks[bad.block] = _GOOD
        else:
            connector.bad_blocks[kept].block = bad.block
            connector.bad_blocks[kept].reported_in = bad.reported_in
            kept += 1
    connector.state.num_bad = kept


@part
def _cut(engine: Engine, sequence: Sequence, computed: int, forgets: bool) -> bool:
    """Reduce `Sequence.computed` to the tokens before the sequence's first block with the mark `_BAD`, and mark this
    block as seen. Return True if the sequence has a block with the mark `_BAD` or `_SEEN`.

    Only the first `computed` tokens of the sequence are visited. Blocks marked as seen reduce nothing, because another
    sequence recomputes them. With `forgets`, the first bad block and all later blocks of the sequence are removed from
    the prefix cache.
    """
    settings, marks = engine.settings, engine.connector.marks
    table = table_of(engine, sequence, 0)
    is_affected, kept = False, computed
    for index in range(min(-(-computed // settings.unit_tokens), table.num_blocks)):
        block = engine.entries[table.begin + index]
        if marks[block] == _GOOD:
            continue
        is_affected = True
        if marks[block] == _BAD:
            marks[block] = _SEEN
            if kept == computed:
                kept = index * settings.unit_tokens
                if forgets:
                    _forget(engine, table.begin + index, table.begin + table.num_blocks)
    if is_affected:
        engine.state.written += (kept - sequence.computed - sequence.rejected) * settings.token_slots
        sequence.computed, sequence.rejected = kept, 0
    return is_affected


@part
def _forget(engine: Engine, begin: int, end: int) -> None:
    for entry in range(begin, end):
        block = engine.entries[entry]
        if engine.blocks[block].key != NO_KEY:
            prefix_cache.evict(engine, block)
            journal.evict(engine, entry, entry + 1)


@part
def _fail(engine: Engine, sequence: Sequence) -> None:
    """Insert a sequence into `ConnectorTables.errors`, which is sorted by `Transfer.rank`."""
    connector = engine.connector
    index = connector.state.num_errors
    rank = connector.transfers[sequence.number].rank
    while index > 0 and connector.transfers[connector.errors[index - 1]].rank > rank:
        connector.errors[index] = connector.errors[index - 1]
        index -= 1
    connector.errors[index] = sequence.number
    connector.state.num_errors += 1
