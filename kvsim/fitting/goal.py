"""Conditions under which a load fits: no preemptions, no waiting, and latencies below the targets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.errors import UsageError
from kvsim.metrics.steady import Steadiness

if TYPE_CHECKING:
    from kvsim.fitting.outcome import Outcome

TOO_SHORT = "too short to tell"
"""Key in `Goal.misses` of a load that misses no target, but whose rate has not settled."""
_FEW = 0.01
"""Tolerated preemptions per request, share of requests that wait (0 to 1), and seconds by which the queueing time
grows each second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Targets in seconds; None for unset targets."""

    ttft_p99_s: float | None = None
    tpot_p99_s: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("--ttft-p99", self.ttft_p99_s), ("--tpot-p99", self.tpot_p99_s)):
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"{name} should be a positive number of seconds, not {value}.")

    def misses(self, outcome: Outcome) -> dict[str, float]:
        """Return the amount by which each missed condition is exceeded, by its name; empty if the load fits."""
        if outcome.error:
            return {"does not start": math.inf}
        found = {
            "preemptions": outcome.preemptions_per_request - _FEW,
            "waiting": outcome.waiting_share - _FEW,
            "refused": outcome.refused_share,
            "overload": outcome.overload - _FEW,
        }
        for name, target, value in (
            ("TTFT p99", self.ttft_p99_s, outcome.ttft_s.p99),
            ("TPOT p99", self.tpot_p99_s, outcome.tpot_s.p99),
        ):
            if target is not None:
                found[name] = value / target - 1 if value == value else 0.0  # no excess for NaN: nothing was measured
        missed = {name: by for name, by in found.items() if by > 0}
        if not missed and outcome.steadiness is Steadiness.SHORT:
            return {TOO_SHORT: 1.0}
        return missed

    def is_met(self, outcome: Outcome) -> bool:
        """Tell whether the load fits."""
        return not self.misses(outcome)

    def shortfall(self, outcome: Outcome) -> float:
        """Return the sum of the amounts by which conditions are missed; 0 if the load fits."""
        return sum(self.misses(outcome).values())
