"""The queue of waiting sequences: a linked list in order of arrival, or a heap where priority orders it.

A preempted sequence goes back to the front of the list, or to its place in the heap.
"""

from __future__ import annotations

from kvsim.engine import linked_list
from kvsim.engine.compiled import part
from kvsim.engine.linked_list import HEAD
from kvsim.engine.state import Engine


@part
def push(engine: Engine, node: int) -> None:
    """Add a sequence that has arrived."""
    if engine.settings[0].by_priority:
        _sift_up(engine, node, engine.state[0].num_waiting)
    else:
        linked_list.push_back(engine.sequences, node)
    engine.state[0].num_waiting += 1


@part
def push_preempted(engine: Engine, node: int) -> None:
    """Add a sequence that was running."""
    if engine.settings[0].by_priority:
        _sift_up(engine, node, engine.state[0].num_waiting)
    else:
        linked_list.push_front(engine.sequences, node)
    engine.state[0].num_waiting += 1


@part
def peek(engine: Engine) -> int:
    """The head of the queue, which is not empty; it stays."""
    return engine.lines[0].heap if engine.settings[0].by_priority else engine.sequences[HEAD].next


@part
def remove(engine: Engine, node: int) -> None:
    """Take out a sequence, wherever it stands."""
    state = engine.state[0]
    state.num_waiting -= 1
    if not engine.settings[0].by_priority:
        linked_list.remove(engine.sequences, node)
        return
    index = 0
    while engine.lines[index].heap != node:
        index += 1
    # The last one takes its place, and goes up or down from there.
    last = engine.lines[state.num_waiting].heap
    if last != node:
        _sift_up(engine, last, _sift_down(engine, last, index))


@part
def _sift_up(engine: Engine, node: int, index: int) -> None:
    """Put `node` at `index`, or above as long as it goes before those there."""
    heap = engine.lines
    while index > 0 and _goes_before(engine, node, heap[(index - 1) // 2].heap):
        heap[index].heap = heap[(index - 1) // 2].heap
        index = (index - 1) // 2
    heap[index].heap = node


@part
def _sift_down(engine: Engine, node: int, index: int) -> int:
    """Make room for `node` at `index`, or below as long as those there go before it; return where."""
    heap, size = engine.lines, engine.state[0].num_waiting
    while 2 * index + 1 < size:
        child = 2 * index + 1
        if child + 1 < size and _goes_before(engine, heap[child + 1].heap, heap[child].heap):
            child += 1
        if not _goes_before(engine, heap[child].heap, node):
            break
        heap[index].heap = heap[child].heap
        index = child
    return index


@part
def _goes_before(engine: Engine, one: int, other: int) -> bool:
    """Smallest priority first, then earliest arrival, then the order of the workload."""
    a, b = engine.sequences[one], engine.sequences[other]
    if a.priority != b.priority:
        return a.priority < b.priority
    if engine.times[one].arrival_s != engine.times[other].arrival_s:
        return engine.times[one].arrival_s < engine.times[other].arrival_s
    return one < other
