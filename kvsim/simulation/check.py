"""The account of an engine, checked: every unit in one place, every slot in one state, every total as it should be."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from kvsim.engine.extents import rounded
from kvsim.engine.records import column
from kvsim.engine.state import NO_KEY, PAGED, RECTANGULAR, TIERED, Engine
from kvsim.errors import IntegrityError
from kvsim.memory.waste import NUM_STATES, Breakdown, SlotState, split_extent

if TYPE_CHECKING:
    from kvsim.engine.driver import Driver


_OF_BLOCKS = (PAGED, TIERED)


def check(driver: Driver) -> None:
    """Raise unless the account of the engine is right after the step that was scheduled last.

    Raises:
        IntegrityError: with the figures that do not agree.
    """
    engine = driver.engine
    memory = engine.settings[0].memory
    if memory == RECTANGULAR:
        _check_rectangle(engine)
        return
    if memory in _OF_BLOCKS:
        _check_blocks(driver)
    else:
        _check_extents(driver)
    _check_totals(driver)


def breakdown(driver: Driver) -> Breakdown:
    """Where every slot goes now, counted sequence by sequence."""
    engine = driver.engine
    settings, state = engine.settings[0], engine.state[0]
    slots = np.zeros(NUM_STATES, np.int64)
    held = 0
    for node in driver.holders():
        sequence = engine.sequences[node]
        length, full = _num_units(driver, node) * settings.unit_tokens, sequence.full_tokens
        requested = length if settings.memory in _OF_BLOCKS else sequence.requested
        computed = _num_computed(driver, node)
        slots += split_extent(0, length, full=max(full, computed), computed=computed, requested=requested)
        held += length
    used = (settings.num_units - state.num_free) * settings.unit_tokens
    slots[SlotState.TOKEN] -= held - used  # several tables may list a block that the pool has once
    slots[SlotState.CACHED] = state.num_cached * settings.unit_tokens
    slots[SlotState.FREE] = (state.num_free - state.num_cached) * settings.unit_tokens
    return Breakdown(slots=slots)


def _check_blocks(driver: Driver) -> None:
    """Every block is free once or held by as many tables as it has references, and the queue has its order."""
    engine = driver.engine
    state, refs, keys = engine.state[0], column(engine.blocks, "refs"), column(engine.blocks, "key")
    queue = np.array(driver.free_queue(), np.int64)
    held = Counter(block for node in driver.holders() for block in driver.table(node))
    expected = np.zeros(len(refs), np.int64)
    expected[[*held]] = [*held.values()]
    if len(queue) != state.num_free or len(np.unique(queue)) != len(queue) or (refs[queue] != 0).any():
        raise IntegrityError(f"{len(queue)} blocks stand in the free queue, {state.num_free} are counted.")
    if (refs != expected).any():
        block = int(np.argmax(refs != expected))
        raise IntegrityError(f"block {block} has {refs[block]} references and stands in {expected[block]} tables.")
    keyed = keys[queue] != NO_KEY
    if keyed.sum() != state.num_cached or (np.diff(keyed.astype(np.int8)) < 0).any():
        raise IntegrityError(f"{keyed.sum()} free blocks hold a prefix, {state.num_cached} are counted, or they stand "
                             "in front of one that does not.")  # fmt: skip


def _check_extents(driver: Driver) -> None:
    """Extents and holes cover every slot once."""
    engine = driver.engine
    state, num_units = engine.state[0], engine.settings[0].num_units
    pieces = [(engine.holes[index].address, engine.holes[index].length) for index in range(state.num_holes)]
    free = sum(length for _, length in pieces)
    for node in driver.running():
        sequence = engine.sequences[node]
        pieces.append((sequence.place, sequence.num_units))
        if sequence.num_units != rounded(engine, sequence.requested):
            raise IntegrityError(f"{sequence.requested} slots were asked for, and {sequence.num_units} are held.")
    end = 0
    for address, length in sorted(pieces):
        if address != end or length < 1:
            raise IntegrityError(f"{length} slots begin at {address}; the piece before ends at {end}.")
        end = address + length
    if end != num_units or free != state.num_free:
        raise IntegrityError(f"{free} slots are free, {state.num_free} are counted, and {end} of {num_units} covered.")


def _check_totals(driver: Driver) -> None:
    """The totals that are kept from change to change equal those of a count, and the states add up to the pool."""
    engine = driver.engine
    settings, state = engine.settings[0], engine.state[0]
    holders = driver.holders()
    unit_tokens = settings.unit_tokens if settings.memory in _OF_BLOCKS else 1
    held = [_num_units(driver, node) * unit_tokens for node in holders]
    asked = held if settings.memory in _OF_BLOCKS else [engine.sequences[node].requested for node in holders]
    counted = {
        "written": sum(_num_computed(driver, node) for node in holders),
        "requested": sum(asked),
        "useful": sum(
            min(slots, engine.sequences[node].full_tokens) for slots, node in zip(asked, holders, strict=True)
        ),
        "rounding": sum(held) - sum(asked),
    }
    for name, value in counted.items():
        if getattr(state, name) != value:
            raise IntegrityError(f"{value} slots are {name}, and the running total is {getattr(state, name)}.")
    breakdown(driver).check(settings.num_units * settings.unit_tokens)


def _num_units(driver: Driver, node: int) -> int:
    """Units that nobody else is given because of a sequence, null blocks included."""
    memory = driver.engine.settings[0].memory
    return len(driver.table(node)) if memory == TIERED else int(driver.sequence(node).num_units)


def _num_computed(driver: Driver, node: int) -> int:
    """Slots that a sequence has written and that are not free."""
    sequence = driver.sequence(node)
    if sequence.num_units == 0:  # its blocks are not free yet
        return int(driver.engine.host.asked[node].dead_tokens)
    return int(sequence.computed + sequence.rejected)


def _check_rectangle(engine: Engine) -> None:
    """The slots of a static batch, counted row by row."""
    settings, state, batch = engine.settings[0], engine.state[0], engine.rectangle[0]
    step = batch.step - 1
    width = batch.stride if settings.preallocated else batch.prompt_width + step
    slots = np.zeros(NUM_STATES, np.int64)
    for row in range(batch.num_rows):
        sequence = engine.sequences[engine.running[row]]
        pad = batch.prompt_width - sequence.prompt_tokens
        full = pad + sequence.end_tokens - 1
        slots += split_extent(0, width, pad=pad, full=full, computed=batch.prompt_width + step, requested=width)
    slots[SlotState.FREE] = state.num_free
    totals = {SlotState.TOKEN: state.written, SlotState.RESERVED: state.useful - state.written}
    for slot_state, value in totals.items():
        if slots[slot_state] != value:
            raise IntegrityError(f"{slots[slot_state]} slots are {slot_state.name.lower()}, the total says {value}.")
    Breakdown(slots=slots).check(settings.num_units)
