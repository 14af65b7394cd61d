"""Batches of calls for worker processes, because sending a single call would take as long as a short simulation."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

Result = TypeVar("Result")

_BATCH_S = 0.5
"""Target duration of a batch in seconds. If a worker dies, this much work is lost."""


class Batches:
    """Queue of tasks that were not sent yet, from which batches are taken. A task is the two arguments of a call.

    The first batches have one task each. Once the mean time of a task is known, a batch takes about `_BATCH_S`. Batches
    shrink towards the end, so that all workers end at about the same time.
    """

    def __init__(self, tasks: Mapping[str, tuple[Any, Any]], num_workers: int) -> None:
        """Queue all tasks. `tasks` has the two arguments of each call, by key."""
        self._left = deque(tasks.items())
        self._num_workers = num_workers
        self._num_made, self._took_s = 0, 0.0
        self.under_way = set[str]()
        """Keys of the tasks that were sent and whose results have not arrived yet."""

    def shared(self) -> Iterator[tuple[int, Any]]:
        """Yield the `id` and the value of each first argument that several tasks have, which a cluster gets once."""
        by_id = [(id(common), common) for _, (common, _) in self._left]
        times = Counter(number for number, _ in by_id)
        yield from ((number, common) for number, common in dict(by_id).items() if times[number] > 1)

    def take(self, most: int) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield at most `most` batches, fewer if no tasks are left. All tasks of a batch have the same first argument.

        Each batch is a pair: this first argument, and the second arguments by the key of their tasks.
        """
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

    def add_results(self, made: Sequence[tuple[str, Any]], took_s: float) -> None:
        """Record the results of a batch, as pairs of key and result, and the seconds that the batch took."""
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
    """Make the calls of a batch in a worker process. Return pairs of key and result, and the seconds that they took.

    `common` is the first argument of all calls, and `second` has the second arguments by key.
    """
    begin_s = time.perf_counter()
    made = [(key, call(common, argument)) for key, argument in second.items()]
    return made, time.perf_counter() - begin_s
