"""Workers of a Ray cluster."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorDiedError, OutOfMemoryError

from kvsim.errors import WorkerDiedError
from kvsim.experiments.batches import Batches, make_batch
from kvsim.experiments.interrupts import interrupted_later

Result = TypeVar("Result")

_ANSWER_S = 10.0
"""A cluster accepts a connection within."""


@contextmanager
def ray_workers(scheduler: str, num_jobs: int) -> Iterator[RayWorkers]:
    """The cluster that listens at `scheduler`; or one of this machine, with a core for each of `num_jobs`."""
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if scheduler:
        _knock(scheduler)
        cluster = ray.init(address=scheduler, **quiet)
    else:
        with interrupted_later():
            cluster = ray.init(num_cpus=num_jobs if num_jobs > 0 else None, include_dashboard=False, **quiet)
    with cluster:
        yield RayWorkers(num_jobs if num_jobs > 0 else max(1, int(ray.cluster_resources().get("CPU", 1))))


def _knock(address: str) -> None:
    """Make sure that something listens there: Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()


class RayWorkers:
    """See `kvsim.experiments.workers.Workers`. Each is an actor: its process imports once and waits for the next call,
    where Ray would look for a worker for every task.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def results(
        self, call: Callable[[Any, Any], Result], tasks: Mapping[str, tuple[Any, Any]]
    ) -> Generator[tuple[str, Result], None, None]:
        """See `Workers.results`."""
        number = min(self._number, len(tasks))
        batches = Batches(tasks, number)
        shared = {number: ray.put(value) for number, value in batches.shared()}
        to_call, kind = ray.put(call), ray.remote(num_cpus=1)(_Worker)
        under_way: dict[Any, Any] = {}

        def send(worker: Any, most: int) -> None:
            for common, own in batches.take(most):
                under_way[worker.make.remote(to_call, shared.get(id(common), common), own)] = worker

        for worker in [kind.remote() for _ in range(number)]:
            send(worker, 2)  # beside the batch that it makes stands the one after it
        while under_way:
            [done], _ = ray.wait(list(under_way))
            try:
                made, took_s = ray.get(done)
            except (ActorDiedError, OutOfMemoryError) as error:
                raise WorkerDiedError(batches.under_way) from error
            batches.came_back(made, took_s)
            send(under_way.pop(done), 1)
            yield from made


class _Worker:
    """Makes one batch after the other."""

    def make(
        self, call: Callable[[Any, Any], Result], common: Any, own: Mapping[str, Any]
    ) -> tuple[list[tuple[str, Result]], float]:
        return make_batch(call, common, own)
