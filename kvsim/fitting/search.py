"""Which changes make a load fit, found by simulating them: on all cores, nearest and best first."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import sqrt
from typing import TYPE_CHECKING, Any

from kvsim.engine.kv_cache import PAGED
from kvsim.engine.tiered import TIERED
from kvsim.experiments.workers import workers
from kvsim.fitting.changes import Change, changes
from kvsim.fitting.largest import largest_load
from kvsim.fitting.outcome import Outcome, evaluate
from kvsim.machines import interval_in
from kvsim.machines.errors import PREEMPTIONS
from kvsim.simulation.modes import engine_for_several

if TYPE_CHECKING:
    from kvsim.fitting.goal import Goal
    from kvsim.fitting.load import Load
    from kvsim.fitting.server import Server
    from kvsim.simulation import EngineName

Progress = Callable[[int, int], None]
_SPREAD = 2.0
"""A band is so many typical errors wide to either side: four predictions out of five lie within."""
_FIGURES = {
    "output_tokens_per_s": "throughput",
    "ttft_p99_s": "ttft_p99",
    "tpot_p99_s": "tpot_p99",
    "preemptions_per_min": PREEMPTIONS,
}
"""Figures that have a band, and which known error is theirs."""
_RERUN = 2.3
"""Spread of the number of preemptions, in square roots of it, when an engine serves one load again, four times out of
five: 44, 52, 52 and 75 were recorded on two machines."""
_NOTICED = 0.98
"""A change that brings less than the rest to 1 is not worth making."""
_NEARER = 0.95
"""The most that still lacks after a change that helps, as a share of what lacked before."""
_SOONER = 0.8
"""The most that an answer takes of the time that it took before, where it is said to come sooner."""
_SHOWN = 6
"""Changes that are told of."""
_WORTH_COMPILING = 2_000_000
"""Output tokens over all points from which on machine code pays for being loaded: half a minute of interpreting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change, what the load meets after it, and how sure that is."""

    change: Change
    outcome: Outcome
    fits: bool
    shortfall: float
    band: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Bounds between which each figure is expected; empty where they were not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How outcomes are found: on how many cores, with which engine."""

    num_jobs: int = 1
    """-1: one for each core."""
    engine: EngineName = "auto"
    progress: Progress | None = None

    def results(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """What `tasks` return, in their order; on several cores they are handed to processes.

        Raises:
            WorkerDiedError: one of these died.
        """
        jobs = min((os.cpu_count() or 1) if self.num_jobs == -1 else self.num_jobs, len(tasks))
        by_key = {str(nth): (None, task) for nth, task in enumerate(tasks)}
        if jobs <= 1:
            return self._collected(by_key, ((key, task()) for key, (_, task) in by_key.items()))
        with workers("loky", num_jobs=jobs) as found:
            return self._collected(by_key, found.results(_done, by_key))

    def _collected(self, keys: Collection[str], returned: Iterable[tuple[str, Any]]) -> list[Any]:
        found = {}
        for key, result in returned:
            found[key] = result
            if self.progress is not None:
                self.progress(len(found), len(keys))
        return [found[key] for key in keys]

    def outcomes(self, points: Sequence[tuple[Server, Load, float]]) -> list[Outcome]:
        """What each server does under its load with step times of a pace, in the order of `points`."""
        return self.results([self._task(*point) for point in points])

    def _task(self, server: Server, load: Load, pace: float = 1.0) -> Callable[[], Outcome]:
        return partial(evaluate, server, load, engine=self.engine, pace=pace)

    def remedies(self, server: Server, load: Load, goal: Goal, *, longest_tokens: int, most: int = 60) -> list[Remedy]:
        """All changes of `server`, simulated, in the order of `changes`."""
        return self.survey(server, load, goal, longest_tokens=longest_tokens, most=most, find_largest=False)[1]

    def survey(
        self, server: Server, load: Load, goal: Goal, *, longest_tokens: int, most: int, find_largest: bool
    ) -> tuple[float | None, list[Remedy]]:
        """The largest load that fits `server`, if it is to be found, and all changes of `server`, at the same time."""
        candidates = changes(server, longest_tokens=longest_tokens, most=most)
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
        """`remedies` with the band of each: simulated again with step times as much longer and shorter as those of its
        kind may be.

        `least` is the share of itself by which each figure may be off in any case, by the names in `figures_of`.
        """
        points = [_moved(each.change.server, load, each.outcome) for each in remedies]
        moved = iter(self.outcomes([point for both in points for point in both]))
        return [
            replace(remedy, band=band_of(remedy.outcome, [next(moved) for _ in both], least))
            for remedy, both in zip(remedies, points, strict=True)
        ]

    def band(
        self, server: Server, load: Load, outcome: Outcome, least: Mapping[str, float] | None = None
    ) -> dict[str, tuple[float, float]]:
        """For each figure of one outcome, between which values it is expected; empty where it was not simulated."""
        return {} if outcome.error else band_of(outcome, self.outcomes(_moved(server, load, outcome)), least)


def _done(_: None, task: Callable[[], Any]) -> Any:
    return task()


def ranked(remedies: Sequence[Remedy]) -> list[Remedy]:
    """Remedies in order: those that fit first, the nearest of them first; then the others, by how much they still lack.

    Of changes of the same fields, such as a higher and a highest `max_num_seqs`, the best one stays; and of two changes
    together none that one of them brings as well.
    """
    best: dict[tuple[str, ...], Remedy] = {}
    for remedy in sorted(remedies, key=_order):
        best.setdefault(tuple(sorted(remedy.change.fields)), remedy)
    found = list(best.values())
    return [each for each in found if not any(_does_as_much(other, each) for other in found)]


def _does_as_much(smaller: Remedy, larger: Remedy) -> bool:
    """Whether a part of a change is hardly worse than the whole."""
    if not set(smaller.change.fields) < set(larger.change.fields) or smaller.outcome.error:
        return False
    if smaller.fits != larger.fits:
        return smaller.fits
    less = smaller.outcome.output_tokens_per_s < _NOTICED * larger.outcome.output_tokens_per_s
    return not less and _NOTICED * smaller.shortfall <= larger.shortfall


def _order(remedy: Remedy) -> tuple[Any, ...]:
    change, mean_s = remedy.change, remedy.outcome.e2e_s.mean
    faster = mean_s if mean_s == mean_s else 0.0  # in a closed loop, who answers sooner puts out more
    if remedy.fits:
        return (False, change.kind, change.server.num_gpus, len(change.fields), faster)
    return (True, remedy.shortfall, change.kind, len(change.fields), faster)


def helpful(remedies: Sequence[Remedy], before: Outcome, goal: Goal) -> list[Remedy]:
    """Remedies, best first, that bring the load nearer to fitting than `before`; where that fits already,
    those with more output or with answers that come much sooner.
    """
    lacks = goal.shortfall(before)

    def helps(remedy: Remedy) -> bool:
        if remedy.outcome.error:
            return False
        if lacks:
            return remedy.fits or remedy.shortfall < _NEARER * lacks
        more = _NOTICED * remedy.outcome.output_tokens_per_s > before.output_tokens_per_s
        return remedy.fits and (more or remedy.outcome.e2e_s.mean < _SOONER * before.e2e_s.mean)

    return [each for each in ranked(remedies) if helps(each)][:_SHOWN]


def without_gain(remedies: Sequence[Remedy], shown: Sequence[Remedy]) -> list[Remedy]:
    """The best of `remedies` of each kind of single change that is in none of those `shown`, in the order tried."""
    helping = {field for each in shown for field in each.change.fields}
    single = [each for each in remedies if len(each.change.fields) == 1 and not helping & set(each.change.fields)]
    best = {each.change.fields: each for each in sorted(single, key=_order, reverse=True) if not each.outcome.error}
    return [each for each in single if best.get(each.change.fields) is each]


def figures_of(outcome: Outcome) -> dict[str, float]:
    """The figures that have a band."""
    return {
        "output_tokens_per_s": outcome.output_tokens_per_s,
        "ttft_p99_s": outcome.ttft_s.p99,
        "tpot_p99_s": outcome.tpot_s.p99,
        "preemptions_per_min": outcome.preemptions_per_min,
    }


def spread_of(label: str) -> dict[str, float]:
    """How far off figures are from predictions with such step times, four times out of five, as shares; a figure of
    which that was never measured is left out.
    """
    known = interval_in(label)
    return {} if known is None else {name: _SPREAD * percent / 100 for name, percent in known.median.items()}


def _moved(server: Server, load: Load, outcome: Outcome) -> list[tuple[Server, Load, float]]:
    """The points between which an outcome may lie; none where it was never measured how far off such times are."""
    if (away := spread_of(outcome.label).get("tpot")) is None:
        return []
    return [(server, load, 1 + away), (server, load, max(1 - away, 0.1))]


def band_of(
    outcome: Outcome, moved: Sequence[Outcome], least: Mapping[str, float] | None = None
) -> dict[str, tuple[float, float]]:
    """Between which values each figure is expected: as it moves with the step times, and at least by its own error.

    A figure whose error was never measured has none.
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


def engine_for(load: Load, num_points: int, *, offloads: bool) -> EngineName:
    """Compiled where that pays for so many servers together, with host memory if it `offloads`, numba is there, and
    machine code is not at hand already.
    """
    is_long = num_points * int(load.workload.output_tokens.sum()) >= _WORTH_COMPILING
    return engine_for_several(TIERED if offloads else PAGED) if is_long else "auto"
