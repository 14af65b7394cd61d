"""Room for sequences: in blocks, or in contiguous reservations. What a scheduler asks of either."""

from __future__ import annotations

from kvsim.engine import groups, host_swap, kv_cache, reservations, totals
from kvsim.engine.compiled import chosen_by_memory, part
from kvsim.engine.records import Sequence
from kvsim.engine.state import Engine

find_hits = chosen_by_memory(kv_cache.find_hits, reservations.find_hits)
"""Leading tokens of a waiting sequence that the pool holds already."""
admit = chosen_by_memory(kv_cache.admit, reservations.admit)
"""Make room for some tokens of a waiting sequence behind those computed; without any effect where there is none."""
grow = chosen_by_memory(kv_cache.grow, reservations.grow)
"""Make room for some more tokens of a running sequence; without any effect where there is none."""
unusable_units = chosen_by_memory(kv_cache.unusable_blocks, reservations.unusable_slots, kv_cache.unusable_blocks)
"""Free units in pieces too small for the head of the queue, though their sum would do."""
expired_slots = chosen_by_memory(groups.expired_slots, reservations.expired_slots, reservations.expired_slots)
"""Slots that are held and hold tokens that no later step reads."""
shared_tokens = chosen_by_memory(kv_cache.shared_tokens, reservations.shared_tokens, reservations.shared_tokens)
"""Of so many tokens that a step reads, those that several sequences read in the same place."""
cache_known = chosen_by_memory(kv_cache.cache_blocks, reservations.cache_tokens)
"""Put what a running sequence has computed, and whose values are known, at the disposal of others."""
_take_back = chosen_by_memory(kv_cache.free, reservations.free)


@part
def has_room(sequence: Sequence, num_tokens: int) -> bool:
    """Whether a running sequence can go on by `num_tokens` with its table as it is: most tokens fit the last block."""
    total = sequence.computed + num_tokens
    return total <= sequence.room_tokens and min(total, sequence.num_tokens) < sequence.cache_at


@part
def free(engine: Engine, node: int) -> None:
    """Take everything back from a sequence. Its status says whether it was preempted and will be back."""
    settings, sequence = engine.settings[0], engine.sequences[node]
    if sequence.num_units == 0:
        if settings.host_blocks > 0:
            host_swap.forget(engine, node)
        return
    if settings.host_blocks > 0:
        host_swap.send_out(engine, node)
    totals.lose_tokens(engine, node)
    _take_back(engine, node)
    sequence.num_units = 0
