"""Prediction intervals: the range of each figure over runs with slightly shorter and longer step times.

A run with preemptions has a queue, which accumulates delays. There, 1 % longer steps can change the time to first token
by 5 %, so a single number would look more precise than it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from kvsim.engine.initialization import memory_of
from kvsim.machines import interval_in
from kvsim.policies.kinds import base_of, runs_in_python
from kvsim.profiles.extrapolation import WatchedProfile
from kvsim.simulation import Machine, measure
from kvsim.simulation.feature_times import feature_times
from kvsim.simulation.modes import engine_for_several
from kvsim.steptime import Pace, Roofline, at_pace

if TYPE_CHECKING:
    from kvsim.metrics import Summary
    from kvsim.policies import AnyPolicy
    from kvsim.simulation import Options
    from kvsim.workload import Workload

MIN_PREEMPTIONS_PER_REQUEST = 0.05
"""Runs with fewer preemptions per request get no prediction intervals."""
MOST_REQUESTS = 20_000
"""Runs with more requests get no prediction intervals, which would take several more runs."""
CLOCKS = ("gpu", "host")
"""Parts of the step times that are varied: the GPU's work, and the host's work."""
_ERROR_MULTIPLES = (-1.0, -0.5, 0.5, 1.0)
"""Changes of the step times in the additional runs, one entry per run, as multiples of the times' typical error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Smallest and largest value of each figure in runs with varied step times."""

    gpu_percent: float
    """Percentage by which the GPU times were shortened and lengthened."""
    host_percent: float
    """Percentage by which the host times were shortened and lengthened."""
    ranges: Mapping[str, tuple[float, float]]
    """Smallest and largest mean TTFT, TPOT and end-to-end time in seconds, output tokens per second, preemptions."""

    def as_dict(self) -> dict[str, Any]:
        """Return the intervals for JSON."""
        ranges = {name: list(pair) for name, pair in self.ranges.items()}
        return {"gpu_percent": self.gpu_percent, "host_percent": self.host_percent, **ranges}

    def words(self) -> str:
        """Return a clause that says by how much the step times were varied."""
        return f"the GPU's times {self.gpu_percent:.0f} % and the host's {self.host_percent:.0f} % shorter to longer"


def figures_of(summary: Summary) -> dict[str, float]:
    """Return the figures of a run that have a prediction interval."""
    return {
        "output_tokens_per_s": summary.output_tokens_per_s,
        "ttft_s": summary.ttft_s.mean,
        "tpot_s": summary.tpot_s.mean,
        "e2e_s": summary.e2e_s.mean,
        "num_preemptions": float(summary.num_preemptions),
    }


def is_worth_a_band(summary: Summary, num_requests: int) -> bool:
    """Tell whether a run has enough preemptions to need prediction intervals, and is short enough to repeat."""
    return num_requests <= MOST_REQUESTS and summary.num_preemptions >= MIN_PREEMPTIONS_PER_REQUEST * num_requests


def band_of(
    workload: Workload, policy: AnyPolicy, machine: Machine, summary: Summary, **options: Unpack[Options]
) -> Band | None:
    """Return the prediction intervals around `summary`, from runs with step times varied by their typical error.

    These runs are not checked step by step: `check` is about the run that is summarised.

    Return None if the step times are a custom model, or if their error was never measured.
    """
    times = machine.step_time.times if isinstance(machine.step_time, WatchedProfile) else machine.step_time
    known = interval_in(feature_times(machine, machine.limited(policy), workload).label)
    if not isinstance(times, Roofline) or known is None or len(known.step_errors) < len(CLOCKS):
        return None
    error = known.step_errors
    options["check"] = False
    # Compiling once takes as long as two such sets of interpreted runs.
    if options.get("engine", "auto") == "auto" and not runs_in_python(policy):
        options["engine"] = engine_for_several(memory_of(base_of(policy)))
    found = [figures_of(summary)]
    for multiple in _ERROR_MULTIPLES:
        pace = Pace(host=1 + multiple * error["host"] / 100, gpu=1 + multiple * error["gpu"] / 100)
        perturbed = replace(machine, step_time=at_pace(pace, times))
        found.append(figures_of(measure(workload, policy, perturbed, **options).summary))
    by_figure = {name: [figures[name] for figures in found] for name in found[0]}
    ranges = {name: (min(values), max(values)) for name, values in by_figure.items()}
    return Band(gpu_percent=error["gpu"], host_percent=error["host"], ranges=ranges)
