"""Where calls are made at once: in processes of this machine, or on a Dask or Ray cluster.

Results come as they are done, in whatever order. A worker that dies takes its call with it and nothing else.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from threading import Thread
from typing import Any, Literal, TypeVar

from kvsim.errors import MissingExtraError, UsageError, WorkerDiedError

Backend = Literal["loky", "dask", "ray"]
Task = TypeVar("Task")
Result = TypeVar("Result")

_WATCH_S = 1.0
"""Seconds after which a worker looks again whether the process that started it is still there."""
_DEATHS = ("TerminatedWorkerError", "KilledWorker", "WorkerCrashedError", "OutOfMemoryError")
"""Names of the errors that joblib, Dask and Ray raise when a worker has died; the latter two are not installed
everywhere.
"""


def results(
    call: Callable[[Task], Result], tasks: Mapping[str, Task], *, num_jobs: int, backend: Backend
) -> Iterator[tuple[str, Result]]:
    """Call `call` for each of `tasks`, inside `cluster`, and yield each one's key and what came back as it is done.

    Args:
        call: what is called; it is sent to other processes, as the tasks are.
        tasks: its argument, by key.
        num_jobs: calls at a time; -1 for as many as there are cores.
        backend: where.

    Raises:
        WorkerDiedError: a worker died.
    """
    found = _on_ray(call, tasks, num_jobs) if backend == "ray" else _on_joblib(call, tasks, num_jobs)
    try:
        yield from found
    except Exception as error:
        if type(error).__name__ in _DEATHS:
            raise WorkerDiedError(
                "a process that simulated a part of this was killed, which a machine does when its memory is full; "
                "fewer at a time (--jobs) need less of it."
            ) from error
        raise


@contextmanager
def cluster(backend: Backend, scheduler: str) -> Iterator[None]:
    """Have the workers of `backend` while this is open; `scheduler` is where a cluster listens, if it is not started
    here.

    Raises:
        UsageError: no cluster answers there. MissingExtraError: the backend is not installed.
    """
    from joblib import parallel_config  # noqa: PLC0415  half of what the command line takes to start

    if backend == "loky":
        if scheduler:
            raise UsageError("a scheduler is the address of a cluster; say which kind it is: --backend dask or ray.")
        with warnings.catch_warnings(), parallel_config(backend="loky", initializer=_end_with, initargs=(os.getpid(),)):
            # A worker that had nothing to do for long, or grew, is replaced; that is nothing to tell.
            warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
            yield
        return
    try:
        client = _dask_client(scheduler) if backend == "dask" else _ray_client(scheduler)
    except ImportError as error:
        raise MissingExtraError(f"the backend {backend}", "cluster") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"no {backend} cluster answers at {scheduler!r}: {error}.") from error
    if backend == "ray":
        with client:
            yield
    else:
        with client, parallel_config(backend="dask"):
            yield


def _keyed(call: Callable[[Task], Result], key: str, task: Task) -> tuple[str, Result]:
    return key, call(task)


def _on_joblib(
    call: Callable[[Task], Result], tasks: Mapping[str, Task], num_jobs: int
) -> Iterator[tuple[str, Result]]:
    from joblib import Parallel, delayed, effective_n_jobs  # noqa: PLC0415

    # joblib starts all workers at once, whether there is work for each or not.
    at_a_time = max(1, min(effective_n_jobs(num_jobs), len(tasks)))
    # With one job, joblib would compute in this process, and die with it: one of two workers gets it.
    num_workers, num_sent = (2, 1) if at_a_time == 1 else (at_a_time, "n_jobs")
    parallel = Parallel(n_jobs=num_workers, return_as="generator_unordered", pre_dispatch=num_sent)
    yield from parallel(delayed(_keyed)(call, key, task) for key, task in tasks.items())


def _on_ray(call: Callable[[Task], Result], tasks: Mapping[str, Task], num_jobs: int) -> Iterator[tuple[str, Result]]:
    """Ray's backend for joblib gives results back only when all are done, so it is asked itself."""
    import ray  # noqa: PLC0415

    remote = ray.remote(max_retries=0)(_keyed)
    most = num_jobs if num_jobs > 0 else max(1, int(ray.cluster_resources().get("CPU", 1)))
    to_send, under_way = iter(tasks.items()), list[Any]()
    while True:
        for key, task in to_send:
            under_way.append(remote.remote(call, key, task))
            if len(under_way) >= most:
                break
        if not under_way:
            return
        [done], under_way = ray.wait(under_way)
        yield ray.get(done)


def _end_with(parent: int) -> None:
    """Let this process end soon after its parent, which may be killed and then says nothing to its workers: not to
    those that compute, nor to those that have not begun or wait for more.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def _dask_client(scheduler: str) -> AbstractContextManager[Any]:
    from distributed import Client  # noqa: PLC0415

    make: Callable[..., AbstractContextManager[Any]] = Client
    return make(scheduler or None, set_as_default=True)


def _ray_client(scheduler: str) -> AbstractContextManager[Any]:
    import ray  # noqa: PLC0415

    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    client: AbstractContextManager[Any] = ray.init(address=scheduler or None, **quiet)
    return client
