"""Consistency checks of SGLang's radix cache for `--check`: pages, locks of nodes, and slots by state."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from kvsim.engine.arrays import listed
from kvsim.engine.radix.request_rows import NO_ROW
from kvsim.engine.radix.token_slots import free_pages_in_order
from kvsim.engine.radix_records import NO_BATCH, NO_SLOT, ROOT, SLOTS, WINDOWS
from kvsim.errors import IntegrityError
from kvsim.memory.waste import NUM_STATES, SlotState

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.engine.driver import Driver
    from kvsim.engine.radix_records import Node
    from kvsim.engine.state import Engine


def check_pages(driver: Driver) -> None:
    """Check that every page is free, in the tree, or in the row of one request, and check the locks of every node.

    A node has one lock for each request and each copy that needs it. If there is a second pool for sliding-window
    layers, or host memory, these are checked as well.
    """
    engine = driver.engine
    radix, unit = engine.radix, engine.settings.unit_tokens
    places = free_pages_in_order(engine, SLOTS)
    copied = [int(radix.written[index].node) for index in range(radix.state.num_storing)]
    copied += [int(radix.loading[index].node) for index in range(radix.state.num_loading)]
    locked = []
    _check_free_list(engine, SLOTS, engine.state.num_free)
    for number in holders(engine):
        holding, row = radix.holdings[number], _row(engine, number)
        places += row[holding.protected_tokens // unit :]
        locked.append(holding.lock)
    # A request or a copy under way locks a node and all nodes above it. Pages that only copies lock are counted, too.
    locks, copy_locks = _num_paths(engine, locked + copied), _num_paths(engine, copied)
    num_copying = 0
    for node, pages in _pages_of_nodes(engine).items():
        places += pages
        num_copying += len(pages) if locks[node] == copy_locks[node] > 0 else 0
        if (radix.nodes[node].locks, radix.nodes[node].copy_locks) != (locks[node], copy_locks[node]):
            raise IntegrityError(
                f"node {node} has {radix.nodes[node].locks} locks, and {locks[node]} requests and copies on it."
            )
    num_placed, num_pages = len(set(places)), engine.settings.num_units
    if num_placed != num_pages or len(places) != num_pages:
        raise IntegrityError(f"{num_placed} of {num_pages} pages are in a place, or one is in two.")
    if num_copying != radix.state.num_copying:
        raise IntegrityError(f"{num_copying} pages are locked by copies alone, {radix.state.num_copying} are counted.")
    if radix.settings.window_tokens:
        _check_windows(engine)
    nodes = [radix.nodes[node] for node in range(1, radix.state.num_nodes + 1) if not radix.nodes[node].is_spare]
    _check_host(engine, [node for node in nodes if node.is_on_host])


def _num_paths(engine: Engine, lowest: list[int]) -> Counter[int]:
    """Count, for each node, the paths that contain it. There is one path to the root from each node in `lowest`."""
    counts: Counter[int] = Counter()
    for first in lowest:
        node = first
        while node != ROOT:
            counts[node] += 1
            node = engine.radix.nodes[node].parent
    return counts


def _check_host(engine: Engine, nodes: list[Node]) -> None:
    """Check that every slot of host memory is free, or holds one page of one of `nodes` (all with a copy)."""
    radix = engine.radix
    lists = [(radix.state.first_free_slot, radix.state.num_free_host)] if radix.settings.host_pages else []
    lists += [(node.first_slot, node.num_pages) for node in nodes]
    next_slot = listed(radix.next_slot, 0, len(radix.next_slot))
    places: list[int] = []
    for first, num_slots in lists:
        slot = int(first)
        for _ in range(num_slots):
            places.append(slot)
            slot = next_slot[slot]
        if slot != NO_SLOT:
            raise IntegrityError(f"a list of {num_slots} slots of host memory goes on with slot {slot}.")
    if sorted(places) != [*range(1, radix.settings.host_pages + 1)]:
        raise IntegrityError(f"{len(set(places))} of {radix.settings.host_pages} slots of host memory are in a place, "
                             "or one is in two.")  # fmt: skip


def _check_windows(engine: Engine) -> None:
    """Check that every page of the window pool is free, or belongs to exactly one page of the first pool.

    That page of the first pool is in the tree, or in a request's row.
    """
    radix, unit = engine.radix, engine.settings.unit_tokens
    first = engine.settings.num_units
    _check_free_list(engine, WINDOWS, radix.state.num_free_windows)
    held: list[int] = []
    num_cached = 0
    for node, pages in _pages_of_nodes(engine).items():
        if radix.nodes[node].has_window:
            held += pages
            num_cached += len(pages) if radix.nodes[node].window_locks == 0 else 0
        elif any(map(radix.window_pages.__getitem__, pages)):
            raise IntegrityError(f"node {node} lacks its windows, and a page of it has one.")
    if num_cached != radix.state.num_cached_windows:
        raise IntegrityError(
            f"{num_cached} pages of windows can be evicted, {radix.state.num_cached_windows} are counted."
        )
    for number in holders(engine):
        holding = radix.holdings[number]
        held += _row(engine, number)[max(holding.protected_tokens, holding.freed_window_tokens) // unit :]
    free = free_pages_in_order(engine, WINDOWS)
    places = [*free, *map(radix.window_pages.__getitem__, held)]
    if sorted(places) != [*range(first + 1, first + radix.settings.window_pages + 1)]:
        raise IntegrityError(f"{len(set(places))} of {radix.settings.window_pages} pages of windows are in one place.")


def _check_free_list(engine: Engine, pool: int, num_free: int) -> None:
    """Check that the free list of `pool` (`SLOTS` or `WINDOWS`) has `num_free` pages."""
    free_list = engine.radix.free_lists[pool]
    num_listed = (free_list.tail - free_list.head) % (free_list.end - free_list.begin)
    if num_listed != num_free or free_list.num_collected:
        raise IntegrityError(f"{num_listed} pages are in the free list, {num_free} are counted.")


def held_slots(driver: Driver) -> npt.NDArray[np.int64]:
    """Return the number of slots in each state, as an array indexed by `SlotState`, in the pages that requests hold.

    A page in the rows of several requests counts once.
    """
    engine = driver.engine
    unit = engine.settings.unit_tokens
    most = np.zeros((2, engine.settings.num_units + 1), np.int64)
    is_held = np.zeros(engine.settings.num_units + 1, np.bool_)
    for number in holders(engine):
        row = np.array(_row(engine, number), np.int64)
        computed = int(engine.sequences[number].computed)
        ends = np.array([[computed], [max(int(engine.sequences[number].full_tokens), computed)]], np.int64)
        most[:, row] = np.maximum(most[:, row], (ends - np.arange(len(row)) * unit).clip(0, unit))
        is_held[row] = True
    written, useful = most.sum(axis=1).tolist()
    slots = np.zeros(NUM_STATES, np.int64)
    slots[SlotState.TOKEN] = written
    slots[SlotState.RESERVED] = useful - written
    slots[SlotState.INTERNAL] = np.count_nonzero(is_held) * unit - useful
    return slots


def holders(engine: Engine) -> list[int]:
    """Return the numbers of the requests that have a row of pages."""
    return [number for number in range(1, len(engine.sequences)) if engine.sequences[number].place != NO_ROW]


def _row(engine: Engine, number: int) -> list[int]:
    """Return the pages in a request's row, in order, including those for a chosen batch that is not launched yet."""
    sequence, size = engine.sequences[number], engine.radix.settings.row_pages
    waits = engine.radix.state.chosen_mode != NO_BATCH
    chosen = (index for index in range(engine.state.num_listed if waits else 0) if engine.batch[index] == number)
    tokens = sequence.computed + sum(engine.batch_tokens[index] for index in chosen)
    end = -(-tokens // engine.settings.unit_tokens)
    return listed(engine.radix.rows, sequence.place * size, sequence.place * size + end)


def _pages_of_nodes(engine: Engine) -> dict[int, list[int]]:
    """Return the pages on the GPU of each node of the tree, by the number of the node."""
    radix, found = engine.radix, {}
    for number in range(1, radix.state.num_nodes + 1):
        node = radix.nodes[number]
        if node.is_on_device and not node.is_spare:
            found[number] = listed(radix.node_pages, node.first_entry, node.first_entry + node.num_pages)
    return found
