"""Run calls on a Ray cluster."""

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
"""Maximum number of seconds in which a cluster must accept a connection."""


@contextmanager
def ray_workers(scheduler: str, num_jobs: int) -> Iterator[RayWorkers]:
    """Yield workers on the Ray cluster at address `scheduler`; if it is empty, start a cluster on this machine.

    `num_jobs` is the largest number of workers, and the number of cores of a cluster that is started. If it is below 1,
    each core of the cluster may have a worker.
    """
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if scheduler:
        _check_listens(scheduler)
        cluster = ray.init(address=scheduler, **quiet)
    else:
        with interrupted_later():
            cluster = ray.init(num_cpus=num_jobs if num_jobs > 0 else None, include_dashboard=False, **quiet)
    with cluster:
        yield RayWorkers(num_jobs if num_jobs > 0 else max(1, int(ray.cluster_resources().get("CPU", 1))))


def _check_listens(address: str) -> None:
    """Check that a server listens at `address`, because Ray would try to connect for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()


class RayWorkers:
    """Workers that are actors of a Ray cluster.

    An actor has a process, which imports kvsim once. With Ray's tasks instead, each call would first have to find one.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def results(
        self, call: Callable[[Any, Any], Result], tasks: Mapping[str, tuple[Any, Any]]
    ) -> Generator[tuple[str, Result], None, None]:
        """Send batches of calls to the actors, and yield results as batches end; see `Workers.results`."""
        number = min(self._number, len(tasks))
        batches = Batches(tasks, number)
        shared = {number: ray.put(value) for number, value in batches.shared()}
        to_call, kind = ray.put(call), ray.remote(num_cpus=1)(_Worker)
        under_way: dict[Any, Any] = {}

        def send(worker: Any, most: int) -> None:
            for common, own in batches.take(most):
                under_way[worker.make.remote(to_call, shared.get(id(common), common), own)] = worker

        for worker in [kind.remote() for _ in range(number)]:
            send(worker, 2)  # one batch to run, and the next one waiting
        while under_way:
            [done], _ = ray.wait(list(under_way))
            try:
                made, took_s = ray.get(done)
            except (ActorDiedError, OutOfMemoryError) as error:
                raise WorkerDiedError(batches.under_way) from error
            batches.add_results(made, took_s)
            send(under_way.pop(done), 1)
            yield from made


class _Worker:
    def make(
        self, call: Callable[[Any, Any], Result], common: Any, own: Mapping[str, Any]
    ) -> tuple[list[tuple[str, Result]], float]:
        return make_batch(call, common, own)
