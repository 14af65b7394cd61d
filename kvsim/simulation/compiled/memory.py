"""Room for sequences: the cache of `kvsim.scheduling.paged`, or the reservations of `kvsim.scheduling.contiguous`.

All that `Tally` adds up of it is kept here too: slots asked for, and those of them that will be of use.
"""

from __future__ import annotations

import numpy as np

from kvsim.simulation.compiled import journal, pool
from kvsim.simulation.compiled.engine import Engine
from kvsim.simulation.compiled.extents import NO_HOLE, find_hole, give_back, take_from_hole
from kvsim.simulation.compiled.jit import jit
from kvsim.simulation.compiled.records import Sequence, Settings


@jit
def lookup(engine: Engine, node: int) -> int:
    """Find leading blocks of a waiting sequence; they stand in `hits` then, and their number is returned."""
    settings, num_hits = engine.settings[0], 0
    if not settings.prefix_caching:
        return 0
    last = (engine.sequences[node].num_tokens - 1) // settings.unit_tokens
    while num_hits < last:
        block = pool.find(engine, _key_of(engine, node, num_hits))
        if block == pool.NO_BLOCK:
            break
        engine.hits[num_hits] = block
        num_hits += 1
    return num_hits


@jit
def admit(engine: Engine, node: int, num_tokens: int, num_hits: int) -> bool:
    """Make room for the first `num_tokens` tokens after the hits; without any effect when there is none."""
    if engine.settings[0].contiguous:
        return _reserve(engine, node)
    settings, state, sequence = engine.settings[0], engine.state[0], engine.sequences[node]
    free = state.num_free
    if state.num_running > 0:
        free -= settings.watermark_blocks
    for index in range(num_hits):
        if engine.blocks[engine.hits[index]].refs == 0:
            free -= 1
    if settings.reserve_full_prompt and _missing(engine, sequence.num_tokens, num_hits) > free:
        return False
    total = num_hits * settings.unit_tokens + num_tokens
    needed = _missing(engine, total, num_hits)
    if needed > free:
        return False
    state.num_free_tables -= 1
    sequence.place = engine.free_tables[state.num_free_tables]
    if num_hits > 0:
        for index in range(num_hits):
            pool.touch(engine, engine.hits[index])
            engine.tables[sequence.place, index] = engine.hits[index]
        _count(engine, node, num_hits * settings.unit_tokens)
        sequence.num_units = sequence.num_registered = num_hits
        if settings.recording:
            journal.share_blocks(engine, node, num_hits)
    _extend(engine, node, needed)
    commit(engine, node, min(total, sequence.num_tokens))
    return True


@jit
def has_room(settings: Settings, sequence: Sequence, num_tokens: int) -> bool:
    """Whether a running sequence can simply go on: most tokens find room in its last block, and fill none."""
    total = sequence.computed + num_tokens
    return settings.contiguous or (
        total <= sequence.num_units * settings.unit_tokens
        and not fills_block(settings, sequence, min(total, sequence.num_tokens))
    )


@jit
def grow(engine: Engine, node: int, num_tokens: int) -> bool:
    """Make room for `num_tokens` more tokens of a running sequence; without any effect when there is none."""
    sequence = engine.sequences[node]
    total = sequence.computed + num_tokens
    needed = _missing(engine, total, sequence.num_units)
    if needed > engine.state[0].num_free:
        return False
    _extend(engine, node, needed)
    commit(engine, node, min(total, sequence.num_tokens))
    return True


@jit
def fills_block(settings: Settings, sequence: Sequence, num_tokens: int) -> bool:
    """Whether the first `num_tokens` tokens hold a whole block that is not registered yet."""
    return settings.prefix_caching and (sequence.num_registered + 1) * settings.unit_tokens <= num_tokens


@jit
def commit(engine: Engine, node: int, num_tokens: int) -> None:
    """Register the keys of whole blocks among the first `num_tokens` tokens."""
    sequence = engine.sequences[node]
    while fills_block(engine.settings[0], sequence, num_tokens):
        index = sequence.num_registered
        pool.register(engine, engine.tables[sequence.place, index], _key_of(engine, node, index))
        sequence.num_registered = index + 1


@jit
def free(engine: Engine, node: int) -> None:
    """Take everything back from a sequence."""
    settings, state, sequence = engine.settings[0], engine.state[0], engine.sequences[node]
    if sequence.num_units == 0:
        return
    if settings.recording:
        journal.release(engine, node)
    slots = sequence.num_units * settings.unit_tokens
    if sequence.is_surprising:
        _leave_last_slot(engine, node)
    state.written -= sequence.computed
    state.requested -= slots
    state.useful -= min(slots, sequence.full_tokens)
    if settings.contiguous:
        give_back(engine, sequence.place, sequence.num_units)
    else:
        pool.give(engine, sequence.place, sequence.num_units)
        engine.free_tables[state.num_free_tables] = sequence.place
        state.num_free_tables += 1
    sequence.num_units = sequence.num_registered = 0


@jit
def settle_last_slots(engine: Engine, time_s: float) -> None:
    """The step that follows those in which sequences gave up the slot of a surprise begins."""
    state = engine.state[0]
    for index in range(state.num_leaving):
        times = engine.times[engine.leaving[index]]
        times.last_slot_s += time_s - times.last_slot_since_s
        times.last_slot_since_s = np.nan
    state.num_leaving = 0


@jit
def unusable_units(engine: Engine, head: int) -> int:
    """Free slots, if they would be enough for `head` but no hole is."""
    reservation, num_free = engine.sequences[head].reservation, engine.state[0].num_free
    if not engine.settings[0].contiguous or num_free < reservation:
        return 0
    return num_free if find_hole(engine, reservation) == NO_HOLE else 0


@jit
def _reserve(engine: Engine, node: int) -> bool:
    sequence = engine.sequences[node]
    hole = find_hole(engine, sequence.reservation)
    if hole == NO_HOLE:
        return False
    sequence.place = take_from_hole(engine, hole, sequence.reservation)
    _count(engine, node, sequence.reservation)
    sequence.num_units = sequence.reservation
    if engine.settings[0].recording:
        journal.append_extent(engine, node)
    return True


@jit
def _extend(engine: Engine, node: int, num_blocks: int) -> None:
    """Append free blocks, of which there are enough, to a table."""
    if num_blocks == 0:
        return
    sequence = engine.sequences[node]
    table, before, num_evicted = engine.tables[sequence.place], sequence.num_units, 0
    for index in range(before, before + num_blocks):
        table[index], is_evicted = pool.take(engine)
        num_evicted += is_evicted
    _count(engine, node, num_blocks * engine.settings[0].unit_tokens)
    sequence.num_units = before + num_blocks
    if engine.settings[0].recording:
        if num_evicted > 0:  # blocks without a prefix are taken first
            journal.evict(engine, node, before + num_blocks - num_evicted, before + num_blocks)
        journal.append_blocks(engine, node, before, num_blocks)


@jit
def _count(engine: Engine, node: int, num_slots: int) -> None:
    """A sequence is about to get `num_slots` more slots."""
    state, sequence = engine.state[0], engine.sequences[node]
    before, full = sequence.num_units * engine.settings[0].unit_tokens, sequence.full_tokens
    state.requested += num_slots
    state.useful += min(before + num_slots, full) - min(before, full)
    if sequence.is_surprising and before < full <= before + num_slots:
        # The step that is being scheduled begins now.
        engine.times[node].last_slot_since_s = state.host_s


@jit
def _leave_last_slot(engine: Engine, node: int) -> None:
    """A sequence gives back the slot of a token that may never have been computed, if it has it."""
    state, sequence, times = engine.state[0], engine.sequences[node], engine.times[node]
    if sequence.computed == sequence.full_tokens:
        times.last_slot_s = -np.inf
    if not np.isnan(times.last_slot_since_s):
        engine.leaving[state.num_leaving] = node  # until the next step begins
        state.num_leaving += 1


@jit
def _key_of(engine: Engine, node: int, block: int) -> int:
    """The key of a sequence's full block. Beyond the prompt nobody else can have the same tokens."""
    begin, end = engine.key_offsets[node - 1], engine.key_offsets[node]
    if block < end - begin:
        key: int = engine.prompt_keys[begin + block]
        return key
    return -1 - ((node - 1) << 32 | block)


@jit
def _missing(engine: Engine, num_tokens: int, num_blocks: int) -> int:
    """Blocks that `num_tokens` tokens need beyond `num_blocks`."""
    unit_tokens, longest = engine.settings[0].unit_tokens, engine.settings[0].max_model_len
    return max(0, -(-min(num_tokens, longest) // unit_tokens) - num_blocks)
