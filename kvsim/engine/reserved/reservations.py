"""Contiguous reservations, as in servers before paging: a sequence gets one extent of memory when it is admitted.

A reservation of fixed length (`FIXED`) never grows. So no sequence is ever preempted, but some reserved slots are never
written. A reservation that doubles (`DOUBLING`) grows in place or, with `Settings.moves`, moves to another hole. If it
can do neither, the scheduler preempts a sequence. A move copies all written slots, and the step waits for the copy.
"""

from __future__ import annotations

from kvsim.engine import journal, totals
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.memory import MemoryManager
from kvsim.engine.records import NEVER, Sequence
from kvsim.engine.reserved import extents
from kvsim.engine.reserved.extents import NO_HOLE
from kvsim.engine.state import BUDDY, Engine

FIXED, DOUBLING = range(2)
"""Rules for the length of a reservation. `FIXED`: constant. `DOUBLING`: doubled when full, to `max_model_len`."""


@part
def admit(engine: Engine, sequence: Sequence, computed: int, num_tokens: int) -> bool:  # noqa: ARG001
    """Allocate the whole reservation of a waiting sequence. Return False if no hole is long enough or, with
    request-level batching, if the batch has begun to decode.
    """
    settings, state = engine.settings, engine.state
    if state.num_running == 0:
        state.batch_is_open = True
    if settings.request_level and not state.batch_is_open:
        return False
    wanted = reservation(engine, sequence)
    if not _make_hole(engine, wanted):
        return False
    length = extents.rounded_length(engine, wanted)
    address = extents.allocate(engine, extents.find_hole(engine, length), length)
    _assign_extent(engine, sequence, address, length, wanted)
    return True


@part
def grow(engine: Engine, sequence: Sequence, num_tokens: int) -> bool:
    """Make room for `num_tokens` more tokens of a running sequence. With `DOUBLING`, double its extent if it is full,
    and return False if there is no room for that. With `FIXED`, the extent has room already.
    """
    settings, state = engine.settings, engine.state
    state.batch_is_open = False  # the batch has begun to decode: with request-level batching none may join
    needed = sequence.computed + num_tokens
    if settings.reserve != DOUBLING or needed <= sequence.requested:
        return True
    wanted = min(_next_power_of_two(needed - 1), settings.max_model_len)
    longer = extents.rounded_length(engine, wanted)
    address, length = sequence.place, sequence.num_units
    if extents.can_extend(engine, address, length, longer):
        extents.extend(engine, address, length, longer)
        journal.append_extent(engine, sequence, length, address + length, longer - length, wanted - length, 1)
        state.rounding += longer - length - (wanted - sequence.requested)
        totals.add_slots(engine, sequence, sequence.requested, wanted - sequence.requested)
        sequence.num_units, sequence.requested, sequence.room_tokens = longer, wanted, wanted
        return True
    if not settings.moves or not _make_hole(engine, wanted):
        return False
    address, length = sequence.place, sequence.num_units  # compaction in `_make_hole` may have moved it
    hole = extents.find_hole(engine, longer)
    new = extents.allocate(engine, hole, longer)
    extents.free(engine, address, length)
    state.num_copied_slots += sequence.computed
    _remove_extent(engine, sequence)
    _assign_extent(engine, sequence, new, longer, wanted)
    return True


@part
def free(engine: Engine, sequence: Sequence) -> None:
    """Free the extent of a sequence, if it has one."""
    if sequence.num_units == 0:
        return
    totals.remove_computed(engine, sequence)
    extents.free(engine, sequence.place, sequence.num_units)
    _remove_extent(engine, sequence)
    sequence.num_units = 0


@part
def unusable_slots(engine: Engine, head: Sequence) -> int:
    """Return the number of free slots if they suffice for `head` of the queue, but no hole does; otherwise 0."""
    wanted, num_free = reservation(engine, head), engine.state.num_free
    if num_free < wanted or extents.find_hole(engine, extents.rounded_length(engine, wanted)) != NO_HOLE:
        return 0
    return num_free


@part
def reservation(engine: Engine, sequence: Sequence) -> int:
    """Return the number of slots that a sequence requests when it is admitted: `Sequence.reservation` or, with
    `DOUBLING`, the smallest power of two larger than the number of its known tokens, at most `max_model_len`.
    """
    settings = engine.settings
    if settings.reserve == DOUBLING:
        return min(_next_power_of_two(sequence.num_tokens), settings.max_model_len)
    return sequence.reservation


@part
def _make_hole(engine: Engine, num_slots: int) -> bool:
    """Return True if a hole is long enough for `num_slots` slots, after a compaction if it is necessary and on."""
    length = extents.rounded_length(engine, num_slots)
    if extents.find_hole(engine, length) != NO_HOLE:
        return True
    if not engine.settings.compaction or engine.state.num_free < num_slots:
        return False
    return _compact(engine, length)


@part
def _compact(engine: Engine, length: int) -> bool:
    """Move all extents together at the start of memory, if that makes a hole of `length` slots. Return False, and move
    nothing, if it does not.

    All extents are allocated again in an empty memory, in order of address. So extents before the first hole do not
    move. In a buddy allocator, they are allocated in order of length, the longest first: this leaves no gaps.
    """
    state, holes, size = engine.state, engine.holes, len(engine.holes) // 2
    for index in range(state.num_holes):  # save the holes in the upper half, to restore them if no hole is made
        holes[size + index].address, holes[size + index].length = holes[index].address, holes[index].length
    num_holes, num_free, rover = state.num_holes, state.num_free, state.rover
    state.num_holes = state.rover = 0
    extents.add_holes(engine, 0, engine.settings.num_units)
    state.num_free = engine.settings.num_units
    _order_for_compaction(engine)
    for index in range(state.num_running):
        sequence = engine.sequences[engine.lists[index].order]
        sequence.moves_to = extents.allocate(engine, extents.find_hole(engine, sequence.num_units), sequence.num_units)
    if extents.find_hole(engine, length) == NO_HOLE:
        for index in range(num_holes):
            holes[index].address, holes[index].length = holes[size + index].address, holes[size + index].length
        state.num_holes, state.num_free, state.rover = num_holes, num_free, rover
        return False
    _move(engine)
    return True


@part
def _order_for_compaction(engine: Engine) -> None:
    """Write the running sequences to `Lists.order` by address; in a buddy allocator, by length first, longest first."""
    buddies, lists = engine.settings.fit == BUDDY, engine.lists
    for index in range(engine.state.num_running):
        # Insertion sort: the sequences before `place` are in order.
        sequence, place = engine.sequences[engine.running[index]], index
        while place > 0:
            other = engine.sequences[lists[place - 1].order]
            if buddies and sequence.num_units != other.num_units:
                is_before = sequence.num_units > other.num_units
            else:
                is_before = sequence.place < other.place
            if not is_before:
                break
            lists[place].order = lists[place - 1].order
            place -= 1
        lists[place].order = sequence.number


@part
def _move(engine: Engine) -> None:
    """Move the running sequences to their new extents (`Sequence.moves_to`). A new extent may overlap the old extents
    of other sequences, so all old extents are removed first.
    """
    state = engine.state
    num_moving = 0
    for index in range(state.num_running):
        sequence = engine.sequences[engine.running[index]]
        if sequence.moves_to != sequence.place:
            engine.lists[num_moving].order = sequence.number
            num_moving += 1
            state.num_copied_slots += sequence.computed
            _remove_extent(engine, sequence)
    for index in range(num_moving):
        sequence = engine.sequences[engine.lists[index].order]
        _assign_extent(engine, sequence, sequence.moves_to, sequence.num_units, sequence.requested)


@part
def _assign_extent(engine: Engine, sequence: Sequence, address: int, length: int, requested: int) -> None:
    """Record a sequence's extent of `length` slots at `address`, of which it has requested `requested`."""
    settings = engine.settings
    totals.add_slots(engine, sequence, 0, requested)
    engine.state.rounding += length - requested
    sequence.place, sequence.num_units, sequence.requested = address, length, requested
    if settings.request_level:
        sequence.room_tokens = 0
    else:
        sequence.room_tokens = requested if settings.reserve == DOUBLING else NEVER
    journal.append_extent(engine, sequence, 0, address, length, requested, 1)


@part
def _remove_extent(engine: Engine, sequence: Sequence) -> None:
    """Record that a sequence has its extent no longer: its slots are not held, but the written ones stay counted."""
    journal.release_extent(engine, sequence, sequence.num_units)
    totals.remove_slots(engine, sequence, sequence.requested)
    engine.state.rounding -= sequence.num_units - sequence.requested


@part
def _next_power_of_two(num_tokens: int) -> int:
    """Return the smallest power of two that is larger than `num_tokens`."""
    power = 1
    while power <= num_tokens:
        power *= 2
    return power


CONTIGUOUS = MemoryManager(name="contiguous", admit=admit, grow=grow, free=free, unusable_units=unusable_slots)
