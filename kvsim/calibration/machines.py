"""Pace of each machine: the factors by which its host and its GPU are slower than the profile says.

The pace is fitted together with the profile, so that a profile can use recordings of several machines with the same
GPU. The times of hosts differ by a third. Even on one machine, they differ by one or two percent between two starts of
the same engine. The profile describes a machine with the median of each factor.
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
"""Largest factor on the times of a machine's host or GPU."""
_USUAL = Pace(host=0.1, gpu=0.01)
"""Standard deviations of the two factors around 1. They keep a factor near 1 if the recordings do not determine it."""
_USUAL_WEIGHT = 5.0
"""Weight of `_USUAL` in the fit, relative to the errors of steps. A larger weight keeps the two factors nearer to 1."""


def pace_of(observed: Sequence[Observed], errors: Callable[[Observed], Any], *, gpu: bool = True) -> Pace:
    """Return the pace with which the step times have the smallest errors on `observed`, recordings of one machine.

    `errors` returns the error of each step of a recording, divided by the scale of such errors (`error_scale_s`). If
    `gpu` is False, only the host's factor is fitted, and the GPU's is 1.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415  costs a third of a second, and only a fit needs it

    def from_logarithms(logarithms: Any) -> Pace:
        return Pace(*map(float, np.exp(logarithms)))

    def residuals(logarithms: Any) -> Any:
        unusual = _USUAL_WEIGHT * np.asarray(logarithms) / _USUAL[: len(logarithms)]
        parts = [errors(replace(item, pace=from_logarithms(logarithms))) for item in observed]
        return np.concatenate([*parts, unusual])

    reach = np.log(_REACH)
    start = np.zeros(2 if gpu else 1)
    found = least_squares(residuals, start, bounds=(-reach, reach), loss="soft_l1", diff_step=1e-3)
    return from_logarithms(found.x)


def relative_to_median(paces: Mapping[str, Pace]) -> dict[str, Pace]:
    """Divide the factors of all machines by their median, so that the median machine has the factors 1."""
    middle = np.exp(np.median(np.log(np.array(list(paces.values()))), axis=0))
    return {machine: Pace(*map(float, np.array(pace) / middle)) for machine, pace in paces.items()}
