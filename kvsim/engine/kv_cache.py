"""The paged KV cache: admit, grow, cache full blocks, free. Every group of layers has a table of its own.

All groups share one pool of block ids, so a request is given what it needs in all of them or nothing. What differs by
kind of layers is in `groups`, which prefixes are there in `prefix_hits`, the order of the free queue in `block_pool`.
"""

from __future__ import annotations

from kvsim.engine import block_pool, groups, host_swap, journal, prefix_cache, prefix_hits, totals
from kvsim.engine.block_pool import NULL_BLOCK
from kvsim.engine.compiled import part
from kvsim.engine.records import NEVER
from kvsim.engine.state import ALIGNED, FULL, MAMBA, Engine


@part
def find_hits(engine: Engine, node: int) -> int:
    """Find leading tokens of a waiting sequence whose blocks the pool holds; return their number."""
    return prefix_hits.find(engine, node) if engine.settings[0].prefix_caching else 0


@part
def admit(engine: Engine, node: int, hit_tokens: int, computed: int, num_tokens: int) -> bool:
    """Make room for the first `num_tokens` tokens behind `computed`, of which the pool holds `hit_tokens`.

    The rest of `computed`, if there is any, is on the host. Without any effect where there is no room.
    """
    settings, state, sequence = engine.settings[0], engine.state[0], engine.sequences[node]
    free = state.num_free
    if state.num_running > 0:
        free -= settings.watermark_blocks
    total = computed + num_tokens
    slots = total + settings.lookahead_tokens
    whole = needed = 0
    for group in range(settings.num_groups):
        if groups.is_written_this_step(engine, group):
            return False
        whole += groups.num_needed_at_admission(engine, group, sequence.num_tokens, hit_tokens, True)
        needed += groups.num_needed_at_admission(engine, group, slots, hit_tokens, False)
    if settings.reserve_full_prompt and whole > free:
        return False
    if needed > free:
        return False
    state.num_free_places -= 1
    sequence.place = engine.lists[state.num_free_places].free_place
    sequence.num_units = 0
    for group in range(settings.num_groups):
        attach_hits(engine, node, group, hit_tokens)
    for group in range(settings.num_groups):
        extend(engine, node, group, total, slots)
    if settings.host_blocks > 0:
        host_swap.bring_back(engine, node, hit_tokens)
    sequence.cache_at = settings.cache_tokens * (hit_tokens // settings.cache_tokens + 1)
    if not settings.prefix_caching:
        sequence.cache_at = NEVER
    cache_blocks(engine, node, min(total, sequence.num_tokens))
    find_room(engine, node, computed)
    return True


@part
def grow(engine: Engine, node: int, num_tokens: int) -> bool:
    """Make room for `num_tokens` more tokens of a running sequence.

    Where there is none, nothing is given; what windows have left behind is let go all the same.
    """
    settings, sequence = engine.settings[0], engine.sequences[node]
    computed = sequence.computed
    total = computed + num_tokens
    slots = total + settings.lookahead_tokens
    needed = 0
    for group in range(settings.num_groups):
        groups.let_go(engine, node, group, computed)
    leader = settings.first_leader
    while leader != groups.NO_GROUP:
        needed += groups.num_needed_to_grow(engine, node, leader, total, slots) * engine.groups[leader].num_alike
        leader = engine.groups[leader].next_leader
    if needed > engine.state[0].num_free:
        return False
    for group in range(settings.num_groups):
        extend(engine, node, group, total, slots)
    cache_blocks(engine, node, min(total, sequence.num_tokens))
    find_room(engine, node, computed)
    return True


@part
def cache_blocks(engine: Engine, node: int, num_tokens: int) -> None:
    """Put full blocks of the first `num_tokens` tokens, whose values are known, into the prefix cache.

    This happens when a step is scheduled, before its KV exists: a later request of the same step can hit it.
    """
    settings, sequence = engine.settings[0], engine.sequences[node]
    if num_tokens < sequence.cache_at:
        return
    end_tokens = num_tokens // settings.cache_tokens * settings.cache_tokens
    for group in range(settings.num_groups):
        table, block_size = engine.tables[groups.table_of(engine, node, group)], engine.groups[group].block_size
        begin = groups.first_entry(engine, node, group)
        for index in range(table.num_cached, end_tokens // block_size):
            block = engine.entries[begin + index]
            if block != NULL_BLOCK and groups.is_kept_for_hits(engine, node, group, index):
                prefix_cache.cache(engine, block, prefix_hits.key_of(engine, node, group, index))
                engine.blocks[block].cached_in = engine.state[0].num_scheduled
            table.num_cached = index + 1
    sequence.cache_at = end_tokens + settings.cache_tokens


@part
def expect_return(engine: Engine, node: int) -> None:
    """A sequence is preempted and will ask for its blocks: let it find them."""
    for group in range(engine.settings[0].num_groups):
        table, begin = engine.tables[groups.table_of(engine, node, group)], groups.first_entry(engine, node, group)
        for entry in range(begin, begin + table.num_cached):
            if engine.entries[entry] != NULL_BLOCK:
                prefix_cache.offer(engine, engine.entries[entry])


@part
def unusable_blocks(engine: Engine, head: int) -> int:  # noqa: ARG001  other memories look at the head
    """Any free block serves any sequence: there is no external fragmentation."""
    return 0


@part
def shared_tokens(engine: Engine, context_tokens: int) -> int:
    """Tokens that a step reads and that stand in a block which another sequence reads, too."""
    settings = engine.settings[0]
    if settings.num_groups == 1:
        held_tokens = (settings.num_units - engine.state[0].num_free) * settings.unit_tokens
        return max(context_tokens - held_tokens, 0)
    record = engine.groups[settings.first_leader]
    return record.num_shared * record.block_size if record.kind == FULL else 0


@part
def free(engine: Engine, node: int) -> None:
    """Take back all tables of a sequence, each with its last block first, so that a tail is reused before a prefix."""
    settings, state, sequence = engine.settings[0], engine.state[0], engine.sequences[node]
    for group in range(settings.num_groups):
        table, begin = engine.tables[groups.table_of(engine, node, group)], groups.first_entry(engine, node, group)
        journal.release(engine, node, group, begin, begin + table.num_blocks, table.num_cached)
        totals.remove_blocks(engine, node, group)
        engine.groups[group].num_shared -= block_pool.free(engine, begin, begin + table.num_blocks)
        table.num_blocks = table.num_cached = 0
    engine.lists[state.num_free_places].free_place = sequence.place
    state.num_free_places += 1


@part
def attach_hits(engine: Engine, node: int, group: int, hit_tokens: int) -> None:
    """Begin a table of an admitted sequence with the blocks that were found for it, null where they are not needed."""
    record = engine.groups[group]
    table, begin = engine.tables[groups.table_of(engine, node, group)], groups.first_entry(engine, node, group)
    num_hits = record.num_hits
    skipped = groups.num_skipped_tokens(engine, group, hit_tokens) // record.block_size
    table.num_blocks = table.num_cached = num_hits
    table.last_state = num_hits - 1
    table.owns_state = False
    num_held = 0
    for index in range(num_hits):
        block = engine.entries[groups.first_hit(engine, group) + index]
        engine.entries[begin + index] = block
        if block != NULL_BLOCK:
            num_held += 1
            record.num_shared += block_pool.touch(engine, block)
    if num_hits > 0:
        totals.add_blocks(engine, node, group, 0, num_held)
        journal.share_blocks(engine, node, group, skipped, begin + skipped, begin + num_hits)
        engine.sequences[node].num_units += num_hits


@part
def extend(engine: Engine, node: int, group: int, num_tokens: int, num_slots: int) -> None:
    """Append free blocks, of which there are enough, to a table, up to so many tokens."""
    record = engine.groups[group]
    table, first = engine.tables[groups.table_of(engine, node, group)], groups.first_entry(engine, node, group)
    before = table.num_blocks
    end = groups.num_blocks_for(engine, group, num_slots)
    begin = before
    if record.kind == MAMBA and record.mode == ALIGNED:
        end = -(-num_tokens // record.block_size)
        if end > before:
            if table.owns_state:
                table.last_state = before - 1
            table.owns_state = True
            for index in range(before, end - 1):
                engine.entries[first + index] = NULL_BLOCK
            begin = max(before, end - 1)
    if end <= before:
        return
    num_evicted = 0
    for entry in range(first + begin, first + end):
        engine.entries[entry], is_evicted = block_pool.allocate(engine)
        num_evicted += is_evicted
    table.num_blocks = end
    totals.add_blocks(engine, node, group, before, end - begin)
    engine.sequences[node].num_units += end - before
    if num_evicted > 0:  # blocks without a prefix are taken first
        journal.evict(engine, first + end - num_evicted, first + end)
    journal.append_blocks(engine, node, group, begin, first + begin, first + end)


@part
def find_room(engine: Engine, node: int, computed: int) -> None:
    """Find out how far a sequence can go on without touching its tables."""
    room, leader = NEVER, engine.settings[0].first_leader
    while leader != groups.NO_GROUP:
        room = min(room, groups.quiet_until(engine, node, leader, computed))
        leader = engine.groups[leader].next_leader
    engine.sequences[node].room_tokens = room
