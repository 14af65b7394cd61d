"""Search for the changes with which a load fits, by simulations on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import sqrt
from typing import TYPE_CHECKING, Any

from kvsim.experiments.workers import check_number_of_jobs, workers
from kvsim.fitting.changes import changes
from kvsim.fitting.largest import Largest, largest_load
from kvsim.fitting.outcome import Outcome, evaluate
from kvsim.fitting.server_change import ServerChange
from kvsim.machines import interval_in
from kvsim.machines.known_errors import PREEMPTIONS
from kvsim.setting_fields import check_progress
from kvsim.simulation.modes import engine_for_several

if TYPE_CHECKING:
    from kvsim.engine.memory import MemoryManager
    from kvsim.fitting.goal import Goal
    from kvsim.fitting.offered_load import Load
    from kvsim.fitting.searched_server import SearchedServer
    from kvsim.simulation import EngineName

Progress = Callable[[int, int], None]
_SPREAD = 2.0
"""Half width of a prediction interval that contains four of five predictions, divided by the typical error."""
_FIGURES = {
    "output_tokens_per_s": "throughput",
    "ttft_p99_s": "ttft_p99",
    "tpot_p99_s": "tpot_p99",
    "preemptions_per_min": PREEMPTIONS,
}
"""Key of a figure in the table of known errors, by the name of the figure in `Outcome`."""
_RERUN = 2.3
"""Half width of the 80 % interval of the number of preemptions in repeated runs, divided by this number's square root.

Runs of the same load on two machines had 44, 52, 52 and 75 preemptions.
"""
_EQUAL_RATIO = 0.98
"""Smallest ratio of the smaller to the larger of two figures that count as equal."""
_NEARER = 0.95
"""Largest ratio of the new shortfall to the old one with which a change counts as helpful."""
_SOONER = 0.8
"""Largest ratio of the new mean end-to-end time to the old one with which a change counts as faster."""
_SHOWN = 6
RUNS_OF_LARGEST_LOAD = 40
"""Estimated number of simulations in the search for the largest load of a server, without those of the changes."""
_WORTH_COMPILING = 2_000_000
"""Number of output tokens, in all simulations together, from which on compiling saves time.

Simulations with this number of tokens take half a minute without compiled code.
"""

_MOST_SERVER_REQUESTS = 3_000_000
"""Limit for the sum, over all runs of a fit, of servers times requests; it takes about a minute on two cores."""
_MOST_RANK_STEPS = 250_000
"""Largest number of steps of ranks that wait for each other, over all ranks and runs of a fit.

It takes about a minute on two cores. The simulation's clock stops at each of these steps, so they take much longer than
the steps of separate servers.
"""
MOST_TOKENS_OF_SPLITS = 500_000
"""Largest number of output tokens of a load for which splits into prefill and decode servers are tried.

Such servers take about ten times as long to simulate.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Change of the server, and the simulated outcome of the load after this change."""

    change: ServerChange
    outcome: Outcome
    fits: bool
    shortfall: float
    band: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Prediction interval (low, high) of each figure, by the names in `figures_of`; empty if none was computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Way to run the simulations of a search: number of processes, engine, and a function that reports progress."""

    num_jobs: int = 1
    """Number of processes; -1 for one per core."""
    engine: EngineName = "auto"
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_number_of_jobs(self.num_jobs)
        check_progress(self.progress)

    def results(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return the results of `tasks` in order. Up to `num_jobs` processes run them; one job means this process.

        Raises:
            WorkerDiedError: a process died.
        """
        jobs = min((os.cpu_count() or 1) if self.num_jobs == -1 else self.num_jobs, len(tasks))
        by_key = {str(nth): (None, task) for nth, task in enumerate(tasks)}
        with workers("loky", num_jobs=max(jobs, 1)) as found:
            return self._collected(by_key, found.results(_done, by_key))

    def _collected(self, keys: Collection[str], returned: Iterable[tuple[str, Any]]) -> list[Any]:
        found = {}
        for key, result in returned:
            found[key] = result
            if self.progress is not None:
                self.progress(len(found), len(keys))
        return [found[key] for key in keys]

    def outcomes(self, points: Sequence[tuple[SearchedServer, Load, float]]) -> list[Outcome]:
        """Return the outcome of each point: a server, a load, and a factor on the GPU times."""
        return self.results([self._task(*point) for point in points])

    def _task(self, server: SearchedServer, load: Load, pace: float = 1.0) -> Callable[[], Outcome]:
        return partial(evaluate, server, load, engine=self.engine, pace=pace)

    def remedies(
        self, server: SearchedServer, load: Load, goal: Goal, *, longest_tokens: int, most: int = 60
    ) -> list[Remedy]:
        """Simulate at most `most` changes of `server`. They are returned in the order of `changes`."""
        return self.survey(server, load, goal, longest_tokens=longest_tokens, most=most, find_largest=False)[1]

    def survey(
        self, server: SearchedServer, load: Load, goal: Goal, *, longest_tokens: int, most: int, find_largest: bool
    ) -> tuple[Largest | None, list[Remedy]]:
        """Find the largest load that fits `server`, and simulate at most `most` changes of it, in parallel.

        Without `find_largest`, the first result is None.
        """
        candidates = [
            each
            for each in changes(server, longest_tokens=longest_tokens, most=most)
            if each.server.apart is None or splits_are_tried(server, load)
        ]
        largest = partial(largest_load, server, load, goal, engine=self.engine)
        tasks: list[Callable[[], Any]] = [largest] if find_largest else []
        results = self.results([*tasks, *(self._task(each.server, load) for each in candidates)])
        remedies = [
            Remedy(change=change, outcome=outcome, fits=goal.is_met(outcome), shortfall=goal.shortfall(outcome))
            for change, outcome in zip(candidates, results[len(tasks) :], strict=True)
        ]
        return results[0] if find_largest else None, remedies

    def with_bands(
        self, remedies: Sequence[Remedy], load: Load, least: Mapping[str, float] | None = None
    ) -> list[Remedy]:
        """Return `remedies` with their prediction intervals, which need simulations with longer and shorter step times.

        `least` is the minimum relative error of each figure, by the names in `figures_of`; None: no minimum.
        """
        points = [_moved(each.change.server, load, each.outcome) for each in remedies]
        moved = iter(self.outcomes([point for both in points for point in both]))
        return [
            replace(remedy, band=band_of(remedy.outcome, [next(moved) for _ in both], least))
            for remedy, both in zip(remedies, points, strict=True)
        ]

    def band(
        self, server: SearchedServer, load: Load, outcome: Outcome, least: Mapping[str, float] | None = None
    ) -> dict[str, tuple[float, float]]:
        """Return the prediction interval of each figure of `outcome`, by name; empty if `outcome` has an error.

        `least` is as in `with_bands`.
        """
        return {} if outcome.error else band_of(outcome, self.outcomes(_moved(server, load, outcome)), least)


def _done(_: None, task: Callable[[], Any]) -> Any:
    return task()


def splits_are_tried(server: SearchedServer, load: Load) -> bool:
    """Tell whether splits into prefill and decode servers are tried: `server` is split already, or `load` is short."""
    return server.apart is not None or int(load.workload.output_tokens.sum()) <= MOST_TOKENS_OF_SPLITS


def affordable(server: SearchedServer, before: Outcome, most: int, *, find_largest: bool) -> tuple[int, bool]:
    """Return how many of `most` changes to simulate, and whether to search for the largest load.

    The runs should take about a minute. Only runs of several replicas, and of ranks that share experts, are limited.
    `before` is the outcome of one run.
    """
    num_runs = most + RUNS_OF_LARGEST_LOAD
    if server.replicas > 1:
        num_runs = min(num_runs, _MOST_SERVER_REQUESTS // max(server.replicas * before.num_requests, 1))
    if server.model.divides_experts_among_ranks and not before.error:
        step_s = before.tpot_s.mean if before.tpot_s.mean > 0 else before.e2e_s.mean  # no TPOT of single tokens
        num_steps = server.replicas * server.model.data_parallel_size * before.duration_s / step_s
        num_runs = min(num_runs, int(_MOST_RANK_STEPS / max(num_steps, 1.0)))
    return (most, find_largest) if num_runs == most + RUNS_OF_LARGEST_LOAD else (min(most, num_runs), False)


def ranked(remedies: Sequence[Remedy]) -> list[Remedy]:
    """Sort remedies: first those that make the load fit, cheapest first, then all others by their shortfall.

    Of several changes of the same fields, such as two values of `max_num_seqs`, only the best is kept. A pair of
    changes is left out if one of the two alone has the same effect.
    """
    best: dict[tuple[str, ...], Remedy] = {}
    for remedy in sorted(remedies, key=_order):
        best.setdefault(tuple(sorted(remedy.change.fields)), remedy)
    found = list(best.values())
    return [each for each in found if not any(_does_as_much(other, each) for other in found)]


def _does_as_much(smaller: Remedy, larger: Remedy) -> bool:
    """Tell whether the change `smaller` is a part of the change `larger` and almost as good."""
    if not set(smaller.change.fields) < set(larger.change.fields) or smaller.outcome.error:
        return False
    if smaller.fits != larger.fits:
        return smaller.fits
    less = smaller.outcome.output_tokens_per_s < _EQUAL_RATIO * larger.outcome.output_tokens_per_s
    return not less and _EQUAL_RATIO * smaller.shortfall <= larger.shortfall


def _order(remedy: Remedy) -> tuple[Any, ...]:
    change, mean_s = remedy.change, remedy.outcome.e2e_s.mean
    faster = mean_s if mean_s == mean_s else 0.0  # in a closed loop, faster answers mean more output
    if remedy.fits:
        return (False, change.kind, change.server.num_gpus, len(change.fields), faster)
    return (True, remedy.shortfall, change.kind, len(change.fields), faster)


def helpful(remedies: Sequence[Remedy], before: Outcome, goal: Goal) -> list[Remedy]:
    """Return the remedies with a clearly smaller shortfall than `before`, best first, at most `_SHOWN`.

    If the load fits already, return those with more output or much shorter end-to-end times.
    """
    lacks = goal.shortfall(before)

    def helps(remedy: Remedy) -> bool:
        if remedy.outcome.error:
            return False
        if lacks:
            return remedy.fits or remedy.shortfall < _NEARER * lacks
        more = _EQUAL_RATIO * remedy.outcome.output_tokens_per_s > before.output_tokens_per_s
        return remedy.fits and (more or remedy.outcome.e2e_s.mean < _SOONER * before.e2e_s.mean)

    return [each for each in ranked(remedies) if helps(each)][:_SHOWN]


def without_gain(remedies: Sequence[Remedy], shown: Sequence[Remedy]) -> list[Remedy]:
    """Return the changes to report as without effect, in the order of `remedies`: of each setting that no change in
    `shown` has, the best change of this setting alone. Changes with an error are left out.
    """
    helping = {field for each in shown for field in each.change.fields}
    single = [each for each in remedies if len(each.change.fields) == 1 and not helping & set(each.change.fields)]
    best = {each.change.fields: each for each in sorted(single, key=_order, reverse=True) if not each.outcome.error}
    return [each for each in single if best.get(each.change.fields) is each]


def figures_of(outcome: Outcome) -> dict[str, float]:
    """Return the figures of an outcome that have a prediction interval, by name."""
    return {
        "output_tokens_per_s": outcome.output_tokens_per_s,
        "ttft_p99_s": outcome.ttft_s.p99,
        "tpot_p99_s": outcome.tpot_s.p99,
        "preemptions_per_min": outcome.preemptions_per_min,
    }


def spread_of(label: str) -> dict[str, float]:
    """Return half the width of the 80 % interval of each figure, as a share of the figure.

    The keys are names of the table of known errors. `label` is that of the step times. The result is empty if their
    error was never measured.
    """
    known = interval_in(label)
    return {} if known is None else {name: _SPREAD * percent / 100 for name, percent in known.median.items()}


def _moved(server: SearchedServer, load: Load, outcome: Outcome) -> list[tuple[SearchedServer, Load, float]]:
    """Return two points for `Search.outcomes`, with step times longer and shorter by their known error.

    The list is empty if no error is known.
    """
    if (away := spread_of(outcome.label).get("tpot")) is None:
        return []
    return [(server, load, 1 + away), (server, load, max(1 - away, 0.1))]


def band_of(
    outcome: Outcome, moved: Sequence[Outcome], least: Mapping[str, float] | None = None
) -> dict[str, tuple[float, float]]:
    """Return the prediction interval (low, high) of each figure with a known error, by the names in `figures_of`.

    The interval contains the figure in `outcome` plus and minus its known error. It also contains the figures in
    `moved`, which are outcomes with longer and shorter step times. `least` is as in `Search.with_bands`.
    """
    spread = spread_of(outcome.label)
    found = {}
    for name, value in figures_of(outcome).items():
        if _FIGURES[name] not in spread:
            continue
        away = max(spread[_FIGURES[name]], (least or {}).get(name, 0.0))
        if _FIGURES[name] == PREEMPTIONS and outcome.num_preemptions:
            away = max(away, _RERUN / sqrt(outcome.num_preemptions))
        values = [value, value * max(1 - away, 0.0), value * (1 + away)]
        values += [figures_of(each)[name] for each in moved if not each.error]
        known = [each for each in values if each == each]
        if known:
            found[name] = (min(known), max(known))
    return found


def engine_for(load: Load, num_points: int, memory: MemoryManager, num_servers: int = 1) -> EngineName:
    """Return the engine for `num_points` runs of `load` on `num_servers` servers with this kind of `memory`.

    For long runs, it is "compiled", unless machine code exists already or numba is not installed. Otherwise it is
    "auto", so that each run chooses its engine.
    """
    is_long = num_servers * num_points * int(load.workload.output_tokens.sum()) >= _WORTH_COMPILING
    return engine_for_several(memory) if is_long else "auto"
