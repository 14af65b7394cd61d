"""The line of waiting sequences: first come first served, or by priority."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from kvsim.scheduling.sequence import Sequence
from kvsim.scheduling.settings import Order


class WaitingQueue(Protocol):
    """Who is admitted next."""

    def push(self, sequence: Sequence) -> None:
        """Add a sequence that has arrived."""

    def push_preempted(self, sequence: Sequence) -> None:
        """Add a sequence that was running."""

    def peek(self) -> Sequence:
        """The head, which stays."""

    def pop(self) -> Sequence:
        """The head, which goes."""

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence, wherever it stands."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sequence]: ...


class ArrivalQueue:
    """First come, first served; a preempted sequence goes back to the front."""

    def __init__(self) -> None:
        self._line: deque[Sequence] = deque()
        self.push = self._line.append
        self.push_preempted = self._line.appendleft
        self.pop = self._line.popleft
        self.remove = self._line.remove

    def peek(self) -> Sequence:
        """The head, which stays."""
        return self._line[0]

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._line)


class PriorityQueue:
    """Smallest priority first, then earliest arrival; a preempted sequence takes its place again."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int, Sequence]] = []

    def push(self, sequence: Sequence) -> None:
        """Add a sequence that has arrived."""
        heapq.heappush(self._heap, (sequence.priority, sequence.arrival, sequence.row, sequence))

    push_preempted = push

    def peek(self) -> Sequence:
        """The head, which stays."""
        return self._heap[0][-1]

    def pop(self) -> Sequence:
        """The head, which goes."""
        return heapq.heappop(self._heap)[-1]

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence, wherever it stands."""
        self._heap = [entry for entry in self._heap if entry[-1] is not sequence]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Sequence]:
        return (entry[-1] for entry in sorted(self._heap, key=lambda entry: entry[:3]))


def waiting_queue(order: Order) -> WaitingQueue:
    """An empty queue for `order`."""
    return ArrivalQueue() if order is Order.FCFS else PriorityQueue()
