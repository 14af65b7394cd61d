"""The lookup of a waiting sequence in the prefix cache: the longest prefix that every KV-cache group has cached.

Groups of equal layers are one kind, and are looked up together. In this module, `first` is the index of a kind's first
group. `Group.next_of_kind` leads to the other groups of the kind, `Group.next_in_lookup` to the first of the next kind.

A lookup writes the cached blocks that it finds (hits) to `Engine.entries`, after all tables. `Group.num_hits` is their
number in each group. Blocks that a group does not read are null blocks.
"""

from __future__ import annotations

from kvsim.engine.machine_code.compiled import part
from kvsim.engine.paged import prefix_cache
from kvsim.engine.paged.block_pool import NULL_BLOCK
from kvsim.engine.paged.groups import NO_GROUP, first_hit
from kvsim.engine.records import Sequence
from kvsim.engine.state import CHUNKED_LOCAL, FULL_ATTENTION, SLIDING_WINDOW, Engine

_HASH_BITS = 32
"""Number of low bits that hold the position of a block in the key of a block with unknown contents: the index of the
prefix hash that ends with the block, from 0 for the first hash of the sequence.

The higher bits hold the row of the request, so that no other sequence has the key.
"""


@part
def find(engine: Engine, sequence: Sequence) -> int:
    """Return the length of a waiting sequence's hit in tokens: the longest prefix that all groups have cached. Store
    its blocks as hits.

    The last token is never a hit, because it has to be computed. Kinds of layers are looked up in turn, full attention
    first, each within the hit of the kind before. This is repeated until no kind shortens the hit.

    If some groups have a longer prefix cached, a chunk of the prompt may have to end where that prefix ends. Depending
    on the release, `Sequence.junction` is set to the longest such prefix, or `State.num_partly_cached` to its tokens
    after the hit.
    """
    settings, state = engine.settings, engine.state
    limit = sequence.num_tokens - 1
    if settings.ahead_tokens > 1:  # the key of the last hit block covers the tokens that drafting reads after it
        limit = max(sequence.num_tokens - settings.ahead_tokens, 0)
    state.num_partly_cached = 0
    if settings.num_groups == 1:
        return _find_blocks(engine, sequence, 0, limit, settings.drops_last_hit) * engine.groups[0].block_size
    _allow_drops(engine)
    # A round shortens `current` kind by kind. `hit_tokens` is the result of the round before; if a round shortens it no
    # further, it is the hit.
    hit_tokens, longest, rounds = limit, 0, 0
    first_is_full = engine.groups[settings.first_in_lookup].kind == FULL_ATTENTION
    while True:
        current, num_kinds = hit_tokens, 0
        first = settings.first_in_lookup
        while first != NO_GROUP:
            block_size = engine.groups[first].block_size
            if engine.groups[first].kind == FULL_ATTENTION and rounds > 0:
                # its hit can end after any of its cached blocks
                current = current // block_size * block_size
            else:
                current = _find_kind(engine, sequence, first, current, limit) * block_size
                longest = max(longest, current)
            num_kinds += 1
            first = engine.groups[first].next_in_lookup
        rounds += 1
        if current >= hit_tokens:
            break
        hit_tokens = current
        if num_kinds == 2 and first_is_full:  # the other kind was looked up within full attention's hit: both agree
            break
    first = settings.first_in_lookup
    while first != NO_GROUP and engine.groups[first].kind == FULL_ATTENTION:
        _cut(engine, first, hit_tokens)
        first = engine.groups[first].next_in_lookup if settings.cuts_every_full_kind else NO_GROUP
    if settings.bounds_first_chunk:
        state.num_partly_cached = longest - hit_tokens
    if settings.keeps_junctions:
        sequence.junction = longest if longest > hit_tokens else 0
    return hit_tokens


@part
def _find_kind(engine: Engine, sequence: Sequence, first: int, current: int, limit: int) -> int:
    """Store the hits of a kind of layers within the first `current` tokens. Return the number of hit blocks, which is
    the same in all groups of the kind.

    If drafting computes the last hit block of this kind again (`Group.drops_hit`), look up one block more, within
    `limit` tokens, and leave out the last block found. With `Settings.drops_after_prompt`, look it up within all known
    tokens instead. The kind leaves out a block only once, and once again each time that a call of this function which
    leaves out no block finds less than `current` tokens.
    """
    record, settings = engine.groups[first], engine.settings
    if not settings.drops_last_hit:
        return _find_blocks(engine, sequence, first, current, False)
    if not record.drops_hit or record.has_dropped_hit:
        num_hits = _find_blocks(engine, sequence, first, current, False)
        if num_hits * record.block_size < current:
            _allow_drops(engine)
        return num_hits
    record.has_dropped_hit = True
    until = sequence.num_tokens if settings.drops_after_prompt else limit
    return _find_blocks(engine, sequence, first, min(current + record.block_size, until), True)


@part
def _allow_drops(engine: Engine) -> None:
    """Let each kind of layers leave out its last hit block once. Called as a lookup starts and by `_find_kind`."""
    if engine.settings.drops_last_hit:
        for group in range(engine.settings.num_groups):
            engine.groups[group].has_dropped_hit = False


@part
def key_of(engine: Engine, sequence: Sequence, group: int, index: int) -> int:
    """Return the key of the full block in entry `index` of a sequence's table in a group. If the tokens of the block
    are unknown, the key is negative, and no other sequence has it.
    """
    hash_index = (index + 1) * engine.groups[group].hashes_per_block - 1
    if hash_index < sequence.num_keys:
        key = engine.prompt_keys[sequence.first_key + hash_index]
    else:
        key = -1 - ((sequence.number - 1) << _HASH_BITS | hash_index)
    return key * engine.settings.num_groups + group


@part
def _find_blocks(engine: Engine, sequence: Sequence, first: int, limit: int, leaves_out: bool) -> int:
    """Store the hits of all groups of a kind within the first `limit` tokens. With `leaves_out`, the last block found
    is left out, where the kind has full attention or a sliding window. Return the number of hit blocks in each group.
    """
    kind = engine.groups[first].kind
    if not engine.settings.has_windows or kind == FULL_ATTENTION:
        num_hits = _find_full(engine, sequence, first, limit, leaves_out)
    elif kind == SLIDING_WINDOW:
        num_hits = _find_window(engine, sequence, first, limit, leaves_out)
    elif kind == CHUNKED_LOCAL:
        num_hits = _find_chunk(engine, sequence, first, limit)
    else:
        num_hits = _find_state(engine, sequence, first, limit)
    group = first
    while group != NO_GROUP:
        engine.groups[group].num_hits = num_hits
        group = engine.groups[group].next_of_kind
    return num_hits


@part
def _cut(engine: Engine, first: int, hit_tokens: int) -> None:
    group = first
    while group != NO_GROUP:
        engine.groups[group].num_hits = hit_tokens // engine.groups[group].block_size
        group = engine.groups[group].next_of_kind


@part
def _find_full(engine: Engine, sequence: Sequence, first: int, limit: int, leaves_out: bool) -> int:
    """Store the leading cached blocks of full attention within the first `limit` tokens. Return their number, without
    the last one if `leaves_out`, rounded down so that the hit ends at a multiple of `Settings.cache_tokens`.
    """
    block_size, num_hits = engine.groups[first].block_size, 0
    while num_hits < limit // block_size and _store_hit(engine, sequence, first, num_hits):
        num_hits += 1
    return _aligned(engine, first, max(num_hits - 1, 0) if leaves_out else num_hits)


@part
def _find_window(engine: Engine, sequence: Sequence, first: int, limit: int, leaves_out: bool) -> int:
    """Return the number of hit blocks of a sliding window. Only the last blocks of a hit, those in the window before
    its end, are read; the others are stored as null blocks.

    The hit is the longest one whose last blocks are all cached, together with the next block if `leaves_out`. If there
    is no such hit, it consists of the leading cached blocks. It ends at a multiple of `Settings.cache_tokens`.
    """
    record = engine.groups[first]
    needed, run, num_left_out = -(-(record.window - 1) // record.block_size), 0, 1 if leaves_out else 0
    needed += num_left_out
    for index in range(limit // record.block_size - 1, -1, -1):
        if not _store_hit(engine, sequence, first, index):
            run = 0
            continue
        if run == 0 and (index + 1 - num_left_out) * record.block_size % engine.settings.cache_tokens != 0:
            continue
        run += 1
        if run >= needed:
            _null_before(engine, first, index)
            return index + run - num_left_out
    # vLLM shortens such a hit to a common boundary before it leaves out the last block, and again after that.
    run = _aligned(engine, first, run)
    return _aligned(engine, first, max(run - num_left_out, 0))


@part
def _find_chunk(engine: Engine, sequence: Sequence, first: int, limit: int) -> int:
    """Return the number of hit blocks of chunked attention: all blocks before the last chunk within `limit` tokens, and
    the leading cached blocks in this chunk. Blocks before the chunk are not read, so they need not be cached.
    """
    record = engine.groups[first]
    num_hits = limit // record.window * record.window // record.block_size
    _null_before(engine, first, num_hits)
    while num_hits < limit // record.block_size and _store_hit(engine, sequence, first, num_hits):
        num_hits += 1
    return num_hits


@part
def _find_state(engine: Engine, sequence: Sequence, first: int, limit: int) -> int:
    """Return the number of blocks up to the last cached recurrent state that ends at a multiple of
    `Settings.cache_tokens`; 0 if there is none. Only the block of this state is read; the others are null blocks.
    """
    block_size = engine.groups[first].block_size
    for index in range(limit // block_size - 1, -1, -1):
        is_boundary = (index + 1) * block_size % engine.settings.cache_tokens == 0
        if is_boundary and _store_hit(engine, sequence, first, index):
            _null_before(engine, first, index)
            return index + 1
    return 0


@part
def _aligned(engine: Engine, first: int, num_blocks: int) -> int:
    while num_blocks * engine.groups[first].block_size % engine.settings.cache_tokens != 0:
        num_blocks -= 1
    return num_blocks


@part
def _store_hit(engine: Engine, sequence: Sequence, first: int, index: int) -> bool:
    """Store the cached block in entry `index` as a hit in every group of a kind. Return False if a group lacks it."""
    group = first
    while group != NO_GROUP:
        block = prefix_cache.find(engine, key_of(engine, sequence, group, index))
        if block == prefix_cache.NO_BLOCK:
            return False
        engine.entries[first_hit(engine, group) + index] = block
        group = engine.groups[group].next_of_kind
    return True


@part
def _null_before(engine: Engine, first: int, end: int) -> None:
    """Store null blocks as the first `end` hits in every group of a kind, because these blocks are not read."""
    group = first
    while group != NO_GROUP:
        begin = first_hit(engine, group)
        for entry in range(begin, begin + end):
            engine.entries[entry] = NULL_BLOCK
        group = engine.groups[group].next_of_kind
