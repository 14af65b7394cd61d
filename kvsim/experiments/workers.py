"""Interface for calls in parallel, in processes of this machine or on a Dask or Ray cluster.

Results arrive in order of completion. When a worker dies, only the calls that it was making are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Literal, Protocol, TypeVar

from kvsim.errors import MissingExtraError, UsageError, shortened
from kvsim.experiments.interrupts import interrupted_later
from kvsim.setting_fields import is_whole

Backend = Literal["loky", "dask", "ray"]
Result = TypeVar("Result")


class Workers(Protocol):
    """Processes of this machine or of a cluster, to which calls of a Python function are sent."""

    def results(
        self, call: Callable[[Any, Any], Result], tasks: Mapping[str, tuple[Any, Any]]
    ) -> Generator[tuple[str, Result], None, None]:
        """Make `call` with the two arguments of each task. Yield each task's key and result, in order of completion.

        Several tasks may have the same object as first argument, which a cluster receives only once.
        """


class ThisProcess:
    """One worker, which is the process of the caller: it starts nothing, and one call is made after the other."""

    def results(
        self, call: Callable[[Any, Any], Result], tasks: Mapping[str, tuple[Any, Any]]
    ) -> Generator[tuple[str, Result], None, None]:
        """Make the calls in the order of `tasks`; see `Workers.results`."""
        for key, (common, own) in tasks.items():
            yield key, call(common, own)


def check_number_of_jobs(num_jobs: int) -> None:
    """Raise a `UsageError` if `num_jobs` is neither a whole number from 1 on nor -1, which means all cores."""
    if not is_whole(num_jobs) or (num_jobs < 1 and num_jobs != -1):
        raise UsageError(f"num_jobs should be at least 1, or -1 for all cores, not {shortened(num_jobs)}.")


@contextmanager
def workers(backend: Backend, scheduler: str = "", *, num_jobs: int = -1) -> Iterator[Workers]:
    """Yield the workers of `backend`: "loky" for processes of this machine, "dask" or "ray" for a cluster.

    `scheduler` is the address of a Dask or Ray cluster; if it is empty, a cluster is started on this machine.
    `num_jobs` is the number of calls at a time; -1 for all cores, or all workers of the cluster. With "loky" and one
    job, the calls are made in this process.

    Raises:
        MissingExtraError: the library of the backend is not installed.
        UsageError: no cluster answers at `scheduler`, or it is given for "loky".
    """
    if backend == "loky" and scheduler:
        raise UsageError("a scheduler is the address of a cluster; say which kind it is: --backend dask or ray.")
    with ExitStack() as stack:
        try:
            found = stack.enter_context(_opened(backend, scheduler, num_jobs))
        except ImportError as error:
            raise MissingExtraError(f"the backend {backend}", "cluster") from error
        except (OSError, ValueError) as error:
            raise UsageError(f"no {backend} cluster answers at {scheduler!r}: {error}.") from error
        try:
            yield found
        finally:
            with interrupted_later():  # a cluster takes a second or two to end
                stack.close()


def on_all_cores(call: Callable[[Any, int], Result], common: Any, numbers: range) -> Iterator[Result]:
    """Make `call(common, number)` in processes of this machine. Yield the results in the order of `numbers`."""
    made: dict[str, Result] = {}
    with workers("loky") as processes:
        results = processes.results(call, {str(number): (common, number) for number in numbers})
        for number in numbers:
            while str(number) not in made:
                key, result = next(results)
                made[key] = result
            yield made.pop(str(number))


def _opened(backend: Backend, scheduler: str, num_jobs: int) -> AbstractContextManager[Workers]:
    # Each library takes half as long to import as everything else together.
    match backend:
        case "loky" if num_jobs == 1:
            return nullcontext(ThisProcess())
        case "loky":
            from kvsim.experiments.on_loky import loky_workers  # noqa: PLC0415

            return loky_workers(num_jobs)
        case "dask":
            from kvsim.experiments.on_dask import dask_workers  # noqa: PLC0415

            return dask_workers(scheduler, num_jobs)
        case "ray":
            from kvsim.experiments.on_ray import ray_workers  # noqa: PLC0415

            return ray_workers(scheduler, num_jobs)
