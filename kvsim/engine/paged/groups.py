"""Rules of KV-cache groups that differ by kind of layers: which tokens are read, and which blocks are needed and freed.

The layers of a group share a block table. Full attention reads every token, a sliding window the last tokens, chunked
attention the tokens since the beginning of the chunk, and a recurrent layer one state. Table entries whose blocks are
not read any longer hold the null block.
"""

from __future__ import annotations

from kvsim.engine import journal, totals
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.paged import block_pool, prefix_cache
from kvsim.engine.paged.block_pool import NULL_BLOCK
from kvsim.engine.records import NEVER, Sequence
from kvsim.engine.state import ALIGNED, CHUNKED_LOCAL, FULL_ATTENTION, MAMBA, SLIDING_WINDOW, Engine, table_of

NO_GROUP = -1


@part
def first_hit(engine: Engine, group: int) -> int:
    """Return the index in `Engine.entries` of the first hit block in a group, for the sequence being admitted."""
    return engine.settings.first_hit + engine.groups[group].first_entry


@part
def num_skipped_tokens(engine: Engine, group: int, computed: int) -> int:
    """Return the number of leading tokens that a group need not keep of a sequence with `computed` computed tokens."""
    if not engine.settings.has_windows:
        return 0
    kind, window = engine.groups[group].kind, engine.groups[group].window
    if kind == SLIDING_WINDOW:
        return max(0, computed - window + 1 - engine.groups[group].extra_tokens)
    if kind == CHUNKED_LOCAL:
        return computed // window * window
    if kind == MAMBA:
        return max(0, computed - 1)
    return 0


@part
def num_unread_tokens(engine: Engine, group: int, computed: int) -> int:
    """Return the number of leading tokens that the layers of a group do not read after `computed` computed tokens.

    It exceeds `num_skipped_tokens` if the layers have a window, but the group keeps every token.
    """
    record = engine.groups[group]
    if record.kind == FULL_ATTENTION and record.window > 0:
        return max(0, computed - record.window + 1)
    return num_skipped_tokens(engine, group, computed)


@part
def num_blocks_for(engine: Engine, group: int, num_tokens: int) -> int:
    """Return the number of table entries for `num_tokens` tokens. Tokens beyond `max_model_len` do not count."""
    return -(-min(num_tokens, engine.settings.max_model_len) // engine.groups[group].block_size)


@part
def num_needed_at_admission(engine: Engine, group: int, num_tokens: int, hit_tokens: int, capped: bool) -> int:
    """Return the number of blocks that leave the free queue if a waiting sequence gets a table of `num_tokens` tokens:
    new blocks, and hit blocks that are free. The hit has `hit_tokens` tokens.

    With `capped`, windows and chunks need no more blocks than a sequence ever holds at the same time. vLLM counts so
    when it checks whether a whole prompt fits.
    """
    record = engine.groups[group]
    required = num_blocks_for(engine, group, num_tokens)
    if capped and record.kind in (SLIDING_WINDOW, CHUNKED_LOCAL):
        required = min(required, record.most_blocks)
    needed = max(required - record.num_hits, 0)
    if record.kind == MAMBA and record.mode == ALIGNED:
        needed = min(required - record.num_hits, 1)
    begin = first_hit(engine, group)
    skipped = num_skipped_tokens(engine, group, hit_tokens) // record.block_size
    for entry in range(begin + skipped, begin + record.num_hits):
        block = engine.entries[entry]
        if block != NULL_BLOCK and engine.blocks[block].refs == 0:
            needed += 1  # the hit leaves the free queue
    return needed


@part
def num_needed_to_grow(engine: Engine, sequence: Sequence, group: int, num_tokens: int, num_slots: int) -> int:
    """Return the number of new blocks that a running sequence needs in a group, so that its table has room for
    `num_slots` tokens: the first `num_tokens`, and the drafts after them. An `ALIGNED` recurrent group needs at most
    one block, and none for drafts.
    """
    num_blocks = table_of(engine, sequence, group).num_blocks
    if engine.groups[group].kind == MAMBA and engine.groups[group].mode == ALIGNED:
        return min(-(-num_tokens // engine.groups[group].block_size) - num_blocks, 1)
    return max(num_blocks_for(engine, group, num_slots) - num_blocks, 0)


@part
def is_written_this_step(engine: Engine, group: int) -> bool:
    """Tell whether the recurrent state that the sequence being admitted has hit is written by the step being scheduled.
    The sequence then cannot read the state before the next step.
    """
    record = engine.groups[group]
    if not engine.settings.has_windows or record.kind != MAMBA or record.num_hits == 0:
        return False
    block = engine.entries[first_hit(engine, group) + record.num_hits - 1]
    key = engine.blocks[block].key
    while block != NULL_BLOCK:  # a later block in the bucket may hold an equal state
        if engine.blocks[block].key == key and engine.blocks[block].cached_in == engine.state.num_scheduled:
            return True
        block = engine.blocks[block].next_in_bucket
    return False


@part
def remove_skipped_blocks(engine: Engine, sequence: Sequence, group: int, computed: int) -> None:
    """Free the blocks of a sequence that a group need not keep after `computed` computed tokens, the last one first.
    Their table entries become null blocks.
    """
    record = engine.groups[group]
    if not engine.settings.has_windows or record.kind == FULL_ATTENTION:
        return
    skipped = num_skipped_tokens(engine, group, computed)
    if skipped < record.block_size and record.kind != MAMBA:
        return
    table = table_of(engine, sequence, group)
    begin = table.begin
    end = min(skipped // record.block_size, table.num_blocks)
    index = end  # becomes the first entry to free: earlier entries are null since the last call
    if record.frees_over_gaps:
        index = min(end, table.num_removed)
        table.num_removed = max(end, table.num_removed)
    else:
        while index > 0 and engine.entries[begin + index - 1] != NULL_BLOCK:
            index -= 1
    if index < end:
        _free_entries(engine, sequence, group, index, end, record.reuses_left_first)
    if record.kind == MAMBA and record.mode == ALIGNED:
        last = table.previous_state
        if 0 <= last < -(-computed // record.block_size) - 1 and engine.entries[begin + last] != NULL_BLOCK:
            _free_entries(engine, sequence, group, last, last + 1, record.reuses_first)


@part
def quiet_until(engine: Engine, sequence: Sequence, group: int, computed: int) -> int:
    """Return the number of computed tokens up to which steps neither append nor free a block of the sequence in
    `group`; 0 if every step must check. `computed` is the present number of computed tokens, without those in flight if
    windows wait for them.
    """
    record, table = engine.groups[group], table_of(engine, sequence, group)
    block_size = record.block_size
    room = table.num_blocks * block_size - engine.settings.lookahead_tokens  # with more, the table needs a block
    if record.kind == FULL_ATTENTION:
        return room
    # Otherwise, a block also becomes free when the skipped tokens reach the end of the next block.
    skipped = num_skipped_tokens(engine, group, computed) // block_size * block_size
    if record.kind == SLIDING_WINDOW:
        return min(room, skipped + block_size + record.window - 1 + record.extra_tokens)
    if record.kind == MAMBA:
        return 0 if record.mode == ALIGNED else min(room, skipped + block_size + 1)
    return min(room, (computed // record.window + 1) * record.window)


@part
def is_kept_for_hits(engine: Engine, sequence: Sequence, group: int, index: int) -> bool:
    """Tell whether the full block in entry `index` of a sequence's table is put into the prefix cache, because a hit
    may need it.

    A hit ends at a multiple of `Settings.cache_tokens`. It needs the blocks of one window, or the one state, before its
    end. With a retention interval (`Settings.retention_tokens`), such blocks are cached only for hits that end at a
    multiple of the interval, at the end of the prompt, or at `Sequence.junction`: the end of a longer prefix that only
    some groups had cached.
    """
    settings, record = engine.settings, engine.groups[group]
    if not settings.has_windows or record.keeps_all:
        return True
    aligned, block_size, retention = settings.cache_tokens, record.block_size, settings.retention_tokens
    if record.kind == SLIDING_WINDOW:
        segment = aligned if retention == NEVER else retention
        if segment > 0 and _is_before_segment_end(engine, group, index, segment):
            return True
        return retention != NEVER and _is_before_prompt_end(engine, sequence, group, index)
    prompt_end = (sequence.prompt_tokens - 1) // aligned * aligned // block_size
    junction = sequence.junction // aligned * aligned // block_size
    blocks_per_segment = retention // block_size
    if retention > 0 and (blocks_per_segment <= 1 or (index + 1) % blocks_per_segment == 0):
        return True
    return index in (prompt_end - 1, junction - 1)


@part
def _blocks_at_hit_end(engine: Engine, group: int) -> int:
    """Return the number of consecutive cached blocks that a group with a sliding window needs at the end of a hit. With
    `Group.drops_hit`, the block after the hit counts, too: the lookup must find it, although it is computed again.
    """
    record = engine.groups[group]
    return -(-(record.window - 1) // record.block_size) + (1 if record.drops_hit else 0)


@part
def _is_before_segment_end(engine: Engine, group: int, index: int, segment_tokens: int) -> bool:
    """Tell whether a hit that ends at a multiple of `segment_tokens` needs block `index` of a group with a window."""
    record, run = engine.groups[group], _blocks_at_hit_end(engine, group)
    per, place = segment_tokens // record.block_size, index - (1 if record.drops_hit else 0)
    return run >= per or (place >= 0 and place % per >= per - run)


@part
def _is_before_prompt_end(engine: Engine, sequence: Sequence, group: int, index: int) -> bool:
    """Tell whether a group with a sliding window needs the block in entry `index` for one of these hits: that of an
    equal prompt, that of a longer prompt which begins with this prompt, or one that ends at `Sequence.junction`.
    """
    aligned, record = engine.settings.cache_tokens, engine.groups[group]
    repeated, longer = sequence.prompt_tokens - 1, sequence.prompt_tokens - 1
    if engine.settings.keeps_below_drop:
        repeated, longer = max(repeated // aligned - 1, 0) * aligned, max((longer + 1) // aligned - 1, 0) * aligned
    if _is_needed_by_hit(engine, group, index, repeated) or _is_needed_by_hit(engine, group, index, longer):
        return True
    if sequence.junction == 0:
        return False
    if record.drops_hit and _is_needed_by_hit(engine, group, index, sequence.junction - record.block_size):
        return True
    return _is_needed_by_hit(engine, group, index, sequence.junction)


@part
def _is_needed_by_hit(engine: Engine, group: int, index: int, num_tokens: int) -> bool:
    """Tell whether a hit of `num_tokens` tokens, rounded down to a multiple of `Settings.cache_tokens`, needs the block
    in entry `index` of a group with a sliding window.
    """
    aligned, record = engine.settings.cache_tokens, engine.groups[group]
    end = num_tokens // aligned * aligned // record.block_size + (1 if record.drops_hit else 0)
    return end - _blocks_at_hit_end(engine, group) <= index < end


@part
def expired_slots(engine: Engine) -> int:
    """Return the number of slots, in the blocks of running sequences, whose tokens or states no later step reads.

    These are the tokens before a window or chunk and, in a recurrent group, all states but the newest. A token in a
    shared block has expired only if no sequence that holds the block will read it.
    """
    settings, state = engine.settings, engine.state
    if not settings.has_windows:
        return 0
    total = num_shared = 0
    state.num_expiry_counts += 1
    for group in range(settings.num_groups):
        num_shared += engine.groups[group].num_duplicate_entries
    for index in range(state.num_running):
        sequence = engine.sequences[engine.running[index]]
        computed = sequence.computed
        if engine.quiet_until[index] > 0:  # `computed` is not updated while the sequence is quiet
            computed += state.num_scheduled - sequence.quiet_since
        if computed < settings.expires_from:
            continue
        first = settings.first_in_lookup
        while first != NO_GROUP:
            if num_shared == 0:  # groups of one kind have tables of equal shape
                total += _num_expired(engine, sequence, first, computed) * engine.groups[first].kind_slots
            else:
                group = first
                while group != NO_GROUP:
                    total += _expired_of_table(engine, sequence, group, computed)
                    group = engine.groups[group].next_of_kind
            first = engine.groups[first].next_in_lookup
    return total


@part
def _num_expired(engine: Engine, sequence: Sequence, group: int, computed: int) -> int:
    """Return the number of tokens, or of recurrent states, that a sequence holds in a group and will not read again."""
    record, table = engine.groups[group], table_of(engine, sequence, group)
    if table.num_held == 0 or (record.kind == FULL_ATTENTION and record.window == 0):
        return 0
    if record.kind == MAMBA:
        return table.num_held - 1
    end = min(num_unread_tokens(engine, group, computed), table.num_blocks * record.block_size)
    return max(end - (table.num_blocks - table.num_held) * record.block_size, 0)


@part
def _expired_of_table(engine: Engine, sequence: Sequence, group: int, computed: int) -> int:
    """Return the number of expired slots of one table. The slots of a block in several tables are counted only for the
    last of these tables in the loop of `expired_slots`.
    """
    record, table = engine.groups[group], table_of(engine, sequence, group)
    num_expired = _num_expired(engine, sequence, group, computed)
    slots = record.state_slots if record.kind == MAMBA else record.token_slots
    if num_expired == 0 or record.num_duplicate_entries == 0:
        return num_expired * slots
    if record.kind == MAMBA:
        return _expired_states(engine, sequence, group) * slots
    skipped = num_unread_tokens(engine, group, computed)
    return _expired_tokens(engine, sequence, group, table.num_blocks - table.num_held, skipped) * slots


@part
def _expired_tokens(engine: Engine, sequence: Sequence, group: int, first_held: int, skipped: int) -> int:
    """Return the number of expired tokens in a table, from entry `first_held` on and among the first `skipped` tokens.
    See `_count_holder` for shared blocks.
    """
    total, block_size, table = 0, engine.groups[group].block_size, table_of(engine, sequence, group)
    for index in range(first_held, min(-(-skipped // block_size), table.num_blocks)):
        expired = min(block_size, skipped - index * block_size)
        total += _count_holder(engine, engine.entries[table.begin + index], expired)
    return total


@part
def _expired_states(engine: Engine, sequence: Sequence, group: int) -> int:
    """Return the number of expired states in a table: all but the newest. See `_count_holder` for shared blocks."""
    table, total = table_of(engine, sequence, group), 0
    left, index = table.num_held - 1, table.num_blocks - 2
    while left > 0 and index >= 0:
        block = engine.entries[table.begin + index]
        index -= 1
        if block != NULL_BLOCK:
            left -= 1
            total += _count_holder(engine, block, 1)
    return total


@part
def _count_holder(engine: Engine, block: int, expired: int) -> int:
    """Record that one sequence with `block` in its table will not read the first `expired` tokens or states of the
    block. Return the number that no sequence will read if this call is for the last such sequence; otherwise 0.

    `expired_slots` calls this at most once for each of these sequences, and not for a sequence that will still read the
    whole block. The last sequence is that whose call makes the number of calls equal to `Block.refs`. If one sequence
    is left out, this number is not reached, and every call returns 0.
    """
    num_holders = engine.blocks[block].refs
    if num_holders == 1:
        return expired
    record, count = engine.expiry_counts[block], engine.state.num_expiry_counts
    if record.seen_in != count:
        record.seen_in, record.num_seen, record.least_expired = count, 0, expired
    record.num_seen += 1
    record.least_expired = min(record.least_expired, expired)
    return record.least_expired if record.num_seen == num_holders else 0


@part
def aligned_tokens(engine: Engine, sequence: Sequence, computed: int, num_tokens: int, partly_cached: int) -> int:
    """Return `num_tokens`, or fewer so that the chunk of a prompt ends at a boundary (a multiple of
    `Settings.boundary_tokens`), where a recurrent state is kept; 0 if the chunk is too short for that.

    If only some groups have cached the next `partly_cached` tokens, some releases also end a chunk at the last boundary
    in these tokens. The end of a prompt need not be a boundary.
    """
    if engine.settings.cuts_at_boundaries:
        return _tokens_to_boundary(engine, sequence, computed, num_tokens)
    if computed >= max(sequence.prompt_tokens, sequence.num_tokens - 1):
        return num_tokens
    block_size = engine.settings.boundary_tokens
    last = sequence.num_tokens // block_size * block_size
    if computed + num_tokens < last:
        num_tokens = num_tokens // block_size * block_size
    elif computed < last < computed + num_tokens:
        num_tokens = last - computed
    if block_size <= partly_cached < num_tokens:
        num_tokens = partly_cached // block_size * block_size
    return num_tokens


@part
def _tokens_to_boundary(engine: Engine, sequence: Sequence, computed: int, num_tokens: int) -> int:
    """Return `num_tokens`, or fewer so that the chunk ends at a boundary; 0 if the chunk is too short for that.

    The chunk ends at the first of these, if it reaches one: the end of a block that is computed in part; the last
    boundary of the prompt; the last boundary up to `Sequence.junction`. Otherwise it ends at the last boundary reached.

    In three cases, a chunk need not end at a boundary:

    - It reaches the end of the prompt.
    - Without `Settings.cuts_wide_blocks`: it begins after the prompt's last boundary.
    - With `Settings.cuts_wide_blocks`: it reaches no boundary, because a block has more tokens than a step computes of
      one prompt.
    """
    settings, block_size = engine.settings, engine.settings.boundary_tokens
    prompt_end = max(sequence.prompt_tokens, sequence.num_tokens - 1)
    if computed >= prompt_end:
        return num_tokens
    end = computed + num_tokens
    last = (sequence.num_tokens - (1 if settings.spares_last_token else 0)) // block_size * block_size
    whole = end // block_size * block_size  # last boundary that the chunk reaches
    if settings.cuts_wide_blocks:
        if end < prompt_end and (whole > computed or block_size <= settings.most_chunk_tokens):
            end = whole
    elif end < last:
        end = whole
    # `stop` is the first of the places at which the chunk has to end.
    stop, following = end, (computed // block_size + 1) * block_size
    if computed % block_size != 0 and following < stop and (settings.cuts_wide_blocks or following <= last):
        stop = following
    if computed < last < stop:
        stop = last
    if computed < sequence.junction < end:
        junction = computed + (sequence.junction - computed) // block_size * block_size
        if computed < junction < stop:
            stop = junction
    return max(stop - computed, 0)


@part
def _free_entries(engine: Engine, sequence: Sequence, group: int, begin: int, end: int, reuses_first: bool) -> None:
    record, first, num_freed = engine.groups[group], table_of(engine, sequence, group).begin, 0
    for index in range(end - 1, begin - 1, -1):
        if engine.entries[first + index] != NULL_BLOCK:
            num_freed += 1
            journal.release_block(engine, sequence, group, index, engine.entries[first + index])
            # If the sequence is preempted later, it looks this block up.
            prefix_cache.offer(engine, engine.entries[first + index])
    totals.remove_unread_blocks(engine, sequence, group, num_freed)
    record.num_duplicate_entries -= block_pool.free(engine, first + begin, first + end, reuses_first)
    for index in range(begin, end):
        engine.entries[first + index] = NULL_BLOCK
