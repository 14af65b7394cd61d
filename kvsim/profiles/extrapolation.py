"""Record whether a simulation has steps outside the range of steps to which its profile was fitted.

A fitted model gives a time for any step, but its error is known only within that range. Results name steps outside it.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from kvsim.display.text import in_full
from kvsim.steptime import StepShape, StepTime

if TYPE_CHECKING:
    from kvsim.profiles import Profile
    from kvsim.steptime import Roofline, StepTimeModel

KEY = "extrapolates"
"""Key of the descriptions of steps outside the fitted range, in a recording's provenance and in `--json` output."""


class WatchedProfile:
    """Step times of a profile that also record the largest value of each field of the steps."""

    def __init__(self, profile: Profile, times: Roofline | None = None) -> None:
        """Use the step times `times`, or if it is None those of `profile`, which are for an engine with CUDA graphs.

        The label and the fitted range are those of `profile`.
        """
        self._profile = profile
        self._largest: list[float] = [0] * len(StepShape._fields)
        self.times = profile.times if times is None else times
        """Step times for callers that compute times without `step_time`. Such callers must report steps to `saw`."""
        self.label = profile.label
        self.calibrated = profile.calibrated

    def anew(self) -> WatchedProfile:
        """Return a copy without recorded steps, for another run."""
        return self.with_times(self.times)

    def with_times(self, times: Roofline) -> WatchedProfile:
        """Return a copy with `times`, without recorded steps."""
        new = copy(self)
        new.times = times
        new._largest = [0] * len(StepShape._fields)
        return new

    @property
    def fitted_to(self) -> frozenset[str]:
        """Names of the recordings to which the profile was fitted."""
        return frozenset(residual.recording for residual in self._profile.residuals)

    def __repr__(self) -> str:
        """Return a text that does not depend on recorded steps, because sweeps identify their points by it."""
        return f"WatchedProfile({in_full(self._profile)}, {in_full(self.times)})"

    def entry_s(self, prompt_tokens: int) -> float:
        """Return the seconds in which the host receives one request."""
        return self.times.entry_s(prompt_tokens)

    def step_time(self, shape: StepShape) -> StepTime:
        """Return the times of a step of this shape, and record the step."""
        self.saw(shape)
        return self.times.step_time(shape)

    def saw(self, shape: StepShape) -> None:
        """Record a step of this `shape`. For several steps, the fields of `shape` are arrays, or the largest values."""
        largest = self._largest
        for index, value in enumerate(shape):
            most = value.max() if isinstance(value, np.ndarray) else value
            largest[index] = max(largest[index], most)

    def beyond(self) -> list[str]:
        """Return a text for each field with which a recorded step was outside the fitted range; empty without steps."""
        return self._profile.outside(StepShape._make(self._largest)) if any(self._largest) else []


def provenance(model: StepTimeModel) -> dict[str, list[str]]:
    """Return the entry of a recording's provenance about steps outside the fitted range; empty if there were none."""
    fields = model.beyond() if isinstance(model, WatchedProfile) else []
    return {KEY: fields} if fields else {}
