"""Totals of the pool's slots over all tables, updated with every change of ownership.

The row of every step has these totals. The share of the pool in each slot state (used, reserved, wasted and so on) is
calculated from them and from the expired slots (`groups.expired_slots`):

useful      slots that are written, or will be before their sequence ends
written     slots with computed tokens
rounding    slots that were allocated beyond those requested
shared      written slots that another table contains, too

If layers of several kinds share the pool, a slot is a byte. A token takes the bytes of its layers, a recurrent state
its size in bytes. Bytes of a block that no page fills count as requested, but not as useful.

**Unsure tokens.** For the last tokens of a sequence, it is not known in advance whether they are computed:

- With asynchronous scheduling, a stop token is noticed one step late. By then, a step is scheduled that computes the
  stop token. But the sequence may be preempted before that step.
- With drafts, the last step may verify drafts beyond the end.

Slots of such tokens count as useful when they are allocated. `Unsure.slot_s` sums the time for which they were held
although the token was never computed. This time is subtracted when the run is over.
"""

from __future__ import annotations

import math

from kvsim.engine.machine_code.compiled import part
from kvsim.engine.records import Sequence
from kvsim.engine.state import Engine, table_of


@part
def add_slots(engine: Engine, sequence: Sequence, before: int, more: int) -> None:
    """Count `more` requested slots of a sequence as useful, as far as it will write them. It has `before` slots."""
    is_sure = before + more <= sequence.full_tokens - sequence.num_unsure
    # A sequence that is moved has held its unsure slots since before the move.
    held = not is_sure and engine.unsure[_first_unsure(engine, sequence)].slots > 0
    _add_useful(engine, sequence, before, before + more, 1, held)


@part
def remove_slots(engine: Engine, sequence: Sequence, slots: int) -> None:
    """Subtract the requested slots of a sequence from `State.useful`. `State.written` keeps its computed tokens."""
    engine.state.useful -= min(slots, sequence.full_tokens)


@part
def add_blocks(engine: Engine, sequence: Sequence, group: int, before: int, num_held: int) -> None:
    """Count the entries of a table after its first `before` ones: `num_held` blocks, and null blocks for the rest."""
    state, record = engine.state, engine.groups[group]
    table = table_of(engine, sequence, group)
    num_blocks = table.num_blocks
    table.num_held += num_held
    if record.state_slots > 0:
        state.useful += num_held * record.state_slots
        state.written += num_held * record.state_slots
        return
    slots, block_size = record.token_slots, record.block_size
    _add_useful(engine, sequence, before * block_size, num_blocks * block_size, slots, False)
    null_slots = (num_blocks - before - num_held) * block_size * slots
    state.useful -= null_slots
    state.written -= null_slots  # computed tokens of null entries are counted in `written` too


@part
def remove_unread_blocks(engine: Engine, sequence: Sequence, group: int, num_blocks: int) -> None:
    """Subtract `num_blocks` blocks, freed in a run as no layer reads them, from `State.useful` and `State.written`."""
    state = engine.state
    table = table_of(engine, sequence, group)
    table.num_held -= num_blocks
    slots = num_blocks * block_slots(engine, group)
    state.useful -= slots
    state.written -= slots


@part
def remove_blocks(engine: Engine, sequence: Sequence, group: int) -> None:
    """Subtract the whole table of a group, which is freed, from `State.useful`.

    `State.written` keeps the tokens that the sequence has computed, which `remove_computed` subtracts. Recurrent states
    are subtracted here.
    """
    state, record = engine.state, engine.groups[group]
    table = table_of(engine, sequence, group)
    if record.state_slots > 0:
        state.useful -= table.num_held * record.state_slots
        state.written -= table.num_held * record.state_slots
    else:
        slots, null_tokens = record.token_slots, (table.num_blocks - table.num_held) * record.block_size
        within = min(table.num_blocks * record.block_size, sequence.full_tokens)
        state.useful -= (within - null_tokens) * slots
        state.written += null_tokens * slots
    table.num_held = 0


@part
def shared_slots(engine: Engine) -> int:
    """Return by how much `State.written` exceeds the number of distinct slots, as tables share blocks."""
    total = 0
    for group in range(len(engine.groups)):
        num_duplicates = engine.groups[group].num_duplicate_entries
        if num_duplicates != 0:
            total += num_duplicates * block_slots(engine, group)
    return total


@part
def block_slots(engine: Engine, group: int) -> int:
    """Return the number of slots that the tokens of a full block take, or that its recurrent state takes."""
    record = engine.groups[group]
    return record.state_slots if record.state_slots > 0 else record.block_size * record.token_slots


@part
def remove_computed(engine: Engine, sequence: Sequence) -> None:
    """Subtract the computed tokens of a sequence, whose memory is freed, from `State.written`. If the sequence held
    slots of unsure tokens, add it to `Lists.unsettled` for `settle_unsure_slots`.
    """
    state = engine.state
    state.written -= (sequence.computed + sequence.rejected) * engine.settings.token_slots
    note_computed(engine, sequence)
    sequence.rejected = 0
    first = _first_unsure(engine, sequence)
    for index in range(first, first + sequence.num_unsure):
        if engine.unsure[index].slots > 0:
            engine.lists[state.num_unsettled].unsettled = sequence.number  # until the next step begins
            state.num_unsettled += 1
            break


@part
def note_computed(engine: Engine, sequence: Sequence) -> None:
    """Mark the unsure tokens of a sequence that were computed. Call this before computed tokens are subtracted."""
    first, sure = _first_unsure(engine, sequence), sequence.full_tokens - sequence.num_unsure
    for index in range(min(sequence.computed + sequence.rejected - sure, sequence.num_unsure)):
        engine.unsure[first + index].slot_s = -math.inf


@part
def settle_unsure_slots(engine: Engine, time_s: float) -> None:
    """Add to `Unsure.slot_s` the slot-seconds, up to `time_s`, of unsure tokens freed since the last call."""
    state = engine.state
    for place in range(state.num_unsettled):
        sequence = engine.sequences[engine.lists[place].unsettled]
        first = _first_unsure(engine, sequence)
        for index in range(first, first + sequence.num_unsure):
            unsure = engine.unsure[index]
            unsure.slot_s += unsure.slots * time_s - unsure.allocated_s_sum
            unsure.slots = 0
            unsure.allocated_s_sum = 0.0
    state.num_unsettled = 0


@part
def _first_unsure(engine: Engine, sequence: Sequence) -> int:
    return sequence.number * engine.settings.most_unsure


@part
def _add_useful(engine: Engine, sequence: Sequence, before: int, after: int, slots: int, is_held: bool) -> None:
    """Count the useful slots of a sequence whose room grows from `before` to `after` tokens, with `slots` slots for
    each token.

    Unsure tokens among them get the current time as the time of allocation. With `is_held`, they keep theirs.
    """
    state = engine.state
    full = sequence.full_tokens
    state.useful += (min(after, full) - min(before, full)) * slots
    sure = full - sequence.num_unsure
    if after <= sure or before >= full or is_held:
        return
    first = _first_unsure(engine, sequence) - sure
    for token in range(max(before, sure), min(after, full)):
        unsure = engine.unsure[first + token]
        unsure.slots += slots
        unsure.allocated_s_sum += slots * state.host_s
