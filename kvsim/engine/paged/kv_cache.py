"""The paged KV cache as vLLM's scheduler uses it: admit a sequence, append blocks to it, cache full blocks, free them.

A sequence has one block table for each KV-cache group. All groups share one pool of block ids, so a sequence gets
blocks in all groups or in none. `groups` has the rules that differ by kind of layers, `prefix_hits` the lookup of
prefixes, `block_pool` the free queue.
"""

from __future__ import annotations

from kvsim.engine import drafting, host_swap, journal, totals
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.memory import MemoryManager
from kvsim.engine.paged import block_pool, groups, prefix_cache, prefix_hits
from kvsim.engine.paged.block_pool import NULL_BLOCK
from kvsim.engine.records import NEVER, Sequence
from kvsim.engine.state import ALIGNED, FULL_ATTENTION, HAS_TAIL, MAMBA, NO_KEY, Engine, table_of


@part
def find_prefix(engine: Engine, sequence: Sequence) -> int:
    """Return the number of leading tokens of a waiting sequence that need not be computed: those in the prefix cache,
    or those swapped to the host if they are more.
    """
    hit_tokens = prefix_hits.find(engine, sequence) if engine.settings.prefix_caching else 0
    engine.state.hit_tokens = hit_tokens
    return max(hit_tokens, sequence.parked_tokens)


@part
def num_admissible(engine: Engine) -> int:
    """Return how many free blocks a waiting sequence may take: while others run, all but `watermark_blocks`."""
    state = engine.state
    return state.num_free - (engine.settings.watermark_blocks if state.num_running > 0 else 0)


@part
def admit(engine: Engine, sequence: Sequence, computed: int, num_tokens: int) -> bool:
    """Allocate blocks for the `num_tokens` tokens of a waiting sequence after the first `computed`, which `find_prefix`
    has found.

    Return False, and change nothing, if too few blocks are free, or if the step being scheduled writes a recurrent
    state that the sequence has hit.
    """
    settings, state = engine.settings, engine.state
    free, hit_tokens = num_admissible(engine), state.hit_tokens
    total = computed + num_tokens
    slots = min(total + settings.lookahead_tokens, settings.max_model_len)
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
    begin_tables(engine, sequence, hit_tokens, total, slots)
    if settings.host_blocks > 0:
        host_swap.bring_back(engine, sequence, hit_tokens)
    state.written += computed * settings.token_slots
    cache_blocks(engine, sequence, min(total, sequence.num_tokens))
    if settings.marks_prompt_end:
        mark_prompt_end(engine, sequence, min(total, sequence.num_tokens))
    find_room(engine, sequence, computed)
    return True


@part
def begin_tables(engine: Engine, sequence: Sequence, hit_tokens: int, num_tokens: int, num_slots: int) -> None:
    """Create the tables of a sequence that is being admitted: the blocks of its hit of `hit_tokens` tokens, and new
    blocks until there is room for `num_slots` tokens: the first `num_tokens`, and the drafts after them; see `extend`.
    Enough blocks must be free.
    """
    settings, state = engine.settings, engine.state
    assert state.num_free_places > 0
    state.num_free_places -= 1
    sequence.place = engine.lists[state.num_free_places].free_place
    sequence.num_units = 0
    # All hits first: a hit block that is free must leave the free queue before new blocks are taken from the queue.
    for group in range(settings.num_groups):
        attach_hits(engine, sequence, group, hit_tokens)
    for group in range(settings.num_groups):
        extend(engine, sequence, group, num_tokens, num_slots)
    sequence.cache_at = _next_to_cache(engine, sequence, hit_tokens)
    if not settings.prefix_caching:
        sequence.cache_at = NEVER


@part
def grow(engine: Engine, sequence: Sequence, num_tokens: int) -> bool:
    """Allocate blocks for the next `num_tokens` tokens of a running sequence.

    First free blocks that no layer will read again, such as those before a sliding window. Return False, and allocate
    nothing, if too few blocks are free then.
    """
    settings = engine.settings
    computed = sequence.computed
    total = computed + num_tokens
    slots = min(total + settings.lookahead_tokens, settings.max_model_len)
    needed = 0
    read = max(0, computed - sequence.in_flight) if settings.windows_wait else computed
    for group in range(settings.num_groups):
        groups.remove_skipped_blocks(engine, sequence, group, read)
    first = settings.first_in_lookup
    while first != groups.NO_GROUP:
        needed += groups.num_needed_to_grow(engine, sequence, first, total, slots) * engine.groups[first].num_of_kind
        first = engine.groups[first].next_in_lookup
    if needed > engine.state.num_free:
        return False
    for group in range(settings.num_groups):
        extend(engine, sequence, group, total, slots)
    cache_blocks(engine, sequence, min(total, sequence.num_tokens))
    if settings.marks_prompt_end:
        mark_prompt_end(engine, sequence, min(total, sequence.num_tokens))
    find_room(engine, sequence, computed)
    return True


@part
def cache_blocks(engine: Engine, sequence: Sequence, num_tokens: int) -> None:
    """Put the full blocks of the first `num_tokens` tokens of a sequence into the prefix cache. They must be known.

    As in vLLM, blocks are cached when a step is scheduled, before it computes their KV. So a request that is admitted
    later in the same step can hit them.
    """
    settings = engine.settings
    if num_tokens < sequence.cache_at:
        return
    for group in range(settings.num_groups):
        table, block_size = table_of(engine, sequence, group), engine.groups[group].block_size
        end_tokens = _end_to_cache(engine, group, num_tokens)
        num_full = min(end_tokens, sequence.num_tokens - settings.ahead_tokens) // block_size
        for index in range(table.num_cached, num_full):
            block = engine.entries[table.begin + index]
            if block != NULL_BLOCK and groups.is_kept_for_hits(engine, sequence, group, index):
                prefix_cache.cache(engine, block, prefix_hits.key_of(engine, sequence, group, index))
                engine.blocks[block].cached_in = engine.state.num_scheduled
                engine.rules.note_cached(engine, sequence, group, index)
            table.num_cached = index + 1
        if settings.marks_tails and engine.groups[group].kind == FULL_ATTENTION:
            _mark_tail(engine, sequence, group, end_tokens)
    sequence.cache_at = _next_to_cache(engine, sequence, num_tokens)


@part
def _mark_tail(engine: Engine, sequence: Sequence, group: int, end_tokens: int) -> None:
    """Mark the block in which the last full hash of a prompt ends (`HAS_TAIL`), if the block is only partly full and
    has no key, and the hash ends within the first `end_tokens` tokens.

    vLLM gives such a block the key of the hash. No lookup finds the block by this key. But once freed, the block goes
    to the tail of the free queue, like blocks with a prefix.
    """
    record, table = engine.groups[group], table_of(engine, sequence, group)
    hash_tokens = record.block_size // record.hashes_per_block
    limit = sequence.prompt_tokens - (0 if record.drops_hit else 1)
    boundary = min(limit, sequence.num_tokens - engine.settings.ahead_tokens) // hash_tokens * hash_tokens
    index = boundary // record.block_size
    if boundary > end_tokens or boundary % record.block_size == 0 or not table.num_cached <= index < table.num_blocks:
        return
    block = engine.entries[table.begin + index]
    if engine.blocks[block].key == NO_KEY:
        engine.blocks[block].cached_in = HAS_TAIL


@part
def _end_to_cache(engine: Engine, group: int, num_tokens: int) -> int:
    """Return the number of leading tokens whose full blocks may be cached in a group, if `num_tokens` tokens are known.

    It is a multiple of `Settings.commit_tokens`, with two exceptions if there are drafts. A single group may cache all
    tokens that no step in flight can reject. A group with `Group.drops_hit` may cache such tokens up to one block
    after a multiple, because a hit that ends at the multiple needs the next block, too.
    """
    settings, record, unit = engine.settings, engine.groups[group], engine.settings.commit_tokens
    end_tokens = num_tokens // unit * unit
    if settings.num_drafts == 0:
        return end_tokens
    if settings.num_groups == 1:
        end_tokens = drafting.num_final_tokens(engine, num_tokens)
    elif settings.drops_last_hit and record.drops_hit and end_tokens > 0:
        end_tokens = drafting.num_final_tokens(engine, num_tokens)
        end_tokens = min(end_tokens, end_tokens // unit * unit + record.block_size)
    return end_tokens


@part
def _next_to_cache(engine: Engine, sequence: Sequence, num_tokens: int) -> int:
    """Return the smallest number of known tokens with which another block of a sequence may be cached, if `num_tokens`
    are known now; 0 if every call of `cache_blocks` must check.
    """
    settings = engine.settings
    if settings.num_drafts == 0:
        return settings.commit_tokens * (num_tokens // settings.commit_tokens + 1)
    if settings.marks_tails:  # the last hash of a prompt may end at any token
        return 0
    following = NEVER
    for group in range(settings.num_groups):
        num_cached = table_of(engine, sequence, group).num_cached
        following = min(following, (num_cached + 1) * engine.groups[group].block_size)
    return following


@part
def mark_prompt_end(engine: Engine, sequence: Sequence, num_tokens: int) -> None:
    """Mark the recurrent state at the last boundary of a prompt as written by the step being scheduled, if the first
    `num_tokens` tokens reach this boundary and no later one. So no other sequence hits the state before the next step.
    vLLM does this even if an earlier step has written the state.
    """
    settings = engine.settings
    end_tokens = num_tokens // settings.commit_tokens * settings.commit_tokens
    for group in range(settings.num_groups):
        record, table = engine.groups[group], table_of(engine, sequence, group)
        hash_tokens = record.block_size // record.hashes_per_block
        if record.kind != MAMBA or record.mode != ALIGNED or end_tokens == 0:
            continue
        index = end_tokens // record.block_size - 1
        if (sequence.prompt_tokens - 1) // hash_tokens * hash_tokens == end_tokens and index < table.num_blocks:
            block = engine.entries[table.begin + index]
            if block != NULL_BLOCK:
                engine.blocks[block].cached_in = engine.state.num_scheduled


@part
def expect_return(engine: Engine, sequence: Sequence) -> None:
    """Put the cached blocks of a sequence that is being preempted into the hash table, so that its next admission finds
    them. Until now, blocks whose keys no other sequence has were not in the table.
    """
    for group in range(engine.settings.num_groups):
        table = table_of(engine, sequence, group)
        begin = table.begin
        for entry in range(begin, begin + table.num_cached):
            if engine.entries[entry] != NULL_BLOCK:
                prefix_cache.offer(engine, engine.entries[entry])


@part
def shared_tokens(engine: Engine, context_tokens: int) -> int:
    """Return the number of tokens that a step reads more than once, because its sequences share blocks.
    `context_tokens` is the number of tokens that its sequences attend to, summed over the sequences.

    With several KV-cache groups, blocks that are shared in the first group of full attention count; without such a
    group, return 0.
    """
    settings = engine.settings
    if settings.num_groups == 1:
        held_tokens = (settings.num_units - engine.state.num_free) * settings.unit_tokens
        return max(context_tokens - held_tokens, 0)
    record = engine.groups[settings.first_in_lookup]
    return record.num_duplicate_entries * record.block_size if record.kind == FULL_ATTENTION else 0


@part
def free(engine: Engine, sequence: Sequence) -> None:
    """Free all blocks of a sequence. With swapping (`Settings.host_blocks`), first copy the blocks of a preempted
    sequence to the host, if it has room.
    """
    settings = engine.settings
    if sequence.num_units == 0:
        if settings.host_blocks > 0:
            host_swap.forget(engine, sequence)
        return
    if settings.host_blocks > 0:
        host_swap.send_out(engine, sequence)
    totals.remove_computed(engine, sequence)
    free_tables(engine, sequence)
    sequence.num_units = 0


@part
def free_tables(engine: Engine, sequence: Sequence) -> None:
    """Free the blocks in all tables of a sequence, from each table's end, so that ends are evicted first."""
    settings, state = engine.settings, engine.state
    for group in range(settings.num_groups):
        table = table_of(engine, sequence, group)
        begin = table.begin
        journal.release(engine, sequence, group, begin, begin + table.num_blocks, table.num_cached)
        totals.remove_blocks(engine, sequence, group)
        record = engine.groups[group]
        record.num_duplicate_entries -= block_pool.free(engine, begin, begin + table.num_blocks, record.reuses_first)
        table.num_blocks = table.num_cached = table.num_removed = 0
    engine.lists[state.num_free_places].free_place = sequence.place
    state.num_free_places += 1


@part
def attach_hits(engine: Engine, sequence: Sequence, group: int, hit_tokens: int) -> None:
    """Begin a sequence's table in `group` with the hit blocks that its lookup has stored. Hit blocks that the group
    does not read after `hit_tokens` computed tokens are replaced by null blocks.
    """
    record = engine.groups[group]
    table = table_of(engine, sequence, group)
    begin = table.begin
    num_hits = record.num_hits
    skipped = groups.num_skipped_tokens(engine, group, hit_tokens) // record.block_size
    table.num_blocks = table.num_cached = num_hits
    table.previous_state = num_hits - 1
    table.owns_state = False
    num_held = 0
    for index in range(num_hits):
        block = engine.entries[groups.first_hit(engine, group) + index] if index >= skipped else NULL_BLOCK
        engine.entries[begin + index] = block
        if block != NULL_BLOCK:
            num_held += 1
            record.num_duplicate_entries += block_pool.touch(engine, block)
            engine.rules.note_hit(engine, sequence, block)
    if num_hits > 0:
        totals.add_blocks(engine, sequence, group, 0, num_held)
        journal.share_blocks(engine, sequence, group, skipped, begin + skipped, begin + num_hits)
        sequence.num_units += num_hits


@part
def extend(engine: Engine, sequence: Sequence, group: int, num_tokens: int, num_slots: int) -> None:
    """Append free blocks to a sequence's table in `group`, until it has room for `num_slots` tokens: the first
    `num_tokens`, and the drafts after them. Enough blocks must be free.

    An `ALIGNED` recurrent group gets at most one block, for the state after `num_tokens` tokens. New entries before
    this block are null blocks.
    """
    record = engine.groups[group]
    table = table_of(engine, sequence, group)
    first = table.begin
    before = table.num_blocks
    end = groups.num_blocks_for(engine, group, num_slots)
    begin = before
    if record.kind == MAMBA and record.mode == ALIGNED:
        end = -(-num_tokens // record.block_size)
        if end > before:
            if table.owns_state:
                table.previous_state = before - 1
            table.owns_state = True
            for index in range(before, end - 1):
                engine.entries[first + index] = NULL_BLOCK
            begin = max(before, end - 1)
    if end <= before:
        return
    assert end - begin <= engine.state.num_free
    evicted_from = first + end  # first of the last consecutive entries whose blocks lost a prefix; the end for none
    for entry in range(first + begin, first + end):
        engine.entries[entry], is_evicted = block_pool.allocate(engine)
        if is_evicted:
            evicted_from = min(evicted_from, entry)
        elif evicted_from < entry:
            journal.evict(engine, evicted_from, entry)
            evicted_from = first + end
    table.num_blocks = end
    totals.add_blocks(engine, sequence, group, before, end - begin)
    sequence.num_units += end - before
    journal.evict(engine, evicted_from, first + end)
    journal.append_blocks(engine, sequence, group, begin, first + begin, first + end)


@part
def find_room(engine: Engine, sequence: Sequence, computed: int) -> None:
    """Set `Sequence.room_tokens`: the number of computed tokens up to which steps change no table of the sequence; see
    `groups.quiet_until`. At present, `computed` tokens are computed.
    """
    room, first = NEVER, engine.settings.first_in_lookup
    read = max(0, computed - sequence.in_flight) if engine.settings.windows_wait else computed
    while first != groups.NO_GROUP:
        room = min(room, groups.quiet_until(engine, sequence, first, read))
        first = engine.groups[first].next_in_lookup
    sequence.room_tokens = room


PAGED = MemoryManager(
    name="paged",
    find_prefix=find_prefix,
    admit=admit,
    grow=grow,
    cache=cache_blocks,
    free=free,
    expect_return=expect_return,
    expired_slots=groups.expired_slots,
    shared_tokens=shared_tokens,
)
