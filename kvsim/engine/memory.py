"""Room for sequences: in blocks, with or without a second tier, or in contiguous reservations.

What a scheduler asks of any.
"""

from __future__ import annotations

from kvsim.engine import copies, groups, host_swap, kv_cache, own_memory, reservations, tiered, totals, waiting_queue
from kvsim.engine.compiled import chosen_by_memory, part
from kvsim.engine.records import Sequence
from kvsim.engine.state import Engine

find_hits = chosen_by_memory(kv_cache.find_hits, reservations.find_hits, kv_cache.find_hits, own_memory.find_hits)
"""Leading tokens of a waiting sequence that the pool holds already."""
admit = chosen_by_memory(kv_cache.admit, reservations.admit, kv_cache.admit, own_memory.admit)
"""Make room for some tokens of a waiting sequence behind those computed; without any effect where there is none."""
grow = chosen_by_memory(kv_cache.grow, reservations.grow, kv_cache.grow, own_memory.grow)
"""Make room for some more tokens of a running sequence; without any effect where there is none."""
unusable_units = chosen_by_memory(
    kv_cache.unusable_blocks,
    reservations.unusable_slots,
    kv_cache.unusable_blocks,
    own_memory.unusable_units,
    kv_cache.unusable_blocks,
)
"""Free units in pieces too small for the head of the queue, though their sum would do."""
expired_slots = chosen_by_memory(
    groups.expired_slots,
    reservations.expired_slots,
    groups.expired_slots,
    own_memory.expired_slots,
    reservations.expired_slots,
)
"""Slots that are held and hold tokens that no later step reads."""
shared_tokens = chosen_by_memory(
    kv_cache.shared_tokens,
    reservations.shared_tokens,
    kv_cache.shared_tokens,
    own_memory.shared_tokens,
    reservations.shared_tokens,
)
"""Tokens, among so many that a step reads, that several sequences read in the same place."""
cache_known = chosen_by_memory(
    kv_cache.cache_blocks, reservations.cache_tokens, kv_cache.cache_blocks, own_memory.cache_tokens
)
"""Put what a running sequence has computed, and whose values are known, at the disposal of others."""
_take_back = chosen_by_memory(kv_cache.free, reservations.free, kv_cache.free, own_memory.free)


@part
def has_room(sequence: Sequence, num_tokens: int) -> bool:
    """Whether a running sequence can go on by `num_tokens` with its table as it is: most tokens fit the last block."""
    total = sequence.computed + num_tokens
    return total <= sequence.room_tokens and min(total, sequence.num_tokens) < sequence.cache_at


@part
def _free_at_once(engine: Engine, node: int) -> None:
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


@part
def _never(engine: Engine) -> bool:  # noqa: ARG001  a second tier looks at its copies
    return False


@part
def _do_nothing(engine: Engine) -> None:
    pass


@part
def _ignore(engine: Engine, node: int) -> None:
    pass


@part
def _pass_no_time(engine: Engine, until_s: float) -> None:
    pass


@part
def _always(engine: Engine) -> bool:  # noqa: ARG001  as above
    return True


expect_return = chosen_by_memory(kv_cache.expect_return, _ignore, kv_cache.expect_return, _ignore)
"""A sequence is preempted, and will ask for what it has computed when it is admitted again."""
free = chosen_by_memory(_free_at_once, _free_at_once, tiered.free, _free_at_once)
"""Take everything back from a sequence. Its status says whether it was preempted and will be back."""
next_waiting = chosen_by_memory(waiting_queue.peek, waiting_queue.peek, tiered.next_waiting, waiting_queue.peek)
"""The sequence that is admitted next; one waits."""
leave_queue = chosen_by_memory(waiting_queue.remove, waiting_queue.remove, tiered.leave_queue, waiting_queue.remove)
"""Take out a sequence, wherever it waits."""
has_pending = chosen_by_memory(_never, _never, tiered.has_pending, _never)
"""Whether something has to be waited for although no sequence computes."""
end_step = chosen_by_memory(_do_nothing, _do_nothing, tiered.end_step, _do_nothing)
"""A step is scheduled, and what each sequence computes is known."""
begin_update = chosen_by_memory(_ignore, _ignore, tiered.begin_update, _ignore)
"""The GPU has done a step, whose output is processed next."""
is_crowded = chosen_by_memory(_never, _never, tiered.is_crowded, _never)
"""Whether more began in one step than can be written down."""
has_room_for_copies = chosen_by_memory(_always, _always, tiered.has_room_for_copies, _always, _always)
"""Whether the copies that the next step reports can be written down."""
begin_copies = chosen_by_memory(_do_nothing, _do_nothing, copies.begin, _do_nothing)
"""A step was scheduled: copies that it decides begin, and the host waits for some."""
poll_copies = chosen_by_memory(_do_nothing, _do_nothing, copies.poll, _do_nothing)
"""The kernels of a step are launched."""
pass_time = chosen_by_memory(_pass_no_time, _pass_no_time, copies.pass_time, _pass_no_time)
"""Let time pass while nothing but copies goes on."""
end_update = chosen_by_memory(_do_nothing, _do_nothing, tiered.end_update, _do_nothing)
"""The output of a step was processed."""
