"""Run calls on a Dask cluster."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from distributed import Client, KilledWorker, LocalCluster, as_completed

from kvsim.errors import WorkerDiedError
from kvsim.experiments.batches import Batches, make_batch
from kvsim.experiments.interrupts import interrupted_later

Result = TypeVar("Result")


@contextmanager
def dask_workers(scheduler: str, num_jobs: int) -> Iterator[DaskWorkers]:
    """Yield workers on the Dask cluster at address `scheduler`; if it is empty, start a cluster on this machine.

    `num_jobs` is the number of calls at a time on the cluster at `scheduler`, or the number of processes of a started
    cluster. -1: all threads of the cluster at `scheduler`, or all cores of this machine for a started cluster.
    """
    with ExitStack() as stack:
        if scheduler:
            client = stack.enter_context(Client(scheduler, set_as_default=False))
        else:
            with interrupted_later():
                client = stack.enter_context(Client(stack.enter_context(_local(num_jobs)), set_as_default=False))
        yield DaskWorkers(client, num_jobs if scheduler else -1)


def _local(num_jobs: int) -> LocalCluster:
    # A simulation holds the interpreter's lock, so each process has one thread. Without a dashboard, Dask still opens a
    # port for one, and would warn if another cluster has its default port.
    number = {"n_workers": num_jobs} if num_jobs > 0 else {}
    return LocalCluster(
        threads_per_worker=1,
        dashboard_address=None,
        scheduler_kwargs={"dashboard_address": ":0"},
        silence_logs=logging.CRITICAL,
        **number,
    )


class DaskWorkers:
    """Workers on a Dask cluster. A value that several tasks have as first argument is sent to the cluster once."""

    def __init__(self, client: Client, num_jobs: int) -> None:
        """Use `client` to make up to `num_jobs` calls at a time; -1 for one per thread of the cluster."""
        self._client, self._num_jobs = client, num_jobs

    def results(
        self, call: Callable[[Any, Any], Result], tasks: Mapping[str, tuple[Any, Any]]
    ) -> Generator[tuple[str, Result], None, None]:
        """Send batches of calls as Dask tasks, and yield results as batches end; see `Workers.results`."""
        client, num_threads = self._client, sum(self._client.nthreads().values())
        batches = Batches(tasks, num_threads)
        shared = {number: self._held(value) for number, value in batches.shared()}

        def sent(most: int) -> list[Any]:
            return [
                client.submit(make_batch, call, shared.get(id(common), common), own, pure=False)
                for common, own in batches.take(most)
            ]

        # Each thread has its next batch waiting.
        under_way = as_completed(sent(self._num_jobs if self._num_jobs > 0 else 2 * num_threads), loop=client.loop)
        for done in under_way:
            try:
                made, took_s = done.result()
            except KilledWorker as error:
                raise WorkerDiedError(batches.under_way) from error
            batches.add_results(made, took_s)
            under_way.update(sent(1))
            yield from made

    def _held(self, value: Any) -> Any:
        """Return a future with `value` that the cluster can make again if the worker that holds it dies."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
            return self._client.submit(_given, value, pure=False)


def _given(value: Any) -> Any:
    return value
