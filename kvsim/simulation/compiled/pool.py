"""The block pool of `kvsim.memory.blocks`, with the same order of the free queue and the same prefix cache.

Free blocks stand in one ring, whose end is the null block, which is never handed out. The prefix cache is a hash table
of buckets: the blocks of a bucket are linked in the order in which they were registered, so the first that matches is
the one that has held its key for longest.
"""

from __future__ import annotations

from kvsim.simulation.compiled.engine import NO_KEY, Engine
from kvsim.simulation.compiled.jit import jit
from kvsim.simulation.compiled.rings import END, link_first, link_last, unlink

NO_BLOCK = END
_SPREAD = -7046029254386353131
"""2^64 over the golden ratio, odd and read as signed: its multiples spread evenly over the high bits."""


@jit
def find(engine: Engine, key: int) -> int:
    """The block that has held `key` for longest, in use or free, or `NO_BLOCK`."""
    block = engine.buckets[_bucket_of(engine, key)].first
    while block != NO_BLOCK and engine.blocks[block].key != key:
        block = engine.blocks[block].next_alike
    return block


@jit
def take(engine: Engine) -> tuple[int, bool]:
    """Take the block at the head of the queue, where there is one; also whether it lost a prefix by it."""
    state, block = engine.state[0], engine.blocks[END].next
    unlink(engine.blocks, block)
    state.num_free -= 1
    engine.blocks[block].refs = 1
    is_evicted = engine.blocks[block].key != NO_KEY
    if is_evicted:
        state.num_cached -= 1
        _forget(engine, block)
    return block, is_evicted


@jit
def touch(engine: Engine, block: int) -> None:
    """Hold a block that was found by its key; a free one leaves the queue."""
    state = engine.state[0]
    if engine.blocks[block].refs == 0:
        unlink(engine.blocks, block)
        state.num_free -= 1
        state.num_cached -= 1
    engine.blocks[block].refs += 1


@jit
def give(engine: Engine, place: int, num_blocks: int) -> None:
    """Let go of the first `num_blocks` of a table, last block first; those that nobody holds return to the queue."""
    state, blocks, table = engine.state[0], engine.blocks, engine.tables[place]
    for index in range(num_blocks - 1, -1, -1):
        block = table[index]
        blocks[block].refs -= 1
        if blocks[block].refs == 0 and blocks[block].key != NO_KEY:
            link_last(blocks, block)
            state.num_free += 1
            state.num_cached += 1
    # Those without a key go to the head, and the one given first is the first to be taken.
    for index in range(num_blocks):
        block = table[index]
        if blocks[block].refs == 0 and blocks[block].key == NO_KEY:
            link_first(blocks, block)
            state.num_free += 1


@jit
def register(engine: Engine, block: int, key: int) -> None:
    """Say that `block`, which somebody holds and which has no key, holds the prefix `key`."""
    blocks, bucket = engine.blocks, engine.buckets[_bucket_of(engine, key)]
    blocks[block].key = key
    blocks[block].previous_alike = bucket.last
    blocks[block].next_alike = NO_BLOCK
    if bucket.last == NO_BLOCK:
        bucket.first = block
    else:
        blocks[bucket.last].next_alike = block
    bucket.last = block


@jit
def _forget(engine: Engine, block: int) -> None:
    """Take `block` out of the prefix cache."""
    blocks, bucket = engine.blocks, engine.buckets[_bucket_of(engine, engine.blocks[block].key)]
    before, after = blocks[block].previous_alike, blocks[block].next_alike
    if before == NO_BLOCK:
        bucket.first = after
    else:
        blocks[before].next_alike = after
    if after == NO_BLOCK:
        bucket.last = before
    else:
        blocks[after].previous_alike = before
    blocks[block].key = NO_KEY


@jit
def _bucket_of(engine: Engine, key: int) -> int:
    return ((key * _SPREAD) >> 32) & (len(engine.buckets) - 1)
