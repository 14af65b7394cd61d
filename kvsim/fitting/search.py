"""Which changes make a load fit, found by simulating them: on all cores, nearest and best first."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvsim.fitting.changes import Change, changes
from kvsim.fitting.outcome import Outcome, evaluate
from kvsim.machines import basis_of, known_errors

if TYPE_CHECKING:
    from kvsim.fitting.goal import Goal
    from kvsim.fitting.load import Load
    from kvsim.fitting.server import Server
    from kvsim.simulation import EngineName

Progress = Callable[[int, int], None]
_SPREAD = 2.0
"""A band is so many typical errors wide to either side: four predictions out of five lie within."""
_UNKNOWN_PERCENT = 10.0
"""Typical error that is assumed where none is known."""
_CLOSE = 0.04
"""How closely the largest load is found, as a share of it."""
_MOST_TIMES = 16
"""The largest load is looked for up to so many times the one that was asked for."""
_FIGURES = {
    "output_tokens_per_s": "throughput",
    "ttft_p99_s": "ttft",
    "tpot_p99_s": "tpot",
    "preemptions_per_min": None,
}
"""Figures that have a band, and which known error is theirs."""
_NOTICED = 0.98
"""A change that brings less than the rest to 1 is not worth making."""
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
    """For each figure, between which values it is expected; empty where nobody asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How outcomes are found: on how many cores, with which engine."""

    num_jobs: int = 1
    """-1: one for each core."""
    engine: EngineName = "auto"
    progress: Progress | None = None

    def outcomes(self, points: Sequence[tuple[Server, Load, float]]) -> list[Outcome]:
        """What each server does under its load with step times of a pace, in the order of `points`."""
        report = self.progress or (lambda done, total: None)  # noqa: ARG005
        jobs = min((os.cpu_count() or 1) if self.num_jobs == -1 else self.num_jobs, len(points))
        if jobs <= 1:
            found = []
            for server, load, pace in points:
                found.append(evaluate(server, load, engine=self.engine, pace=pace))
                report(len(found), len(points))
            return found
        from joblib import Parallel, delayed  # noqa: PLC0415  half a second that one point does not need

        found = []
        parallel = Parallel(n_jobs=jobs, return_as="generator")
        for outcome in parallel(
            delayed(evaluate)(server, load, engine=self.engine, pace=pace) for server, load, pace in points
        ):
            found.append(outcome)
            report(len(found), len(points))
        return found

    def remedies(self, server: Server, load: Load, goal: Goal, *, longest_tokens: int, most: int = 60) -> list[Remedy]:
        """All changes of `server`, simulated, in the order of `changes`."""
        candidates = changes(server, longest_tokens=longest_tokens, most=most)
        outcomes = self.outcomes([(each.server, load, 1.0) for each in candidates])
        return [
            Remedy(change=change, outcome=outcome, fits=goal.is_met(outcome), shortfall=goal.shortfall(outcome))
            for change, outcome in zip(candidates, outcomes, strict=True)
        ]

    def with_bands(
        self, remedies: Sequence[Remedy], load: Load, least: Mapping[str, float] | None = None
    ) -> list[Remedy]:
        """`remedies` with the band of each: simulated again with step times as much longer and shorter as those of its
        kind may be.

        `least` is the share of itself by which each figure may be off in any case, by the names in `figures_of`.
        """
        points = [point for each in remedies for point in _moved(each.change.server, load, each.outcome)]
        moved = self.outcomes(points)
        return [
            replace(remedy, band=band_of(remedy.outcome, moved[2 * index : 2 * index + 2], least))
            for index, remedy in enumerate(remedies)
        ]

    def band(
        self, server: Server, load: Load, outcome: Outcome, least: Mapping[str, float] | None = None
    ) -> dict[str, tuple[float, float]]:
        """The same around one outcome; empty where nothing could be simulated."""
        return {} if outcome.error else band_of(outcome, self.outcomes(_moved(server, load, outcome)), least)

    def largest(self, server: Server, load: Load, goal: Goal) -> float | None:
        """The largest load that fits, in users, or in times the arrivals of an open loop; None where not even one user
        or a sixteenth of the arrivals does, infinity where more fits than was looked for."""
        start = float(load.users or 1)
        scale = Scale(load)

        def fits(size: float) -> bool:
            return goal.is_met(evaluate(server, scale.at(size), engine=self.engine))

        if fits(start):
            low, high = start, 2 * start
            while fits(high):
                low, high = high, 2 * high
                if high > _MOST_TIMES * start:
                    return float("inf")
        else:
            high, low = start, start / 2
            while not fits(low):
                high, low = low, low / 2
                if low < (1 if load.users else 1 / _MOST_TIMES):
                    return None
        while high - low > max(_CLOSE * high, 1.0 if load.users else 0.0):
            middle = round((low + high) / 2) if load.users else (low + high) / 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low


@dataclass(frozen=True, slots=True)
class Scale:
    """A load, larger or smaller."""

    load: Load

    def at(self, size: float) -> Load:
        """The load of `size` users, or with arrivals `size` times as fast."""
        return self.load.of_users(max(round(size), 1)) if self.load.users else self.load.at_rate(size)


def ranked(remedies: Sequence[Remedy]) -> list[Remedy]:
    """Those that fit first, the nearest of them first; then the others, by how much they still lack.

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
    change, tokens_per_s = remedy.change, remedy.outcome.output_tokens_per_s
    faster = -tokens_per_s if tokens_per_s == tokens_per_s else 0.0
    if remedy.fits:
        return (False, change.kind, change.server.num_gpus, len(change.fields), faster)
    return (True, remedy.shortfall, change.kind, len(change.fields), faster)


def figures_of(outcome: Outcome) -> dict[str, float]:
    """The figures that have a band."""
    return {
        "output_tokens_per_s": outcome.output_tokens_per_s,
        "ttft_p99_s": outcome.ttft_s.p99,
        "tpot_p99_s": outcome.tpot_s.p99,
        "preemptions_per_min": outcome.preemptions_per_min,
    }


def spread_of(label: str) -> dict[str, float]:
    """How far off figures are from predictions with such step times, four times out of five, as shares."""
    basis = basis_of(label)
    known = known_errors().get(basis) if basis is not None else None
    names = ("throughput", "tpot", "e2e", "ttft")
    return {name: _SPREAD * (known.median[name] if known is not None else _UNKNOWN_PERCENT) / 100 for name in names}


def _moved(server: Server, load: Load, outcome: Outcome) -> list[tuple[Server, Load, float]]:
    """The points between which an outcome may lie."""
    away = spread_of(outcome.label)["tpot"]
    return [(server, load, 1 + away), (server, load, max(1 - away, 0.1))]


def band_of(
    outcome: Outcome, moved: Sequence[Outcome], least: Mapping[str, float] | None = None
) -> dict[str, tuple[float, float]]:
    """Between which values each figure is expected: as it moves with the step times, and at least by its own error."""
    spread = spread_of(outcome.label)
    found = {}
    for name, value in figures_of(outcome).items():
        error = _FIGURES[name]
        away = max(0.0 if error is None else spread[error], (least or {}).get(name, 0.0))
        values = [value, value * max(1 - away, 0.0), value * (1 + away)]
        values += [figures_of(each)[name] for each in moved if not each.error]
        known = [each for each in values if each == each]
        if known:
            found[name] = (min(known), max(known))
    return found


def engine_for(load: Load, num_points: int) -> EngineName:
    """Interpreted for a few short simulations, compiled where loading machine code pays."""
    return "compiled" if num_points * int(load.workload.output_tokens.sum()) >= _WORTH_COMPILING else "auto"
