"""The lookup of a waiting sequence in the prefix cache: the longest prefix that every KV-cache group holds.

A kind of layers has one or several groups, which are looked up together; its leader is the first group. The hit blocks
are stored in `entries`, after all tables, and `Group.num_hits` is their number in each group. Blocks that a group does
not read are null.
"""

from __future__ import annotations

from kvsim.engine.machine_code.compiled import part
from kvsim.engine.paged import prefix_cache
from kvsim.engine.paged.block_pool import NULL_BLOCK
from kvsim.engine.paged.groups import NO_GROUP, first_hit
from kvsim.engine.records import Sequence
from kvsim.engine.state import CHUNKED_LOCAL, FULL, SLIDING_WINDOW, Engine

_ROW_BITS = 32
"""Number of low bits with the index of the hash, in the key of a block without a known hash. Higher bits have the row.
"""


@part
def find(engine: Engine, sequence: Sequence) -> int:
    """Return the number of leading tokens of a waiting sequence that the cache has in all groups; store their blocks.

    The last token is never a hit, since it has to be computed. Full attention is looked up first. The hit of each kind
    limits the lookup of the next kind. The lookup is repeated until all kinds agree. What is cached beyond the common
    hit is stored in `State.num_partly_cached` and `Sequence.junction` for the split of the prompt into chunks.
    """
    settings, state = engine.settings, engine.state
    limit = sequence.num_tokens - 1
    if settings.ahead_tokens > 1:
        limit = max(sequence.num_tokens - settings.ahead_tokens, 0)
    state.num_partly_cached = 0
    if settings.num_groups == 1:
        return _find_alike(engine, sequence, 0, limit, settings.drops_last_hit) * engine.groups[0].block_size
    _forget_drops(engine)
    hit_tokens, longest, rounds = limit, 0, 0
    leader = settings.first_leader
    first_is_full = engine.groups[leader].kind == FULL
    while True:
        current, num_kinds = hit_tokens, 0
        leader = settings.first_leader
        while leader != NO_GROUP:
            block_size = engine.groups[leader].block_size
            if engine.groups[leader].kind == FULL and rounds > 0:  # every beginning of its hit is cached, too
                current = current // block_size * block_size
            else:
                current = _find_kind(engine, sequence, leader, current, limit) * block_size
                longest = max(longest, current)
            num_kinds += 1
            leader = engine.groups[leader].next_leader
        rounds += 1
        if current >= hit_tokens:
            break
        hit_tokens = current
        if num_kinds == 2 and first_is_full:  # the hit of full attention only has to be cut
            break
    leader = settings.first_leader
    while leader != NO_GROUP and engine.groups[leader].kind == FULL:
        _cut(engine, leader, hit_tokens)
        leader = engine.groups[leader].next_leader if settings.cuts_every_full_kind else NO_GROUP
    if settings.bounds_first_chunk:
        state.num_partly_cached = longest - hit_tokens
    if settings.keeps_junctions:
        sequence.junction = longest if longest > hit_tokens else 0
    return hit_tokens


@part
def _find_kind(engine: Engine, sequence: Sequence, leader: int, current: int, limit: int) -> int:
    """Store the hits of a kind of layers within `current` tokens; return the number of hit blocks.

    If drafting recomputes the last block of a hit, one further block is looked up, within `limit` tokens, and then left
    out. This happens once for each length of the common hit.
    """
    record, settings = engine.groups[leader], engine.settings
    if not settings.drops_last_hit:
        return _find_alike(engine, sequence, leader, current, False)
    if not record.drops_hit or record.is_dropped:
        num_hits = _find_alike(engine, sequence, leader, current, False)
        if num_hits * record.block_size < current:
            _forget_drops(engine)
        return num_hits
    record.is_dropped = True
    until = sequence.num_tokens if settings.drops_after_prompt else limit
    return _find_alike(engine, sequence, leader, min(current + record.block_size, until), True)


@part
def _forget_drops(engine: Engine) -> None:
    """Let the next lookup of every kind of layers leave out the last block of its hit again, if the kind does so."""
    if engine.settings.drops_last_hit:
        for group in range(engine.settings.num_groups):
            engine.groups[group].is_dropped = False


@part
def key_of(engine: Engine, sequence: Sequence, group: int, index: int) -> int:
    """Return the key of a full block of a sequence in a group; a block without a known key gets a key of its own."""
    number = (index + 1) * engine.groups[group].hashes_per_block - 1
    if number < sequence.num_keys:
        key = engine.prompt_keys[sequence.first_key + number]
    else:
        key = -1 - ((sequence.number - 1) << _ROW_BITS | number)
    return key * engine.settings.num_groups + group


@part
def _find_alike(engine: Engine, sequence: Sequence, leader: int, limit: int, drops: bool) -> int:
    """Store the hits of all groups of a kind within `limit` tokens; return the number of hit blocks in each group.

    With `drops`, the last block of the hit is left out.
    """
    kind = engine.groups[leader].kind
    if not engine.settings.has_windows or kind == FULL:
        num_hits = _find_full(engine, sequence, leader, limit, drops)
    elif kind == SLIDING_WINDOW:
        num_hits = _find_window(engine, sequence, leader, limit, drops)
    elif kind == CHUNKED_LOCAL:
        num_hits = _find_chunk(engine, sequence, leader, limit)
    else:
        num_hits = _find_state(engine, sequence, leader, limit)
    group = leader
    while group != NO_GROUP:
        engine.groups[group].num_hits = num_hits
        group = engine.groups[group].next_alike
    return num_hits


@part
def _cut(engine: Engine, leader: int, hit_tokens: int) -> None:
    """Shorten the hits of all groups of a kind to `hit_tokens`."""
    group = leader
    while group != NO_GROUP:
        engine.groups[group].num_hits = hit_tokens // engine.groups[group].block_size
        group = engine.groups[group].next_alike


@part
def _find_full(engine: Engine, sequence: Sequence, leader: int, limit: int, drops: bool) -> int:
    """Return the number of hits of full attention: all leading blocks before the first one that is not cached."""
    block_size, num_hits = engine.groups[leader].block_size, 0
    while num_hits < limit // block_size and _is_cached(engine, sequence, leader, num_hits):
        num_hits += 1
    return _aligned(engine, leader, max(num_hits - 1, 0) if drops else num_hits)


@part
def _find_window(engine: Engine, sequence: Sequence, leader: int, limit: int, drops: bool) -> int:
    """Return the number of hits of a window, which end with the last consecutive cached blocks that cover the window.

    If no cached blocks cover it, the hits are the leading blocks that are cached.
    """
    record = engine.groups[leader]
    needed, run, num_dropped = -(-(record.window - 1) // record.block_size), 0, 1 if drops else 0
    needed += num_dropped
    for index in range(limit // record.block_size - 1, -1, -1):
        if not _is_cached(engine, sequence, leader, index):
            run = 0
            continue
        if run == 0 and (index + 1 - num_dropped) * record.block_size % engine.settings.cache_tokens != 0:
            continue
        run += 1
        if run >= needed:
            _forget_before(engine, leader, index)
            return index + run - num_dropped
    # vLLM shortens such a hit to a common boundary before it leaves out the last block, and again after that.
    run = _aligned(engine, leader, run)
    return _aligned(engine, leader, max(run - num_dropped, 0))


@part
def _find_chunk(engine: Engine, sequence: Sequence, leader: int, limit: int) -> int:
    """Return the number of hits of chunked attention: all blocks before the chunk of the last token, which need not be
    cached, and the leading cached blocks of this chunk.
    """
    record = engine.groups[leader]
    num_hits = limit // record.window * record.window // record.block_size
    _forget_before(engine, leader, num_hits)
    while num_hits < limit // record.block_size and _is_cached(engine, sequence, leader, num_hits):
        num_hits += 1
    return num_hits


@part
def _find_state(engine: Engine, sequence: Sequence, leader: int, limit: int) -> int:
    """Return the number of hits of a recurrent group, which end with the last state cached at a common boundary."""
    block_size = engine.groups[leader].block_size
    for index in range(limit // block_size - 1, -1, -1):
        is_boundary = (index + 1) * block_size % engine.settings.cache_tokens == 0
        if is_boundary and _is_cached(engine, sequence, leader, index):
            _forget_before(engine, leader, index)
            return index + 1
    return 0


@part
def _aligned(engine: Engine, leader: int, num_blocks: int) -> int:
    """Return `num_blocks`, reduced to a boundary that all groups share."""
    while num_blocks * engine.groups[leader].block_size % engine.settings.cache_tokens != 0:
        num_blocks -= 1
    return num_blocks


@part
def _is_cached(engine: Engine, sequence: Sequence, leader: int, index: int) -> bool:
    """Tell whether all groups of a kind have the block at `index` cached; store these blocks among the hits."""
    group = leader
    while group != NO_GROUP:
        block = prefix_cache.find(engine, key_of(engine, sequence, group, index))
        if block == prefix_cache.NO_BLOCK:
            return False
        engine.entries[first_hit(engine, group) + index] = block
        group = engine.groups[group].next_alike
    return True


@part
def _forget_before(engine: Engine, leader: int, end: int) -> None:
    """Replace the hits before entry `end`, which the groups of this kind do not read, by null blocks."""
    group = leader
    while group != NO_GROUP:
        begin = first_hit(engine, group)
        for entry in range(begin, begin + end):
            engine.entries[entry] = NULL_BLOCK
        group = engine.groups[group].next_alike
