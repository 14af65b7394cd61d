"""The line of waiting sequences, as in `kvsim.scheduling.queues`: a ring, or a heap where priority orders it."""

from __future__ import annotations

from kvsim.simulation.compiled.engine import Engine
from kvsim.simulation.compiled.jit import jit
from kvsim.simulation.compiled.rings import END, link_first, link_last, unlink


@jit
def push(engine: Engine, node: int) -> None:
    """Add a sequence that has arrived."""
    if engine.settings[0].by_priority:
        _push_on_heap(engine, node)
    else:
        link_last(engine.sequences, node)
    engine.state[0].num_waiting += 1


@jit
def push_preempted(engine: Engine, node: int) -> None:
    """Add a sequence that was running."""
    if engine.settings[0].by_priority:
        _push_on_heap(engine, node)
    else:
        link_first(engine.sequences, node)
    engine.state[0].num_waiting += 1


@jit
def peek(engine: Engine) -> int:
    """The head, which stays; somebody waits."""
    return engine.heap[0] if engine.settings[0].by_priority else engine.sequences[END].next


@jit
def remove(engine: Engine, node: int) -> None:
    """Take out a sequence, wherever it stands."""
    state = engine.state[0]
    state.num_waiting -= 1
    if not engine.settings[0].by_priority:
        unlink(engine.sequences, node)
        return
    index = 0
    while engine.heap[index] != node:
        index += 1
    # The last one takes its place, and goes up or down from there.
    last = engine.heap[state.num_waiting]
    if last != node:
        _sift_up(engine, last, _sift_down(engine, last, index))


@jit
def _push_on_heap(engine: Engine, node: int) -> None:
    _sift_up(engine, node, engine.state[0].num_waiting)


@jit
def _sift_up(engine: Engine, node: int, index: int) -> None:
    """Put `node` at `index`, or above as long as it goes before those there."""
    heap = engine.heap
    while index > 0 and _goes_before(engine, node, heap[(index - 1) // 2]):
        heap[index] = heap[(index - 1) // 2]
        index = (index - 1) // 2
    heap[index] = node


@jit
def _sift_down(engine: Engine, node: int, index: int) -> int:
    """Make room for `node` at `index`, or below as long as those there go before it; return where."""
    heap, size = engine.heap, engine.state[0].num_waiting
    while 2 * index + 1 < size:
        child = 2 * index + 1
        if child + 1 < size and _goes_before(engine, heap[child + 1], heap[child]):
            child += 1
        if not _goes_before(engine, heap[child], node):
            break
        heap[index] = heap[child]
        index = child
    return index


@jit
def _goes_before(engine: Engine, one: int, other: int) -> bool:
    """Smallest priority first, then earliest arrival, then the order of the workload."""
    a, b = engine.sequences[one], engine.sequences[other]
    if a.priority != b.priority:
        return a.priority < b.priority
    if engine.times[one].arrival_s != engine.times[other].arrival_s:
        return engine.times[one].arrival_s < engine.times[other].arrival_s
    return one < other
