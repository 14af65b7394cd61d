"""Batches of calls to worker processes, because sending one call takes as long as a short simulation."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

Result = TypeVar("Result")

_BATCH_S = 0.5
"""Target duration of a batch in seconds; if its worker dies, this much work is lost."""


class Batches:
    """Queue of unsent tasks, divided into batches.

    A task has two arguments for the call. The first batches have one task. Once the mean time of a task is known, a
    batch takes about `_BATCH_S`. Batches shrink towards the end, so that all workers end at about the same time.
    """

    def __init__(self, tasks: Mapping[str, tuple[Any, Any]], num_workers: int) -> None:
        """Start with all tasks, in the form of `kvsim.experiments.workers.Workers.results`."""
        self._left = deque(tasks.items())
        self._num_workers = num_workers
        self._num_made, self._took_s = 0, 0.0
        self.under_way = set[str]()
        """Keys of the tasks that were sent and whose results have not arrived."""

    def shared(self) -> Iterator[tuple[int, Any]]:
        """Yield the `id` and the value of each first argument that several tasks share: a cluster receives it once."""
        by_id = [(id(common), common) for _, (common, _) in self._left]
        times = Counter(number for number, _ in by_id)
        yield from ((number, common) for number, common in dict(by_id).items() if times[number] > 1)

    def take(self, most: int) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield at most `most` batches: the first argument, which its tasks share, and the second arguments by key."""
        for _ in range(most):
            if not self._left:
                return
            _, (common, _) = self._left[0]
            second: dict[str, Any] = {}
            size = self._size()
            while self._left and len(second) < size and self._left[0][1][0] is common:
                key, (_, argument) = self._left.popleft()
                second[key] = argument
            self.under_way.update(second)
            yield common, second

    def came_back(self, made: Sequence[tuple[str, Any]], took_s: float) -> None:
        """Record the results of a batch, by key, and its time in seconds."""
        self.under_way.difference_update(key for key, _ in made)
        self._num_made += len(made)
        self._took_s += took_s

    def _size(self) -> int:
        if not self._took_s:
            return 1
        fair = -(-len(self._left) // (2 * self._num_workers))  # at least two batches for each worker remain
        return max(1, min(fair, int(_BATCH_S * self._num_made / self._took_s)))


def make_batch(
    call: Callable[[Any, Any], Result], common: Any, second: Mapping[str, Any]
) -> tuple[list[tuple[str, Result]], float]:
    """Make the calls of a batch, in a worker process; return the results with their keys, and the seconds they took."""
    begin_s = time.perf_counter()
    made = [(key, call(common, argument)) for key, argument in second.items()]
    return made, time.perf_counter() - begin_s
