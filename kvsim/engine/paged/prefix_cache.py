"""The prefix cache: a hash table that finds the block with a given key.

Two blocks have the same key exactly if they belong to the same KV-cache group and all tokens up to their ends are
equal. The blocks of a bucket are linked in the order in which they entered the table. So of several blocks with a key,
a lookup finds the one that entered first. As in vLLM, equal blocks are not merged.

A negative key belongs to one sequence, which looks it up only after a preemption. Most sequences are never preempted.
So a block with such a key enters the hash table only when its sequence is preempted, by `offer`.
"""

from __future__ import annotations

from kvsim.engine import bucket
from kvsim.engine.linked_list import HEAD
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.state import NO_KEY, Engine

NO_BLOCK = HEAD
_NOT_OFFERED = -1
"""Value of `Block.next_in_bucket` of a block with a key that is not in the hash table."""
_SPREAD = -7046029254386353131
"""Multiplier of Fibonacci hashing: 2^64 divided by the golden ratio, as a signed odd number."""


@part
def find(engine: Engine, key: int) -> int:
    """Return the earliest block with `key` that is still in the hash table, in use or free; or `NO_BLOCK`."""
    block = engine.buckets[bucket_of(engine, key)].first
    while block != NO_BLOCK and engine.blocks[block].key != key:
        block = engine.blocks[block].next_in_bucket
    return block


@part
def cache(engine: Engine, block: int, key: int) -> None:
    """Assign `key` to `block`, which is in a table and has no key. Put it into the hash table, unless `key` < 0."""
    assert engine.blocks[block].refs > 0
    assert engine.blocks[block].key == NO_KEY
    engine.blocks[block].key = key
    engine.blocks[block].next_in_bucket = _NOT_OFFERED
    if key >= 0:
        offer(engine, block)


@part
def offer(engine: Engine, block: int) -> None:
    """Put `block` into the hash table, if it has a key and is not there yet."""
    key = engine.blocks[block].key
    if key != NO_KEY and engine.blocks[block].next_in_bucket == _NOT_OFFERED:
        bucket.push_back(engine.blocks, engine.buckets[bucket_of(engine, key)], block)


@part
def evict(engine: Engine, block: int) -> None:
    """Remove `block`, which has a key, from the prefix cache."""
    if engine.blocks[block].next_in_bucket != _NOT_OFFERED:
        bucket.remove(engine.blocks, engine.buckets[bucket_of(engine, engine.blocks[block].key)], block)
    engine.blocks[block].key = NO_KEY


@part
def bucket_of(engine: Engine, key: int) -> int:
    """Return the index in `Engine.buckets` of the bucket for `key`."""
    return ((key * _SPREAD) >> 32) & (len(engine.buckets) - 1)
