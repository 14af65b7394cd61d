"""Group calls into batches: to send a call takes milliseconds, on a cluster ten, as long as a short simulation."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

Result = TypeVar("Result")

_BATCH_S = 0.5
"""Target seconds of a batch: long enough to hide the cost of sending, and short enough to lose little."""


class Batches:
    """Queue of unsent tasks, divided into batches.

    The first batches have one task. Once the time of a task is known, a batch takes about `_BATCH_S`; batches shrink
    towards the end, so that all workers end together.
    """

    def __init__(self, tasks: Mapping[str, tuple[Any, Any]], num_workers: int) -> None:
        """Start with all tasks, in the form of `kvsim.experiments.workers.Workers.results`."""
        self._left = deque(tasks.items())
        self._num_workers = num_workers
        self._num_made, self._took_s = 0, 0.0
        self.under_way = set[str]()
        """Keys of tasks that were sent and have not returned."""

    def shared(self) -> Iterator[tuple[int, Any]]:
        """Yield each first argument used by several tasks, with its `id`."""
        by_id = [(id(common), common) for _, (common, _) in self._left]
        times = Counter(number for number, _ in by_id)
        yield from ((number, common) for number, common in dict(by_id).items() if times[number] > 1)

    def take(self, most: int) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield up to `most` batches: the common argument of the calls, and their own arguments by key."""
        for _ in range(most):
            if not self._left:
                return
            _, (common, _) = self._left[0]
            own: dict[str, Any] = {}
            size = self._size()
            while self._left and len(own) < size and self._left[0][1][0] is common:
                key, (_, argument) = self._left.popleft()
                own[key] = argument
            self.under_way.update(own)
            yield common, own

    def came_back(self, made: Sequence[tuple[str, Any]], took_s: float) -> None:
        """Record the results of a batch, by key, and its time in seconds."""
        self.under_way.difference_update(key for key, _ in made)
        self._num_made += len(made)
        self._took_s += took_s

    def _size(self) -> int:
        fair = -(-len(self._left) // (2 * self._num_workers))
        return max(1, min(fair, int(_BATCH_S * self._num_made / self._took_s))) if self._took_s else 1


def make_batch(
    call: Callable[[Any, Any], Result], common: Any, own: Mapping[str, Any]
) -> tuple[list[tuple[str, Result]], float]:
    """Make the calls of a batch; return their results with keys, and the time in seconds."""
    begin_s = time.perf_counter()
    made = [(key, call(common, argument)) for key, argument in own.items()]
    return made, time.perf_counter() - begin_s
