"""The pool of host blocks: finds the block that holds a prefix, by the prefix's key, allocates blocks and evicts them.

A slot is the memory of one host block. A host block is being written by a store, being read by loads, or idle. Only
idle blocks are evicted: by LRU, or by ARC (Megiddo and Modha, FAST 2003) with the rules of vLLM 0.25.1. ARC has two
lists: blocks used once (recency) and more often (frequency). It also remembers the keys of evicted blocks of each list,
in records without a slot (ghosts).
"""

from __future__ import annotations

from kvsim.engine import linked_list
from kvsim.engine.host_tier import FREQUENT, FREQUENT_GHOSTS, NO_HOST_BLOCK, NUM_LISTS, RECENT, RECENT_GHOSTS, WRITING
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.state import Engine

_SPREAD = -7046029254386353131
"""Multiplier of Fibonacci hashing: 2^64 divided by the golden ratio, as a signed odd number."""
_UNLISTED = -1


@part
def find(engine: Engine, key: int) -> int:
    """Return the host block that holds `key`, even while it is being written; `NO_HOST_BLOCK` if there is none."""
    block = _find_with_ghosts(engine, key)
    return block if block < NUM_LISTS + engine.host.settings.num_slots else NO_HOST_BLOCK


@part
def slot_of(block: int) -> int:
    """Return the slot of a host block."""
    return block - NUM_LISTS


@part
def block_of(slot: int) -> int:
    """Return the host block in a slot."""
    return slot + NUM_LISTS


@part
def use(engine: Engine, block: int) -> None:
    """Mark a host block as the most recently used, if it is idle and LRU evicts. With ARC, do nothing; see `touch`."""
    if not engine.host.settings.adaptive and engine.host.blocks[block].readers == 0:
        _move(engine, RECENT, block)


@part
def hold(engine: Engine, block: int) -> None:
    """Count one more load that reads a host block. The block is not evicted before all these loads have ended."""
    tier = engine.host
    if tier.blocks[block].readers == 0:
        if tier.settings.adaptive:
            tier.lists[tier.blocks[block].in_list].num_idle -= 1
        else:
            _leave(engine, block)
    tier.blocks[block].readers += 1


@part
def release(engine: Engine, block: int) -> None:
    """End the store that writes a host block, or one of the loads that read it. Without another load, it is idle."""
    tier = engine.host
    record = tier.blocks[block]
    record.readers = max(record.readers - 1, 0)
    if record.readers == 0:
        if tier.settings.adaptive:
            tier.lists[record.in_list].num_idle += 1
        else:
            _enter(engine, RECENT, block)


@part
def touch(engine: Engine, key: int) -> None:
    """Mark the host block that holds `key` as the most recently used; with LRU, only if it is idle. If a ghost of ARC
    has this key, mark the ghost, and adapt the target length of the recency list. If there is neither, do nothing.
    """
    tier = engine.host
    block = _find_with_ghosts(engine, key)
    if block == NO_HOST_BLOCK:
        return
    record = tier.blocks[block]
    place = record.in_list
    if not tier.settings.adaptive:
        use(engine, block)
    elif place == RECENT and record.readers != WRITING:
        _move(engine, FREQUENT, block)
    else:  # a ghost, a frequent block, or a recent one that is being written: each stays in its list
        if place in (RECENT_GHOSTS, FREQUENT_GHOSTS):
            _adapt(engine, place)
        _move(engine, place, block)


@part
def spare(engine: Engine, block: int) -> None:
    """Protect a host block from eviction until `begin_sparing` is called next."""
    engine.host.blocks[block].spared_in = engine.host.state.num_sparings


@part
def begin_sparing(engine: Engine) -> None:
    """End the protection of all host blocks."""
    engine.host.state.num_sparings += 1


@part
def make_room(engine: Engine, num_blocks: int, num_recent_spared: int, num_frequent_spared: int) -> bool:
    """Evict idle host blocks until `num_blocks` slots are free. Return False, and evict nothing, if too few can be.

    Blocks marked by `spare` are not evicted. The caller says how many idle blocks of the recency list and of the
    frequency list are so marked.
    """
    tier = engine.host
    lack = num_blocks - tier.state.num_free
    if lack <= 0:
        return True
    # The first pass only counts, so that nothing is evicted if the room is not enough.
    recent = tier.lists[RECENT].num_idle - num_recent_spared
    frequent = tier.lists[FREQUENT].num_idle - num_frequent_spared
    length = tier.lists[RECENT].length
    for _ in range(lack):
        if recent > 0 and _prefers_recent(engine, length):
            recent -= 1
            length -= 1
        elif frequent > 0:
            frequent -= 1
        else:
            return False
    recent = tier.lists[RECENT].num_idle - num_recent_spared
    for _ in range(lack):
        chosen = FREQUENT
        if recent > 0 and _prefers_recent(engine, tier.lists[RECENT].length):
            recent -= 1
            chosen = RECENT
        _evict(engine, chosen)
    return True


@part
def store(engine: Engine, key: int) -> int:
    """Allocate one of the free slots to store `key`, which no host block holds. Return the index of the host block."""
    tier = engine.host
    state = tier.state
    ghost = _find_with_ghosts(engine, key)
    if ghost != NO_HOST_BLOCK:
        _forget_ghost(engine, ghost)
    state.num_free -= 1
    if state.num_used < tier.settings.num_slots:
        block = NUM_LISTS + state.num_used
        state.num_used += 1
    else:
        block = state.last_evicted
        state.last_evicted = tier.blocks[block].next
    tier.blocks[block].readers = WRITING
    tier.blocks[block].in_list = _UNLISTED
    _index(engine, block, key)
    if tier.settings.adaptive:
        _enter(engine, RECENT, block)
    return block


@part
def _prefers_recent(engine: Engine, length: int) -> bool:
    """Tell whether to evict from the recency list, which has `length` blocks, rather than from the frequency list."""
    tier = engine.host
    return not tier.settings.adaptive or length >= int(tier.state.recent_target)


@part
def _evict(engine: Engine, which_list: int) -> None:
    """Evict the first idle block in list `which_list` not marked by `spare`. With ARC, its key stays as a ghost."""
    tier = engine.host
    state, block = tier.state, tier.blocks[which_list].next
    while tier.blocks[block].readers != 0 or tier.blocks[block].spared_in == state.num_sparings:
        block = tier.blocks[block].next
    key = tier.blocks[block].key
    _leave(engine, block)
    _unindex(engine, block)
    tier.blocks[block].next = state.last_evicted
    state.last_evicted = block
    state.num_free += 1
    if tier.settings.adaptive:
        _remember_ghost(engine, RECENT_GHOSTS if which_list == RECENT else FREQUENT_GHOSTS, key)


@part
def _adapt(engine: Engine, which_list: int) -> None:
    """Adapt the target length of the recency list, because the key of a ghost in list number `which_list` is used
    again: longer for `RECENT_GHOSTS`, shorter for `FREQUENT_GHOSTS`.
    """
    tier = engine.host
    state, recent, frequent = tier.state, tier.lists[RECENT_GHOSTS].length, tier.lists[FREQUENT_GHOSTS].length
    if which_list == RECENT_GHOSTS:
        state.recent_target = min(state.recent_target + max(1.0, frequent / recent), float(tier.settings.num_slots))
    else:
        state.recent_target = max(state.recent_target - max(1.0, recent / frequent), 0.0)


@part
def _remember_ghost(engine: Engine, which_list: int, key: int) -> None:
    """Add a ghost with the key of an evicted block to list number `which_list`. If it has as many ghosts as the pool
    has slots, remove its first.
    """
    tier = engine.host
    if tier.lists[which_list].length == tier.settings.num_slots:
        _forget_ghost(engine, tier.blocks[which_list].next)
    state = tier.state
    ghost = state.last_free_ghost
    if ghost == NO_HOST_BLOCK:
        ghost = NUM_LISTS + tier.settings.num_slots + state.num_ghosts_used
        state.num_ghosts_used += 1
    else:
        state.last_free_ghost = tier.blocks[ghost].next
    tier.blocks[ghost].readers = WRITING  # no ghost is idle
    _index(engine, ghost, key)
    _enter(engine, which_list, ghost)


@part
def _forget_ghost(engine: Engine, ghost: int) -> None:
    _leave(engine, ghost)
    _unindex(engine, ghost)
    engine.host.blocks[ghost].next = engine.host.state.last_free_ghost
    engine.host.state.last_free_ghost = ghost


@part
def _enter(engine: Engine, which_list: int, block: int) -> None:
    """Append the record of a host block or a ghost to list number `which_list`, as the most recently used."""
    tier = engine.host
    linked_list.insert_before(tier.blocks, which_list, block)
    tier.blocks[block].in_list = which_list
    tier.lists[which_list].length += 1
    if tier.blocks[block].readers == 0:
        tier.lists[which_list].num_idle += 1


@part
def _leave(engine: Engine, block: int) -> None:
    tier = engine.host
    which_list = tier.blocks[block].in_list
    linked_list.remove(tier.blocks, block)
    tier.blocks[block].in_list = _UNLISTED
    tier.lists[which_list].length -= 1
    if tier.blocks[block].readers == 0:
        tier.lists[which_list].num_idle -= 1


@part
def _move(engine: Engine, which_list: int, block: int) -> None:
    _leave(engine, block)
    _enter(engine, which_list, block)


@part
def _find_with_ghosts(engine: Engine, key: int) -> int:
    """Return the index of the record with `key`, of a host block or of a ghost; `NO_HOST_BLOCK` if there is none."""
    tier = engine.host
    block = tier.buckets[_bucket_of(engine, key)]
    while block != NO_HOST_BLOCK and tier.blocks[block].key != key:
        block = tier.blocks[block].next_in_bucket
    return block


@part
def _index(engine: Engine, block: int, key: int) -> None:
    tier, bucket = engine.host, _bucket_of(engine, key)
    tier.blocks[block].key = key
    tier.blocks[block].next_in_bucket = tier.buckets[bucket]
    tier.buckets[bucket] = block


@part
def _unindex(engine: Engine, block: int) -> None:
    tier = engine.host
    bucket = _bucket_of(engine, tier.blocks[block].key)
    before = tier.buckets[bucket]
    if before == block:
        tier.buckets[bucket] = tier.blocks[block].next_in_bucket
        return
    while tier.blocks[before].next_in_bucket != block:
        before = tier.blocks[before].next_in_bucket
    tier.blocks[before].next_in_bucket = tier.blocks[block].next_in_bucket


@part
def _bucket_of(engine: Engine, key: int) -> int:
    return ((key * _SPREAD) >> 32) & (len(engine.host.buckets) - 1)
