"""Run calls in processes of this machine, with joblib."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import Any, TypeVar

from joblib import Parallel, delayed, effective_n_jobs, parallel_config
from joblib.externals.loky.process_executor import TerminatedWorkerError

from kvsim.errors import WorkerDiedError
from kvsim.experiments.batches import Batches, make_batch

Result = TypeVar("Result")

_WATCH_S = 1.0
"""Seconds between two checks of a worker process that its parent process still exists."""


@contextmanager
def loky_workers(num_jobs: int) -> Iterator[LokyWorkers]:
    """Yield up to `num_jobs` processes, started on demand; -1 for one per core."""
    with warnings.catch_warnings(), parallel_config(backend="loky", initializer=_begin, initargs=(os.getpid(),)):
        # An idle or large worker is replaced, which is harmless.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
        # For calls still running when their results are no longer needed.
        warnings.filterwarnings("ignore", r"\d+ tasks ", UserWarning)
        yield LokyWorkers(num_jobs)


class LokyWorkers:
    """Workers that are processes of this machine. Large arrays are sent once, in a memory-mapped file."""

    def __init__(self, num_jobs: int) -> None:
        self._num_jobs = num_jobs

    def results(
        self, call: Callable[[Any, Any], Result], tasks: Mapping[str, tuple[Any, Any]]
    ) -> Generator[tuple[str, Result], None, None]:
        """Send batches of calls to the processes, and yield results as batches end; see `Workers.results`."""
        # joblib starts all workers at once, even without work for each.
        at_a_time = max(1, min(effective_n_jobs(self._num_jobs), len(tasks)))
        # With one job, joblib would compute in this process; with two workers and one call sent, it does not.
        num_workers, num_sent = (2, 1) if at_a_time == 1 else (at_a_time, "n_jobs")
        parallel = Parallel(n_jobs=num_workers, return_as="generator_unordered", pre_dispatch=num_sent, batch_size=1)
        batches = Batches(tasks, at_a_time)
        calls = (delayed(make_batch)(call, common, own) for common, own in batches.take(len(tasks)))
        try:
            for made, took_s in parallel(calls):
                batches.add_results(made, took_s)
                yield from made
        except TerminatedWorkerError as error:
            raise WorkerDiedError(batches.under_way) from error


def _begin(parent: int) -> None:
    """Prepare a worker process: ignore Ctrl-C, and end soon after the parent, whose process id is `parent`.

    The parent may be killed without sending a message.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=watch, daemon=True).start()
