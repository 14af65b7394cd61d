"""The block pool of a paged KV cache: block ids, reference counts and the free queue, in vLLM's order.

Block 0 is the null block. It is never allocated, and its record marks both ends of the free queue. Freed blocks go to
the tail of the queue, so the least recently freed one is allocated first. In KV-cache groups with `Group.reuses_first`,
which depends on vLLM's release, freed blocks without a prefix go to the head instead. `prefix_cache` finds blocks by
prefix, and `kv_cache` keeps the block tables of sequences.
"""

from __future__ import annotations

from kvsim.engine import linked_list
from kvsim.engine.linked_list import HEAD
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.paged import prefix_cache
from kvsim.engine.state import HAS_TAIL, NO_KEY, Engine

NULL_BLOCK = HEAD
"""Id of the null block, in table entries that hold no KV."""


@part
def allocate(engine: Engine) -> tuple[int, bool]:
    """Allocate the head of the free queue, which must not be empty. If the head holds a cached prefix, the eviction
    rule chooses the block instead. Return (block id, True if the block held a prefix, which is now evicted).
    """
    state, block = engine.state, engine.blocks[NULL_BLOCK].next
    assert block != NULL_BLOCK, "the pool has no free block"
    if engine.blocks[block].key != NO_KEY:
        block = engine.rules.choose_evicted(engine)
    is_evicted = engine.blocks[block].key != NO_KEY
    assert engine.blocks[block].refs == 0
    linked_list.remove(engine.blocks, block)
    state.num_free -= 1
    engine.blocks[block].refs = 1
    if engine.settings.marks_tails:
        engine.blocks[block].cached_in = 0
    if is_evicted:
        state.num_cached -= 1
        prefix_cache.evict(engine, block)
    return block, is_evicted


@part
def least_recently_freed(engine: Engine) -> int:
    """Return the id of the block at the head of the free queue: vLLM's eviction rule."""
    return engine.blocks[NULL_BLOCK].next


@part
def touch(engine: Engine, block: int) -> bool:
    """Add a reference to a cached block. Return True if a table had it; otherwise it leaves the free queue."""
    state, is_shared = engine.state, engine.blocks[block].refs > 0
    if not is_shared:
        linked_list.remove(engine.blocks, block)
        state.num_free -= 1
        state.num_cached -= 1
    engine.blocks[block].refs += 1
    return is_shared


@part
def free(engine: Engine, begin: int, end: int, reuses_first: bool) -> int:
    """Remove one reference from each block in `Engine.entries[begin:end]`, except null blocks. Return the number of
    these blocks that are still in a table.

    Blocks without references go to the tail of the free queue, from the last entry to the first. With `reuses_first`,
    blocks that hold no prefix go to the head instead, so that the block of the last entry is allocated first.
    """
    state, blocks, entries = engine.state, engine.blocks, engine.entries
    num_shared = 0
    for index in range(end - 1, begin - 1, -1):
        block = entries[index]
        if block == NULL_BLOCK:
            continue
        assert blocks[block].refs > 0, "a block is freed that no table holds"
        blocks[block].refs -= 1
        num_shared += blocks[block].refs > 0
        if blocks[block].refs == 0 and (not reuses_first or _goes_to_tail(engine, block)):
            linked_list.push_back(blocks, block)
            state.num_free += 1
            if blocks[block].key != NO_KEY:
                state.num_cached += 1
            engine.rules.note_freed(engine, block)
    if not reuses_first:
        return num_shared
    # Pushed to the head in reverse order of freeing, so that the block freed first (the last entry) is taken first.
    for index in range(begin, end):
        block = entries[index]
        if block != NULL_BLOCK and blocks[block].refs == 0 and not _goes_to_tail(engine, block):
            linked_list.push_front(blocks, block)
            state.num_free += 1
    return num_shared


@part
def _goes_to_tail(engine: Engine, block: int) -> bool:
    """Tell whether a freed block goes to the tail of the free queue even with `reuses_first`: it holds a cached prefix,
    or it is a partly full block in which the last hash that covers only prompt tokens ends (`HAS_TAIL`).
    """
    record = engine.blocks[block]
    return record.key != NO_KEY or (engine.settings.marks_tails and record.cached_in == HAS_TAIL)
