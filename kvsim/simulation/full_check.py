"""Consistency checks for `--check` that read the whole memory of an engine.

Every unit has one place, every slot has one state, and every running total equals a fresh count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.engine.arrays import column
from kvsim.engine.custom.custom_memory import CUSTOM
from kvsim.engine.encoder_cache import reclaimable
from kvsim.engine.host.tiered import TIERED
from kvsim.engine.paged.block_pool import NULL_BLOCK
from kvsim.engine.paged.kv_cache import PAGED
from kvsim.engine.radix.hierarchical import OF_SGLANG
from kvsim.engine.reserved.extents import rounded_length
from kvsim.engine.reserved.static_batch import RECTANGLE
from kvsim.engine.state import NO_KEY, Engine
from kvsim.engine.totals import shared_slots
from kvsim.errors import IntegrityError
from kvsim.memory.waste import NUM_STATES, Breakdown, SlotState, SlotTotals, split_extent
from kvsim.simulation import check_radix
from kvsim.simulation.table_mirror import CONNECTOR_KINDS, Held, held

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.engine.driver import Driver


_OF_BLOCKS = (PAGED, TIERED, *CONNECTOR_KINDS)


def check(driver: Driver) -> None:
    """Check that the engine's memory is consistent after the last scheduled step."""
    engine = driver.engine
    memory = engine.memory
    if memory is RECTANGLE:
        _check_rectangle(engine)
        return
    if memory in _OF_BLOCKS:
        _check_blocks(driver)
    elif memory in OF_SGLANG:
        check_radix.check_pages(driver)
    elif memory is CUSTOM:
        _check_custom_units(driver)
    else:
        _check_extents(driver)
    check_totals(driver, breakdown(driver))
    if engine.settings.encoder_tokens:
        check_encoder(engine)


def check_encoder(engine: Engine) -> None:
    """Check the encoder cache: every image is in use, evictable or absent, and every slot counts once."""
    cache, unused = engine.encoder, set(reclaimable(engine.encoder.images))
    users: dict[int, set[int]] = {number: set() for number in range(1, len(cache.images))}
    for number in range(1, len(engine.sequences)):
        for index in range(cache.first_inputs[number], cache.first_inputs[number + 1]):
            if cache.inputs[index].is_user:
                users[int(cache.inputs[index].content)].add(number)
    held = free = 0
    for image, sequences in users.items():
        is_cached, tokens = bool(cache.images[image].is_cached), int(cache.images[image].num_tokens)
        if len(sequences) != cache.images[image].num_users or (sequences and not is_cached):
            raise IntegrityError(f"image {image} is held by {len(sequences)} requests; {cache.images[image].num_users} "
                                 "are counted, or it is not in the encoder cache.")  # fmt: skip
        if (image in unused) != (is_cached and not sequences):
            raise IntegrityError(f"image {image} is held and listed as one that can be evicted, or neither.")
        held += tokens if sequences else 0
        free += tokens if is_cached and not sequences else 0
    kept, left = int(cache.state.num_reclaimable), int(cache.state.num_free)
    if held + kept != engine.settings.encoder_cache_tokens or left + free != kept:
        raise IntegrityError(
            f"images of {held:,} tokens are held and of {free:,} kept, {left:,} are free and {kept:,} can be had, of "
            f"{engine.settings.encoder_cache_tokens:,} in the encoder cache."
        )


def breakdown(driver: Driver) -> Breakdown:
    """Return the number of slots in each state. Held slots are counted anew, over all blocks, pages or extents."""
    if driver.engine.memory in OF_SGLANG:
        return breakdown_of(driver, check_radix.held_slots(driver))
    if driver.engine.memory is CUSTOM:
        return breakdown_of(driver, _held_in_custom_units(driver))
    of_blocks = driver.engine.memory in _OF_BLOCKS
    return breakdown_of(driver, _held_in_blocks(driver) if of_blocks else _held_in_extents(driver))


def breakdown_of(driver: Driver, held_slots: npt.NDArray[np.int64]) -> Breakdown:
    """Return the number of slots in each state. Free and cached slots are counted by the engine.

    `held_slots` has the other states, indexed by `SlotState`.
    """
    settings, memory = driver.engine.settings, driver.engine.memory
    slots, num_cached = held_slots.copy(), memory.cached_units(driver.engine)
    slots[SlotState.CACHED] = num_cached * settings.unit_slots
    slots[SlotState.FREE] = (memory.free_units(driver.engine) - num_cached) * settings.unit_slots
    return Breakdown(slots=slots)


def _held_in_extents(driver: Driver) -> npt.NDArray[np.int64]:
    sequences = [driver.engine.sequences[number] for number in driver.running()]
    fields = [(each.num_units, each.full_tokens, each.computed + each.rejected, each.requested) for each in sequences]
    length, full, computed, requested = np.array(fields, np.int64).reshape(-1, 4).T
    split = split_extent(0, length, full=np.maximum(full, computed), computed=computed, requested=requested)
    return np.asarray(split.sum(axis=0))


def _held_in_blocks(driver: Driver) -> npt.NDArray[np.int64]:
    tables = (
        (group, held(driver, number, group))
        for number in driver.holders()
        for group in range(driver.engine.settings.num_groups)
    )
    return _held_in_tables(driver.engine, tables, NULL_BLOCK)


def _held_in_custom_units(driver: Driver) -> npt.NDArray[np.int64]:
    rules: Any = driver.engine.rules
    tables = (
        (0, Held(units, int(sequence.computed + sequence.rejected), 0, int(sequence.full_tokens)))
        for number, units in rules.units.tables.items()
        for sequence in (driver.engine.sequences[number],)
    )
    return _held_in_tables(driver.engine, tables, None)


def _held_in_tables(engine: Engine, tables: Iterable[tuple[int, Held]], null: int | None) -> npt.NDArray[np.int64]:
    """Return the number of slots in each state, over the units of `tables`. A unit in several tables counts once.

    `tables` are pairs of a KV-cache group's number and a table. Table entries equal to `null` hold no unit. If `null`
    is None, every entry holds a unit.
    """
    found = [(np.array(table.blocks, np.int64), _contents(engine, group, table)) for group, table in tables]
    slots = np.zeros(NUM_STATES, np.int64)
    blocks = np.concatenate([np.empty(0, np.int64), *(of_table for of_table, _ in found)])
    order = np.argsort(blocks)
    order = order[blocks[order] != null]
    if not len(order):
        return slots
    contents = np.concatenate([of_table for _, of_table in found])[order]
    firsts = np.flatnonzero(np.diff(blocks[order], prepend=-1))
    written = np.maximum.reduceat(contents[:, 0], firsts).sum()
    expired, reserved = np.minimum.reduceat(contents[:, 1:], firsts).sum(axis=0)
    slots[SlotState.TOKEN], slots[SlotState.EXPIRED], slots[SlotState.RESERVED] = written - expired, expired, reserved
    slots[SlotState.INTERNAL] = len(firsts) * engine.settings.unit_slots - written - reserved
    return slots


def _contents(engine: Engine, group: int, table: Held) -> npt.NDArray[np.int64]:
    """Return the written, expired and reserved slots of every entry of a table, as if no other table listed its unit.

    The shape is (entries, 3). `table_mirror.content` counts the same for one entry, and shares no code with this.
    """
    record, count = engine.groups[group], len(table.blocks)
    if record.state_slots:
        found = np.array([[record.state_slots, record.state_slots, 0]] * count, np.int64).reshape(-1, 3)
        found[-1:, 1] = 0  # the newest state
        return found
    ends = np.array([table.computed, min(table.skipped, table.computed), max(table.full, table.computed)], np.int64)
    begins = np.arange(count)[:, np.newaxis] * record.block_size
    found = np.clip(ends - begins, 0, record.block_size)
    found[:, 2] -= found[:, 0]
    return np.asarray(found * record.token_slots)


def _check_blocks(driver: Driver) -> None:
    """Check the references of all blocks, and the number and the order of the blocks in the free queue."""
    engine = driver.engine
    state, refs, keys = engine.state, column(engine.blocks, "refs"), column(engine.blocks, "key")
    queue = np.array(driver.free_queue(), np.int64)
    groups = range(engine.settings.num_groups)
    listed = (block for number in driver.holders() for group in groups for block in driver.table(number, group))
    held = Counter(block for block in listed if block != NULL_BLOCK)
    expected = np.zeros(len(refs), np.int64)
    expected[[*held]] = [*held.values()]
    if len(queue) != state.num_free or len(np.unique(queue)) != len(queue) or (refs[queue] != 0).any():
        raise IntegrityError(f"{len(queue)} blocks are in the free queue, {state.num_free} are counted.")
    if (refs != expected).any():
        block = int(np.argmax(refs != expected))
        raise IntegrityError(f"block {block} has {refs[block]} references and is in {expected[block]} tables.")
    keyed = keys[queue] != NO_KEY
    in_order = not reuses_first(engine) or not (np.diff(keyed.astype(np.int8)) < 0).any()
    if keyed.sum() != state.num_cached or not in_order:
        raise IntegrityError(f"{keyed.sum()} free blocks hold a prefix, {state.num_cached} are counted, or they stand "
                             "in front of one that does not.")  # fmt: skip


def reuses_first(engine: Engine) -> bool:
    """Tell whether this vLLM release allocates all freed blocks without a prefix before blocks with a prefix."""
    groups = range(engine.settings.num_groups)
    return not engine.settings.marks_tails and all(engine.groups[group].reuses_first for group in groups)


def _check_custom_units(driver: Driver) -> None:
    """Check a custom allocator's units: their references, how many are free and cached, and who holds units."""
    engine = driver.engine
    rules: Any = engine.rules
    state, units = engine.state, rules.units
    held = Counter(unit for table in units.tables.values() for unit in table)
    if any(held[unit] != refs for unit, refs in enumerate(units.refs)):
        raise IntegrityError("a unit is in more or fewer tables than are counted.")
    if len(held) + state.num_free != engine.settings.num_units:
        raise IntegrityError(f"{len(held)} units are in tables, and {state.num_free} are free.")
    num_cached = sum(key != NO_KEY and not refs for key, refs in zip(units.keys, units.refs, strict=True))
    if num_cached != state.num_cached:
        raise IntegrityError(f"{num_cached} free units hold a prefix, and {state.num_cached} are counted.")
    if set(units.tables) != set(driver.running()):
        raise IntegrityError(f"{len(units.tables)} requests have tables, and {len(driver.running())} run.")


def _check_extents(driver: Driver) -> None:
    """Check that extents and free ranges together cover every slot exactly once."""
    engine = driver.engine
    state, num_units = engine.state, engine.settings.num_units
    pieces = [(engine.holes[index].address, engine.holes[index].length) for index in range(state.num_holes)]
    free = sum(length for _, length in pieces)
    for number in driver.running():
        sequence = engine.sequences[number]
        pieces.append((sequence.place, sequence.num_units))
        if sequence.num_units != rounded_length(engine, sequence.requested):
            raise IntegrityError(f"{sequence.requested} slots were requested, and {sequence.num_units} are held.")
    end = 0
    for address, length in sorted(pieces):
        if address != end or length < 1:
            raise IntegrityError(f"{length} slots begin at {address}; the piece before ends at {end}.")
        end = address + length
    if end != num_units or free != state.num_free:
        raise IntegrityError(f"{free} slots are free, {state.num_free} are counted, and {end} of {num_units} covered.")


def check_totals(driver: Driver, counted: Breakdown) -> None:
    """Check that the engine's running totals equal the `counted` slots, and that these add up to the pool."""
    engine = driver.engine
    settings, state, unit_slots = engine.settings, engine.state, engine.settings.unit_slots
    capacity = settings.num_units * unit_slots
    counted.check(capacity)
    totals = SlotTotals(
        free=engine.memory.free_units(engine) * unit_slots,
        cached=engine.memory.cached_units(engine) * unit_slots,
        unusable=0,
        rounding=state.rounding,
        written=state.written,
        useful=state.useful,
        padding=0,
        shared=shared_slots(engine),
        expired=engine.memory.expired_slots(engine),
    ).states(capacity)
    for slot_state, value in zip(SlotState, totals.tolist(), strict=True):
        if counted[slot_state] != value:
            raise IntegrityError(
                f"{counted[slot_state]} slots are {slot_state.name.lower()}, and by the running totals {value}."
            )


def _check_rectangle(engine: Engine) -> None:
    settings, state, batch = engine.settings, engine.state, engine.rectangle
    step = batch.step - 1
    width = batch.stride if settings.preallocated else batch.prompt_width + step
    rows = [engine.sequences[engine.running[row]] for row in range(batch.num_rows)]
    prompt, end = np.array([(each.prompt_tokens, each.end_tokens) for each in rows], np.int64).reshape(-1, 2).T
    pad, computed = batch.prompt_width - prompt, batch.prompt_width + step
    split = split_extent(0, width, pad=pad, full=pad + end - 1, computed=computed, requested=width)
    slots = split.sum(axis=0)
    slots[SlotState.FREE] = state.num_free
    totals = {SlotState.TOKEN: state.written, SlotState.RESERVED: state.useful - state.written}
    for slot_state, value in totals.items():
        if slots[slot_state] != value:
            raise IntegrityError(f"{slots[slot_state]} slots are {slot_state.name.lower()}, the total says {value}.")
    Breakdown(slots=slots).check(settings.num_units)
