"""Processes that work for another one: as many as there is work for, and none that outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest

from kvsim.errors import WorkerDiedError
from kvsim.experiments.batches import Batches
from kvsim.experiments.workers import workers
from kvsim.fitting import Search
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="children are counted in /proc")


def children_of(_: object, process: int) -> set[int]:
    """The workers that `process` has started; the process of a test has other children, too."""
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    found = {int(child) for task in tasks for child in task.read_text().split()}
    return {child for child in found if b"popen_loky" in Path(f"/proc/{child}/cmdline").read_bytes()}


@pytest.mark.parametrize("num_jobs", [300, -1])
def test_there_are_no_more_workers_than_work(num_jobs: int) -> None:
    parent = os.getpid()
    with workers("loky", num_jobs=num_jobs) as loky:
        found = dict(loky.results(children_of, {"a": (None, parent), "b": (None, parent)}))
    assert found.keys() == {"a", "b"}
    assert all(0 < len(children) <= 2 for children in found.values())


def process_and_sum(common: int, own: int) -> tuple[int, int]:
    return os.getpid(), common + own


def test_one_job_is_done_in_this_process_and_starts_no_other() -> None:
    before = children_of(None, os.getpid())
    tasks = {str(own): (10, own) for own in range(3)}
    with workers("loky", num_jobs=1) as only:
        found = list(only.results(process_and_sum, tasks))
    assert found == [(str(own), (os.getpid(), 10 + own)) for own in range(3)]
    assert children_of(None, os.getpid()) <= before


def test_a_worker_that_is_replaced_is_nothing_to_tell() -> None:
    """joblib warns of it in a thread of its own, where a warning that is an error ends all the work."""
    with workers("loky"):
        warnings.warn("A worker stopped while some jobs were given to the executor.", UserWarning, stacklevel=1)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_search_whose_worker_is_killed_ends_in_a_sentence() -> None:
    with pytest.raises(WorkerDiedError, match="a worker process was killed"):
        Search(num_jobs=2).results([die, partial(int, 1)])
    assert Search(num_jobs=2).results([partial(int, number) for number in range(5)]) == list(range(5))


ENDLESS = """
import time
from kvsim.fitting import Search
Search(num_jobs=2).results([lambda: time.sleep(100)] * 2)
"""


def test_workers_do_not_outlive_a_search_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", ENDLESS]) as process:
        until(lambda: len(children_of(None, process.pid)) == 2, within_s=60)
        children = children_of(None, process.pid)
        process.kill()
    until(lambda: not any(Path(f"/proc/{child}").exists() for child in children), within_s=60)


def test_a_batch_is_as_long_as_its_calls_allow_and_shorter_towards_the_end() -> None:
    one, other = [1], [2]
    tasks = {str(nth): (one if nth < 90 else other, nth) for nth in range(100)}
    batches = Batches(tasks, num_workers=2)
    assert dict(batches.shared()) == {id(one): one, id(other): other}
    sent = list(batches.take(2))
    assert sent == [(one, {"0": 0}), (one, {"1": 1})], "nothing is known of how long they take"
    assert batches.under_way == {"0", "1"}
    batches.add_results([("0", None), ("1", None)], 0.2)
    assert not batches.under_way
    while found := list(batches.take(1)):
        sent += found
    sizes = [len(own) for _, own in sent]
    assert max(sizes) == sizes[2] == 5, "a tenth of a second each"
    assert sizes[-1] == 1
    assert [key for _, own in sent for key in own] == list(tasks)
    assert all(common is (one if number < 90 else other) for common, own in sent for number in own.values())


def test_what_one_call_has_is_not_shared() -> None:
    assert not list(Batches({"a": ([1], 1), "b": ([1], 2)}, num_workers=2).shared())
