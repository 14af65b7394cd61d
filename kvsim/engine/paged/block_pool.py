"""The block pool of a paged KV cache: block ids, reference counts and the free queue, in vLLM's order.

Block 0 is the null block: it is never handed out, and its record stands for both ends of the free queue. Freed blocks
wait at the tail, least recently freed first; where the group of layers has it so, those that hold no prefix are put
back at the head and taken first. What a prefix is, is known to `prefix_cache`; whose blocks these are, to `kv_cache`.
"""

from __future__ import annotations

from kvsim.engine import linked_list
from kvsim.engine.linked_list import HEAD
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.paged import prefix_cache
from kvsim.engine.state import NO_KEY, Engine

NULL_BLOCK = HEAD
"""Pads tables. Every pool has one usable block fewer than blocks."""


@part
def allocate(engine: Engine) -> tuple[int, bool]:
    """Take a free block, of which there are some; return it, and whether it lost a prefix.

    It is the head of the free queue or, if that keeps a prefix, the block that the rule of eviction chooses.
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
    if is_evicted:
        state.num_cached -= 1
        prefix_cache.evict(engine, block)
    return block, is_evicted


@part
def least_recently_freed(engine: Engine) -> int:
    """Return the block at the head of the free queue."""
    return engine.blocks[NULL_BLOCK].next


@part
def touch(engine: Engine, block: int) -> bool:
    """Hold a cached block; a free one leaves the queue. Return whether another table holds it already."""
    state, is_shared = engine.state, engine.blocks[block].refs > 0
    if not is_shared:
        linked_list.remove(engine.blocks, block)
        state.num_free -= 1
        state.num_cached -= 1
    engine.blocks[block].refs += 1
    return is_shared


@part
def free(engine: Engine, begin: int, end: int, reuses_first: bool) -> int:
    """Free the blocks in `entries[begin:end]`, the last first; those that no table holds return to the queue.

    With `reuses_first`, those that hold no prefix go to its head. Return how many blocks another table still holds.
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
        if blocks[block].refs == 0 and (blocks[block].key != NO_KEY or not reuses_first):
            linked_list.push_back(blocks, block)
            state.num_free += 1
            if blocks[block].key != NO_KEY:
                state.num_cached += 1
            engine.rules.note_freed(engine, block)
    if not reuses_first:
        return num_shared
    # Blocks without a key go to the head, and the block freed first is the first to be taken.
    for index in range(begin, end):
        block = entries[index]
        if block != NULL_BLOCK and blocks[block].refs == 0 and blocks[block].key == NO_KEY:
            linked_list.push_front(blocks, block)
            state.num_free += 1
    return num_shared
