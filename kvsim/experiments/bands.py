"""How far figures move with the error of the step times: a few runs with all times a little shorter or longer.

Where requests are preempted the queue keeps what the engine is short of: one per cent of speed is five of the time to
the first token. A single number then says more than is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from kvsim.engine.initialization import memory_of
from kvsim.machines import interval_in
from kvsim.policies.custom import CustomPolicy
from kvsim.profiles.extrapolation import Watched
from kvsim.simulation import Machine, measure
from kvsim.simulation.modes import engine_for_several
from kvsim.steptime import Pace, Roofline, at_pace

if TYPE_CHECKING:
    from kvsim.metrics import Summary
    from kvsim.policies import AnyPolicy
    from kvsim.simulation import Options
    from kvsim.workload import Workload

PREEMPTED_SHARE = 0.05
"""Preemptions per request from which on a run gets a band."""
MOST_REQUESTS = 20_000
"""The largest number of requests that a band is made for: with more, its runs would take minutes."""
CLOCKS = ("gpu", "host")
"""The clocks whose errors a band is made of."""
_PLACES = (-1.0, -0.5, 0.5, 1.0)
"""Places in the band at which the step times of each run lie, in typical errors of the GPU's and the host's times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The least and the largest of each figure."""

    gpu_percent: float
    """Percentage by which the GPU's times were shorter and longer."""
    host_percent: float
    """Percentage by which the host's were."""
    ranges: Mapping[str, tuple[float, float]]
    """Seconds of mean TTFT, TPOT and end to end, output tokens per second, preemptions."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        ranges = {name: list(pair) for name, pair in self.ranges.items()}
        return {"gpu_percent": self.gpu_percent, "host_percent": self.host_percent, **ranges}

    def words(self) -> str:
        """How it was made, as one clause."""
        return f"the GPU's times {self.gpu_percent:.0f} % and the host's {self.host_percent:.0f} % shorter to longer"


def figures_of(summary: Summary) -> dict[str, float]:
    """The figures of a run that a band is made for."""
    return {
        "output_tokens_per_s": summary.output_tokens_per_s,
        "ttft_s": summary.ttft_s.mean,
        "tpot_s": summary.tpot_s.mean,
        "e2e_s": summary.e2e_s.mean,
        "num_preemptions": float(summary.num_preemptions),
    }


def is_worth_a_band(summary: Summary, num_requests: int) -> bool:
    """Whether so much was preempted that small errors grow, and the run is short enough to be repeated."""
    return num_requests <= MOST_REQUESTS and summary.num_preemptions >= PREEMPTED_SHARE * num_requests


def band_of(
    workload: Workload, policy: AnyPolicy, machine: Machine, summary: Summary, **options: Unpack[Options]
) -> Band | None:
    """The band around `summary`, from runs with step times as far off as such times usually are.

    None where the step times are a model of the caller's own, or it was never measured how far off they are.
    """
    times = machine.step_time.times if isinstance(machine.step_time, Watched) else machine.step_time
    known = interval_in(machine.step_time.label)
    if not isinstance(times, Roofline) or known is None or len(known.clocks) < len(CLOCKS):
        return None
    error = known.clocks
    # Machine code is made once, in the time of two such bands without it.
    if options.get("engine", "auto") == "auto" and not isinstance(policy, CustomPolicy):
        options["engine"] = engine_for_several(memory_of(policy))
    found = [figures_of(summary)]
    for place in _PLACES:
        pace = Pace(host=1 + place * error["host"] / 100, gpu=1 + place * error["gpu"] / 100)
        perturbed = replace(machine, step_time=at_pace(pace, times))
        found.append(figures_of(measure(workload, policy, perturbed, **options).summary))
    ranges = {name: (min(item[name] for item in found), max(item[name] for item in found)) for name in found[0]}
    return Band(gpu_percent=error["gpu"], host_percent=error["host"], ranges=ranges)
