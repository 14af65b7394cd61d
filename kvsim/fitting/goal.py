"""Conditions under which a load fits: hardly any preemptions, hardly any waiting, and latencies below the targets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.errors import UsageError, shortened
from kvsim.metrics.steady import Steadiness
from kvsim.setting_fields import is_finite

if TYPE_CHECKING:
    from kvsim.fitting.outcome import Outcome

TOO_SHORT = "too short to tell"
"""Key in `Goal.misses` for a load that misses no condition, but whose output rate has not settled."""
_TOLERANCE = 0.01
"""Largest value of each of three figures with which a load fits.

They are the preemptions per request, the share of requests that wait (0 to 1), and the growth of the queueing time in
seconds per second.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Targets of latencies, in seconds. A target that is None does not apply."""

    ttft_p99_s: float | None = None
    tpot_p99_s: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("--ttft-p99", self.ttft_p99_s), ("--tpot-p99", self.tpot_p99_s)):
            if value is not None and not (is_finite(value) and value > 0):
                raise UsageError(f"{name} should be a positive number of seconds, not {shortened(value)}.")

    def misses(self, outcome: Outcome) -> dict[str, float]:
        """Return how far each missed condition is exceeded, by the name of the condition; empty if the load fits.

        Latencies have the relative excess over their target, other conditions the absolute excess over their limit. A
        server that does not start has infinity, and a run that is too short has 1.
        """
        if outcome.error:
            return {"does not start": math.inf}
        found = {
            "preemptions": outcome.preemptions_per_request - _TOLERANCE,
            "waiting": outcome.waiting_share - _TOLERANCE,
            "refused": outcome.refused_share,
            "overload": outcome.overload - _TOLERANCE,
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
        """Tell whether the load of `outcome` fits the server."""
        return not self.misses(outcome)

    def shortfall(self, outcome: Outcome) -> float:
        """Return the sum of `misses`: 0 if the load fits, infinity if the server does not start.

        Servers that miss the goal are compared by this sum.
        """
        return sum(self.misses(outcome).values())
