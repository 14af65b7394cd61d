"""The prefix cache: which blocks hold a prefix, by its key.

A key is a number that is equal exactly where the whole prefix up to and including the block is equal, and the group of
layers too. The cache is a hash table. The blocks of a bucket are linked in the order in which they were cached, so the
first that matches is the one that has held its key for longest: equal blocks keep their own ids.

A key below zero is known to one sequence alone, which asks for it when it comes back after a preemption. Most never do,
so its blocks are put in the table when the sequence loses them, by `offer`.
"""

from __future__ import annotations

from kvsim.engine import bucket
from kvsim.engine.linked_list import HEAD
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.state import NO_KEY, Engine

NO_BLOCK = HEAD
_NOT_OFFERED = -1
"""Stands in the place of the next block of the bucket."""
_SPREAD = -7046029254386353131
"""2^64 over the golden ratio, odd and read as signed: its multiples spread evenly over the high bits."""


@part
def find(engine: Engine, key: int) -> int:
    """Return the block that has held `key` for longest, in use or free, or `NO_BLOCK`."""
    block = engine.buckets[bucket_of(engine, key)].first
    while block != NO_BLOCK and engine.blocks[block].key != key:
        block = engine.blocks[block].next_alike
    return block


@part
def cache(engine: Engine, block: int, key: int) -> None:
    """Let `block`, which a table holds and which has no key, hold the prefix `key`."""
    assert engine.blocks[block].refs > 0
    assert engine.blocks[block].key == NO_KEY
    engine.blocks[block].key = key
    engine.blocks[block].next_alike = _NOT_OFFERED
    if key >= 0:
        offer(engine, block)


@part
def offer(engine: Engine, block: int) -> None:
    """Let `block` be found by its key, if it has one."""
    key = engine.blocks[block].key
    if key != NO_KEY and engine.blocks[block].next_alike == _NOT_OFFERED:
        bucket.push_back(engine.blocks, engine.buckets[bucket_of(engine, key)], block)


@part
def evict(engine: Engine, block: int) -> None:
    """Take `block` out of the prefix cache."""
    if engine.blocks[block].next_alike != _NOT_OFFERED:
        bucket.remove(engine.blocks, engine.buckets[bucket_of(engine, engine.blocks[block].key)], block)
    engine.blocks[block].key = NO_KEY


@part
def bucket_of(engine: Engine, key: int) -> int:
    """Return the index of the bucket of a key."""
    return ((key * _SPREAD) >> 32) & (len(engine.buckets) - 1)
