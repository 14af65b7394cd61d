"""Fit the differences of machines with the same GPU: the speed of their hosts, and of their particular GPU.

Hosts differ by a third, and two starts of the same engine by one or two percent. If recordings of several machines were
fitted as one, coefficients would explain differences between machines. So each machine has two factors, fitted together
with the coefficients, and a profile describes the median machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.steptime.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.calibration.observed import Observed

_REACH = 4.0
"""The largest factor between two machines."""


_USUAL = Pace(host=0.1, gpu=0.01)
"""Usual distances between machines, as shares. Paces that a recording does not determine are held this close to 1."""
_USUAL_WEIGHT = 5.0


def pace_of(observed: Sequence[Observed], errors: Callable[[Observed], Any], *, gpu: bool = True) -> Pace:
    """Return the pace that makes the `errors` of `observed` small (an error of 1 counts); the host's alone unless
    `gpu`."""
    from scipy.optimize import least_squares  # noqa: PLC0415  costs a third of a second, and only a fit needs it

    def pace(logarithms: Any) -> Pace:
        return Pace(*map(float, np.exp(logarithms)))

    def residuals(logarithms: Any) -> Any:
        unusual = _USUAL_WEIGHT * np.asarray(logarithms) / _USUAL[: len(logarithms)]
        found = [errors(replace(item, pace=pace(logarithms))) for item in observed]
        return np.concatenate([*found, unusual])

    reach = np.log(_REACH)
    start = np.zeros(2 if gpu else 1)
    return pace(least_squares(residuals, start, bounds=(-reach, reach), loss="soft_l1", diff_step=1e-3).x)


def relative_to_median(paces: Mapping[str, Pace]) -> dict[str, Pace]:
    """Scale the `paces` of machines such that the median is 1."""
    middle = np.exp(np.median(np.log(np.array(list(paces.values()))), axis=0))
    return {machine: Pace(*map(float, np.array(pace) / middle)) for machine, pace in paces.items()}
