"""Record whether a simulation had steps outside the range of the steps that its profile was fitted to.

A fitted model gives a time for any step, but its error is known only within that range, so results name any excess.
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
"""Key of the extrapolations in the provenance of a recording, and in every `--json`."""


class WatchedProfile:
    """`StepTimeModel` with the times of a profile, which records the largest value of each field of the steps."""

    def __init__(self, profile: Profile, times: Roofline | None = None) -> None:
        """Watch `profile`, whose times are those with CUDA graphs; in a run without them, `times` are used instead."""
        self._profile = profile
        self._largest: list[float] = [0] * len(StepShape._fields)
        self.times = profile.times if times is None else times
        """Step times for callers that compute times themselves and report their steps to `saw`."""
        self.label = profile.label
        self.calibrated = profile.calibrated

    def anew(self) -> WatchedProfile:
        """Return a copy without recorded steps."""
        new = copy(self)
        new._largest = [0] * len(StepShape._fields)
        return new

    @property
    def fitted_to(self) -> frozenset[str]:
        """Names of the recordings that the profile was fitted to."""
        return frozenset(residual.recording for residual in self._profile.residuals)

    def __repr__(self) -> str:
        """Return a text that does not depend on recorded steps, because sweeps identify their points by it."""
        return f"WatchedProfile({in_full(self._profile)}, {in_full(self.times)})"

    def entry_s(self, prompt_tokens: int) -> float:
        """Return the host's seconds to admit one request."""
        return self.times.entry_s(prompt_tokens)

    def step_time(self, shape: StepShape) -> StepTime:
        """Return the duration of a step of that shape."""
        self.saw(shape)
        return self.times.step_time(shape)

    def saw(self, shape: StepShape) -> None:
        """Record a step with the contents `shape`; for several steps, its fields are arrays or maxima."""
        largest = self._largest
        for index, value in enumerate(shape):
            most = value.max() if isinstance(value, np.ndarray) else value
            largest[index] = max(largest[index], most)

    def beyond(self) -> list[str]:
        """Describe each field that the recorded steps had outside the fitted range; empty if there is no such field."""
        return self._profile.outside(StepShape._make(self._largest))


def provenance(model: StepTimeModel) -> dict[str, list[str]]:
    """Return the entry of a recording's provenance about extrapolation; empty if there was none, or no profile."""
    fields = model.beyond() if isinstance(model, WatchedProfile) else []
    return {KEY: fields} if fields else {}
