"""What sets one machine apart from another with the same GPU: how fast its host is, and how fast this GPU runs.

Hosts differ by a third, and two starts of the same engine by a per cent or two. Were recordings of several machines
thrown together, a coefficient would be bent to explain what is merely another machine; so each machine has two factors
of its own, found along with the coefficients, and a profile is of the machine in the middle.
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
"""Usual distances between machines, as shares: what a recording does not tell is held so close to 1."""
_USUAL_WEIGHT = 5.0


def pace_of(observed: Sequence[Observed], errors: Callable[[Observed], Any], *, gpu: bool = True) -> Pace:
    """The pace at which the `errors` of `observed`, 1 where one counts, are small; the host's alone unless `gpu`."""
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
    """`paces` of machines such that the one in the middle is 1."""
    middle = np.exp(np.median(np.log(np.array(list(paces.values()))), axis=0))
    return {machine: Pace(*map(float, np.array(pace) / middle)) for machine, pace in paces.items()}
