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
    state, blocks = engine.state, engine.blocks
    block = blocks[NULL_BLOCK].next
    assert block != NULL_BLOCK, "the pool has no free block"
    if blocks[block].key != NO_KEY:
        block = engine.rules.choose_evicted(engine)
    record = blocks[block]
    is_evicted = record.key != NO_KEY
    assert record.refs == 0
    linked_list.remove(blocks, block)
    state.num_free -= 1
    record.refs = 1
    if engine.settings.marks_tails:
        record.cached_in = 0
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
    blocks that hold no prefix go to the head instead, so that the block of the last entry is allocated first. A partly
    full block in which the last hash that covers only prompt tokens ends (`HAS_TAIL`) goes to the tail, too.
    """
    state, blocks, entries, marks_tails = engine.state, engine.blocks, engine.entries, engine.settings.marks_tails
    num_shared, first = 0, HEAD  # `first` is the block after which the next one goes at the head of the queue
    for index in range(end - 1, begin - 1, -1):
        block = entries[index]
        if block == NULL_BLOCK:
            continue
        record = blocks[block]
        assert record.refs > 0, "a block is freed that no table holds"
        record.refs -= 1
        if record.refs > 0:
            num_shared += 1
            continue
        state.num_free += 1
        if record.key != NO_KEY:
            state.num_cached += 1
        elif reuses_first and not (marks_tails and record.cached_in == HAS_TAIL):
            linked_list.insert_before(blocks, blocks[first].next, block)
            first = block
            continue
        linked_list.push_back(blocks, block)
        engine.rules.note_freed(engine, block)
    return num_shared
