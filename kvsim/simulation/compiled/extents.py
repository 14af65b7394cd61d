"""The contiguous range of `kvsim.memory.contiguous`: first fit, best fit and next fit. Holes are kept by address."""

from __future__ import annotations

from kvsim.simulation.compiled.engine import BEST_FIT, FIRST_FIT, Engine
from kvsim.simulation.compiled.jit import jit

NO_HOLE = -1


@jit
def find_hole(engine: Engine, num_slots: int) -> int:
    """The index of the hole that `num_slots` are cut from, or `NO_HOLE`."""
    fit, state, holes = engine.settings[0].fit, engine.state[0], engine.holes
    if fit == BEST_FIT:
        return _smallest_hole(engine, num_slots)
    start = 0 if fit == FIRST_FIT else _first_behind_the_rover(engine)
    for turn in range(state.num_holes):
        index = start + turn
        if index >= state.num_holes:
            index -= state.num_holes
        if holes[index].length >= num_slots:
            return index
    return NO_HOLE


@jit
def take_from_hole(engine: Engine, index: int, num_slots: int) -> int:
    """Cut `num_slots` off the beginning of a hole; return their address."""
    state, holes = engine.state[0], engine.holes
    hole = holes[index]
    address = hole.address
    hole.address += num_slots
    hole.length -= num_slots
    state.num_free -= num_slots
    state.rover = hole.address
    if hole.length == 0:
        state.num_holes -= 1
        for above in range(index, state.num_holes):
            holes[above].address, holes[above].length = holes[above + 1].address, holes[above + 1].length
    return address


@jit
def give_back(engine: Engine, address: int, length: int) -> None:
    """Make an extent a hole, merged with those on both sides."""
    state, holes = engine.state[0], engine.holes
    state.num_free += length
    after = _first_from(engine, address)
    joins_before = after > 0 and holes[after - 1].address + holes[after - 1].length == address
    joins_after = after < state.num_holes and holes[after].address == address + length
    if joins_before:
        holes[after - 1].length += length
        if joins_after:
            holes[after - 1].length += holes[after].length
            state.num_holes -= 1
            for above in range(after, state.num_holes):
                holes[above].address, holes[above].length = holes[above + 1].address, holes[above + 1].length
    elif joins_after:
        holes[after].address = address
        holes[after].length += length
    else:
        for above in range(state.num_holes, after, -1):
            holes[above].address, holes[above].length = holes[above - 1].address, holes[above - 1].length
        holes[after].address, holes[after].length = address, length
        state.num_holes += 1


@jit
def _smallest_hole(engine: Engine, num_slots: int) -> int:
    """The smallest that will do, and of equal ones the lowest."""
    best, holes = NO_HOLE, engine.holes
    for index in range(engine.state[0].num_holes):
        if holes[index].length >= num_slots and (best == NO_HOLE or holes[index].length < holes[best].length):
            best = index
    return best


@jit
def _first_behind_the_rover(engine: Engine) -> int:
    """The first hole that reaches beyond the end of the last extent taken."""
    rover, holes = engine.state[0].rover, engine.holes
    index = _first_from(engine, rover + 1)
    if index > 0 and holes[index - 1].address + holes[index - 1].length > rover:
        index -= 1
    return index


@jit
def _first_from(engine: Engine, address: int) -> int:
    """How many holes begin below `address`."""
    low, high = 0, engine.state[0].num_holes
    while low < high:
        middle = (low + high) // 2
        if engine.holes[middle].address < address:
            low = middle + 1
        else:
            high = middle
    return low
