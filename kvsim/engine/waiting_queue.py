"""The queue of waiting sequences: a linked list in order of arrival or, with priorities, a heap.

A preempted sequence returns to the front of the list, or to its position in the heap. A pass is the admission part of
one step. It visits the sequences that earlier passes skipped, and then the queue. A sequence that cannot be admitted
yet, for example because its KV is loading, is skipped.

`Engine.skipped` has two halves: the first has the sequences that earlier passes skipped, the second those that the
current pass skips. At its end, `end_pass` moves the second half before the rest of the first.

`State.num_passed_over` counts the waiting sequences that were ever skipped, each once.
"""

from __future__ import annotations

from functools import cmp_to_key

from kvsim.engine import linked_list
from kvsim.engine.linked_list import HEAD
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.records import Sequence
from kvsim.engine.state import LOADING, Engine


@part
def push(engine: Engine, sequence: Sequence) -> None:
    """Queue a sequence that has arrived."""
    if engine.settings.by_priority:
        _sift_up(engine, sequence.number, engine.state.num_queued)
    else:
        linked_list.push_back(engine.sequences, sequence.number)
    engine.state.num_queued += 1
    engine.state.num_waiting += 1


@part
def push_again(engine: Engine, sequence: Sequence) -> None:
    """Return a preempted or skipped sequence to the queue's front or, with priorities, to its place in the heap."""
    if engine.settings.by_priority:
        _sift_up(engine, sequence.number, engine.state.num_queued)
    else:
        linked_list.push_front(engine.sequences, sequence.number)
    engine.state.num_queued += 1
    engine.state.num_waiting += 1


@part
def peek(engine: Engine) -> Sequence:
    """Return the head of the queue without removing it. The queue must not be empty."""
    assert engine.state.num_queued > 0
    return engine.sequences[engine.lines[0].heap if engine.settings.by_priority else engine.sequences[HEAD].next]


@part
def remove(engine: Engine, sequence: Sequence) -> None:
    """Remove a waiting sequence from the queue, or from the skipped sequences."""
    state = engine.state
    state.num_waiting -= 1
    _forget_passes(engine, sequence)
    if not sequence.is_skipped:
        _unlink(engine, sequence)
        return
    sequence.is_skipped = False
    index = 0
    while engine.skipped[index] != sequence.number:
        index += 1
    state.num_skipped -= 1
    for later in range(index, state.num_skipped):
        engine.skipped[later] = engine.skipped[later + 1]


@part
def begin_pass(engine: Engine) -> None:
    """Begin the pass of one step. It visits the skipped sequences first, and then the queue."""
    engine.state.num_looked_at = engine.state.num_skipped_again = 0


@part
def has_next(engine: Engine) -> bool:
    """Tell whether the pass has another sequence to visit."""
    state = engine.state
    return state.num_looked_at < state.num_skipped or state.num_queued > 0


@part
def next_in_pass(engine: Engine) -> Sequence:
    """Return the sequence that comes next in the pass, without removing it. `has_next` must be true."""
    state = engine.state
    if state.num_looked_at == state.num_skipped:
        return peek(engine)
    skipped = engine.skipped[state.num_looked_at]
    head_may_go_first = engine.settings.by_priority and not engine.settings.skipped_keep_places
    if head_may_go_first and state.num_queued > 0 and _goes_before(engine, engine.lines[0].heap, skipped):
        return peek(engine)
    return engine.sequences[skipped]


@part
def pop(engine: Engine, sequence: Sequence) -> None:
    """Remove the sequence that the pass visits from the waiting sequences, because it is admitted."""
    engine.state.num_waiting -= 1
    _forget_passes(engine, sequence)
    _leave_pass(engine, sequence)


@part
def skip(engine: Engine, sequence: Sequence) -> None:
    """Move the sequence that the pass visits to the skipped sequences of this pass."""
    state = engine.state
    _leave_pass(engine, sequence)
    # The second half of the list: the first half may still hold sequences of earlier passes that were not visited.
    engine.skipped[len(engine.skipped) // 2 + state.num_skipped_again] = sequence.number
    sequence.is_skipped = True
    state.num_skipped_again += 1
    if not sequence.was_passed_over:
        sequence.was_passed_over = True
        state.num_passed_over += 1


@part
def end_pass(engine: Engine) -> None:
    """End a pass. The sequences that it skipped now come first among the skipped ones, followed by those that it did
    not visit.

    With `skipped_keep_places`, the sequences that the pass skipped return to the queue instead, unless they load or
    hold blocks. Those left are then in order of priority, if there are priorities.
    """
    state, half = engine.state, len(engine.skipped) // 2
    if state.num_looked_at == 0 and state.num_skipped_again == 0:
        return
    if engine.settings.skipped_keep_places:
        _put_back(engine)
    for index in range(state.num_looked_at, state.num_skipped):
        engine.skipped[half + state.num_skipped_again] = engine.skipped[index]
        state.num_skipped_again += 1
    state.num_skipped = state.num_skipped_again
    for index in range(state.num_skipped):
        engine.skipped[index] = engine.skipped[half + index]
        if engine.settings.by_priority and engine.settings.skipped_keep_places:
            _sort_in(engine, index)
    state.num_looked_at = state.num_skipped_again = 0


@part
def _put_back(engine: Engine) -> None:
    """Return the sequences that this pass skipped to the front of the queue, unless they load or hold blocks."""
    state, half = engine.state, len(engine.skipped) // 2
    for index in range(state.num_skipped_again - 1, -1, -1):
        sequence = engine.sequences[engine.skipped[half + index]]
        if sequence.status != LOADING and sequence.computed == 0:
            sequence.is_skipped = False
            state.num_waiting -= 1
            push_again(engine, sequence)
    kept = 0
    for index in range(state.num_skipped_again):
        number = engine.skipped[half + index]
        if engine.sequences[number].is_skipped:
            engine.skipped[half + kept] = number
            kept += 1
    state.num_skipped_again = kept


@part
def _sort_in(engine: Engine, index: int) -> None:
    number = engine.skipped[index]
    while index > 0 and _goes_before(engine, number, engine.skipped[index - 1]):
        engine.skipped[index] = engine.skipped[index - 1]
        index -= 1
    engine.skipped[index] = number


@part
def is_more_important(engine: Engine, first: Sequence, second: Sequence) -> bool:
    """Tell whether `first` goes before `second`: its priority is smaller, or equal and it arrived earlier. Arrivals at
    the same time are in the order in which the engine got the requests.
    """
    if first.priority != second.priority:
        return first.priority < second.priority
    one, other = engine.times[first.number], engine.times[second.number]
    return one.arrival_seq < other.arrival_seq if one.arrival_s == other.arrival_s else one.arrival_s < other.arrival_s


def in_order(engine: Engine) -> list[int]:
    """Return the numbers of the queued sequences, the head of the queue first."""
    if engine.settings.by_priority:
        heap = [int(engine.lines[index].heap) for index in range(engine.state.num_queued)]

        def compare(number: int, other: int) -> int:
            return -1 if _goes_before(engine, number, other) else 1

        return sorted(heap, key=cmp_to_key(compare))
    queue, number = [], int(engine.sequences[HEAD].next)
    while number != HEAD:
        queue.append(number)
        number = int(engine.sequences[number].next)
    return queue


@part
def _forget_passes(engine: Engine, sequence: Sequence) -> None:
    """Reset `was_passed_over` of a sequence that stops waiting, and no longer count it in `State.num_passed_over`."""
    if sequence.was_passed_over:
        sequence.was_passed_over = False
        engine.state.num_passed_over -= 1


@part
def _leave_pass(engine: Engine, sequence: Sequence) -> None:
    if sequence.is_skipped:
        engine.state.num_looked_at += 1
        sequence.is_skipped = False
    else:
        _unlink(engine, sequence)


@part
def _unlink(engine: Engine, sequence: Sequence) -> None:
    state = engine.state
    assert state.num_queued > 0
    state.num_queued -= 1
    if not engine.settings.by_priority:
        linked_list.remove(engine.sequences, sequence.number)
        return
    index = 0
    while engine.lines[index].heap != sequence.number:
        index += 1
    # The last sequence of the heap fills the gap, and moves down or up from there.
    last = engine.lines[state.num_queued].heap
    if last != sequence.number:
        _sift_up(engine, last, _sift_down(engine, last, index))


@part
def _sift_up(engine: Engine, number: int, index: int) -> None:
    """Insert sequence `number` into the heap, from the empty entry `index` up to where its parent comes first."""
    heap = engine.lines
    while index > 0 and _goes_before(engine, number, heap[(index - 1) // 2].heap):
        heap[index].heap = heap[(index - 1) // 2].heap
        index = (index - 1) // 2
    heap[index].heap = number


@part
def _sift_down(engine: Engine, number: int, index: int) -> int:
    """Move the heap's empty entry `index` down past children that precede `number`; return its new index."""
    heap, size = engine.lines, engine.state.num_queued
    while 2 * index + 1 < size:
        child = 2 * index + 1
        if child + 1 < size and _goes_before(engine, heap[child + 1].heap, heap[child].heap):
            child += 1
        if not _goes_before(engine, heap[child].heap, number):
            break
        heap[index].heap = heap[child].heap
        index = child
    return index


@part
def _goes_before(engine: Engine, number: int, other: int) -> bool:
    """Tell whether sequence `number` precedes sequence `other` in the heap. The order of the workload breaks ties."""
    first, second = engine.sequences[number], engine.sequences[other]
    if is_more_important(engine, first, second):
        return True
    return number < other and not is_more_important(engine, second, first)
