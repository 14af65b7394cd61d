"""The heap of the radix tree's evictable leaves: a binary heap in `RadixTables.leaves`, which begins with the leaf that
is evicted next. `Node.place` is the index of a node in it.
"""

from __future__ import annotations

from kvsim.engine.machine_code.compiled import part
from kvsim.engine.radix_records import FIFO, FILO, LEAST_PRIORITY, LFU, LRU, MRU, ROOT, SLRU
from kvsim.engine.state import Engine

_OFTEN = 2
"""Number of hits that makes a node "often hit" for `SLRU`, which evicts such nodes last."""


@part
def update(engine: Engine, node: int) -> None:
    """Put a node at its right place in the heap after its record has changed. Add it if it has become evictable, and
    remove it if it is not evictable any longer.

    A node is evictable if it is on the device, is not the root, and has no locks and no children on the device.
    """
    record, radix = engine.radix.nodes[node], engine.radix.state
    if node != ROOT and record.locks == 0 and record.num_children == 0 and record.is_on_device:
        if record.place < 0:
            radix.num_leaves += 1
            _rise(engine, node, radix.num_leaves - 1)
        else:
            _rise(engine, node, _sink(engine, node, record.place))
    elif record.place >= 0:
        remove(engine, node)


@part
def remove(engine: Engine, node: int) -> None:
    """Remove a node, which must be in the heap."""
    nodes, leaves, radix = engine.radix.nodes, engine.radix.leaves, engine.radix.state
    place = nodes[node].place
    nodes[node].place = -1
    radix.num_leaves -= 1
    last = leaves[radix.num_leaves]
    if last != node:
        _rise(engine, last, _sink(engine, last, place))


@part
def goes_first(engine: Engine, node: int, other: int) -> bool:
    """Tell whether `node` is evicted before node `other`, by the eviction strategy."""
    eviction, first, second = engine.radix.settings.eviction, engine.radix.nodes[node], engine.radix.nodes[other]
    if eviction == FIFO:
        return first.created < second.created
    if eviction == FILO:
        return first.created > second.created
    if eviction == MRU:
        return first.accessed > second.accessed
    rank, least = 0, 0
    if eviction == LFU:
        rank, least = first.hits, second.hits
    elif eviction == LEAST_PRIORITY:
        rank, least = first.priority, second.priority
    elif eviction == SLRU:
        rank, least = int(first.hits >= _OFTEN), int(second.hits >= _OFTEN)
    else:
        assert eviction == LRU
    return rank < least or (rank == least and first.accessed < second.accessed)


@part
def _rise(engine: Engine, node: int, place: int) -> None:
    """Put `node` at the empty index `place` of the heap, and move it up past the parents that are evicted later."""
    nodes, leaves = engine.radix.nodes, engine.radix.leaves
    while place > 0 and goes_first(engine, node, leaves[(place - 1) // 2]):
        leaves[place] = leaves[(place - 1) // 2]
        nodes[leaves[place]].place = place
        place = (place - 1) // 2
    leaves[place] = node
    nodes[node].place = place


@part
def _sink(engine: Engine, node: int, place: int) -> int:
    """Find the index for `node` in the subtree of the heap below the empty index `place`. Level by level, move the
    child that is evicted first up to the empty index, as long as it is evicted before `node`. Return the index that is
    empty in the end.
    """
    nodes, leaves, size = engine.radix.nodes, engine.radix.leaves, engine.radix.state.num_leaves
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and goes_first(engine, leaves[child + 1], leaves[child]):
            child += 1
        if not goes_first(engine, leaves[child], node):
            break
        leaves[place] = leaves[child]
        nodes[leaves[place]].place = place
        place = child
    return place
