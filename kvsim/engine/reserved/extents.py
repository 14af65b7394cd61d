"""Allocators of contiguous memory: first fit, best fit, next fit and buddy.

They allocate extents (contiguous ranges of slots) from a list of holes (free ranges), which is sorted by address.
Except in a buddy allocator, a freed extent is merged with the holes next to it.

In a buddy allocator, the length of an extent is a power of two, and its address is a multiple of its length. A freed
extent merges only with its other half: the hole with which it forms an extent of twice the length. A memory whose
length is not a power of two is split into the largest powers of two that fill it: 13 slots into 8, 4 and 1.
"""

from __future__ import annotations

from kvsim.engine.machine_code.compiled import part
from kvsim.engine.state import BEST_FIT, BUDDY, NEXT_FIT, Engine

NO_HOLE = -1


@part
def rounded_length(engine: Engine, num_slots: int) -> int:
    """Return the length of the extent for `num_slots` requested slots: in a buddy allocator, a power of two."""
    if engine.settings.fit != BUDDY:
        return num_slots
    length = 1
    while length < num_slots:
        length *= 2
    return length


@part
def find_hole(engine: Engine, length: int) -> int:
    """Return the index of the hole in which to allocate `length` slots; `NO_HOLE` if no hole is long enough."""
    fit, state, holes = engine.settings.fit, engine.state, engine.holes
    if fit in (BEST_FIT, BUDDY):
        return _smallest_hole(engine, length)
    start = _first_after_rover(engine) if fit == NEXT_FIT else 0
    for distance in range(state.num_holes):
        index = start + distance
        if index >= state.num_holes:
            index -= state.num_holes
        if holes[index].length >= length:
            return index
    return NO_HOLE


@part
def allocate(engine: Engine, index: int, length: int) -> int:
    """Allocate `length` slots at the start of hole `index`, which must be long enough. Return their address."""
    assert engine.holes[index].length >= length
    address = engine.holes[index].address
    _take(engine, index, address + length)
    engine.state.rover = address + length
    return address


@part
def can_extend(engine: Engine, address: int, length: int, longer: int) -> bool:
    """Tell whether the extent at `address` can grow from `length` to `longer` slots without moving: the slots after it
    are free and, in a buddy allocator, its address is a multiple of `longer`.
    """
    if engine.settings.fit == BUDDY and address % longer != 0:
        return False
    state, holes, free_up_to = engine.state, engine.holes, address + length
    index = _first_from(engine, free_up_to)
    while free_up_to < address + longer and index < state.num_holes and holes[index].address == free_up_to:
        free_up_to += holes[index].length
        index += 1
    return free_up_to >= address + longer


@part
def extend(engine: Engine, address: int, length: int, longer: int) -> None:
    """Extend the extent at `address` from `length` to `longer` slots without moving it. `can_extend` must be true."""
    _take(engine, _first_from(engine, address + length), address + longer)


@part
def free(engine: Engine, address: int, length: int) -> None:
    """Free an extent, and merge it with the holes next to it; in a buddy allocator, only with its other half."""
    state, holes = engine.state, engine.holes
    state.num_free += length
    if engine.settings.fit == BUDDY:
        _free_buddy(engine, address, length)
        return
    after = _first_from(engine, address)
    if after < state.num_holes and holes[after].address == address + length:
        length += holes[after].length
        _delete(engine, after)
    if after > 0 and holes[after - 1].address + holes[after - 1].length == address:
        holes[after - 1].length += length
    else:
        _insert(engine, after, address, length)


@part
def add_holes(engine: Engine, start: int, end: int) -> None:
    """Add the free slots [start, end) as holes; no other hole must be next to them. They become one hole or, in a buddy
    allocator, one for each of the largest powers of two that fill them.
    """
    if engine.settings.fit != BUDDY:
        if start < end:
            _insert(engine, _first_from(engine, start), start, end - start)
        return
    while start < end:
        length = 1
        while 2 * length <= end - start and start % (2 * length) == 0:
            length *= 2
        _insert(engine, _first_from(engine, start), start, length)
        start += length


@part
def _take(engine: Engine, index: int, end: int) -> None:
    """Allocate the slots from the beginning of hole `index` up to `end`. They may reach into the next holes, if there
    is no gap between the holes.
    """
    holes = engine.holes
    start = address = holes[index].address
    while address < end:
        address += holes[index].length
        _delete(engine, index)
    add_holes(engine, end, address)
    engine.state.num_free -= end - start


@part
def _free_buddy(engine: Engine, address: int, length: int) -> None:
    """Free an extent of a buddy allocator. While its other half is a hole, merge it with this hole."""
    state, holes = engine.state, engine.holes
    while True:
        other = address + length if address % (2 * length) == 0 else address - length
        index = _first_from(engine, other)
        if index == state.num_holes or holes[index].address != other or holes[index].length != length:
            break
        _delete(engine, index)
        address = min(address, other)
        length *= 2
    _insert(engine, _first_from(engine, address), address, length)


@part
def _insert(engine: Engine, index: int, address: int, length: int) -> None:
    state, holes = engine.state, engine.holes
    for above in range(state.num_holes, index, -1):
        holes[above].address, holes[above].length = holes[above - 1].address, holes[above - 1].length
    holes[index].address, holes[index].length = address, length
    state.num_holes += 1


@part
def _delete(engine: Engine, index: int) -> None:
    state, holes = engine.state, engine.holes
    state.num_holes -= 1
    for above in range(index, state.num_holes):
        holes[above].address, holes[above].length = holes[above + 1].address, holes[above + 1].length


@part
def _smallest_hole(engine: Engine, length: int) -> int:
    best, holes = NO_HOLE, engine.holes
    for index in range(engine.state.num_holes):
        if holes[index].length >= length and (best == NO_HOLE or holes[index].length < holes[best].length):
            best = index
    return best


@part
def _first_after_rover(engine: Engine) -> int:
    """Return the index of the first hole that has slots from address `State.rover` on; the number of holes if there is
    none. `State.rover` is the end of the extent that was allocated last.
    """
    rover, holes = engine.state.rover, engine.holes
    index = _first_from(engine, rover + 1)
    if index > 0 and holes[index - 1].address + holes[index - 1].length > rover:
        index -= 1
    return index


@part
def _first_from(engine: Engine, address: int) -> int:
    low, high = 0, engine.state.num_holes
    while low < high:
        middle = (low + high) // 2
        if engine.holes[middle].address < address:
            low = middle + 1
        else:
            high = middle
    return low
