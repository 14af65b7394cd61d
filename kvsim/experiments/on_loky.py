"""Processes of this machine, by joblib."""

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
"""Seconds after which a worker looks again whether the process that started it is still there."""


@contextmanager
def loky_workers(num_jobs: int) -> Iterator[LokyWorkers]:
    """Up to `num_jobs` processes, started when there is work; -1 for one for each core."""
    with warnings.catch_warnings(), parallel_config(backend="loky", initializer=_begin, initargs=(os.getpid(),)):
        # A worker that had nothing to do for long, or grew, is replaced; that is nothing to tell.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
        # Of calls that are under way when their results are not wanted any more.
        warnings.filterwarnings("ignore", r"\d+ tasks ", UserWarning)
        yield LokyWorkers(num_jobs)


class LokyWorkers:
    """See `kvsim.experiments.workers.Workers`. Large arrays are handed over once, in a file that all workers map."""

    def __init__(self, num_jobs: int) -> None:
        self._num_jobs = num_jobs

    def results(
        self, call: Callable[[Any, Any], Result], tasks: Mapping[str, tuple[Any, Any]]
    ) -> Generator[tuple[str, Result], None, None]:
        """See `Workers.results`."""
        # joblib starts all workers at once, whether there is work for each or not.
        at_a_time = max(1, min(effective_n_jobs(self._num_jobs), len(tasks)))
        # With one job, joblib would compute in this process, and die with it: one of two workers gets it.
        num_workers, num_sent = (2, 1) if at_a_time == 1 else (at_a_time, "n_jobs")
        parallel = Parallel(n_jobs=num_workers, return_as="generator_unordered", pre_dispatch=num_sent, batch_size=1)
        batches = Batches(tasks, at_a_time)
        calls = (delayed(make_batch)(call, common, own) for common, own in batches.take(len(tasks)))
        try:
            for made, took_s in parallel(calls):
                batches.came_back(made, took_s)
                yield from made
        except TerminatedWorkerError as error:
            raise WorkerDiedError(batches.under_way) from error


def _begin(parent: int) -> None:
    """Let this process end soon after its parent, which may be killed and then says nothing to its workers: not to
    those that compute, nor to those that have not begun or wait for more. Ctrl-C is for the parent to answer.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=watch, daemon=True).start()
