"""Whether a simulation left the steps that its profile was fitted to.

A fitted model says something about every step; it was only judged on those like the ones it has seen.
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
"""Under which the provenance of a recording, and every `--json`, says where the fitted range was left."""


class WatchedProfile:
    """A profile that remembers the largest step it was asked for, field by field. It is a `StepTimeModel`."""

    def __init__(self, profile: Profile, times: Roofline | None = None) -> None:
        """Watch `profile`; `times` replaces its own where a run differs from what was fitted, as without graphs."""
        self._profile = profile
        self._largest: list[float] = [0] * len(StepShape._fields)
        self.times = profile.times if times is None else times
        """Step times for code that computes without asking here, and tells `saw` instead."""
        self.label = profile.label
        self.calibrated = profile.calibrated

    def anew(self) -> WatchedProfile:
        """Return a copy that remembers nothing."""
        new = copy(self)
        new._largest = [0] * len(StepShape._fields)
        return new

    @property
    def fitted_to(self) -> frozenset[str]:
        """The names of the recordings that the profile was fitted to."""
        return frozenset(residual.recording for residual in self._profile.residuals)

    def __repr__(self) -> str:
        """Return a text that a run does not change: sweeps identify their points by it."""
        return f"WatchedProfile({in_full(self._profile)}, {in_full(self.times)})"

    def entry_s(self, prompt_tokens: int) -> float:
        """Return the host's seconds to admit one request."""
        return self.times.entry_s(prompt_tokens)

    def step_time(self, shape: StepShape) -> StepTime:
        """Return the duration of a step of that shape."""
        self.saw(shape)
        return self.times.step_time(shape)

    def saw(self, shape: StepShape) -> None:
        """Remember the step or steps of `shape`; the largest values of several steps are enough."""
        largest = self._largest
        for index, value in enumerate(shape):
            most = value.max() if isinstance(value, np.ndarray) else value
            largest[index] = max(largest[index], most)

    def beyond(self) -> list[str]:
        """Describe how the steps so far left the fitted range; empty if they did not."""
        return self._profile.outside(StepShape._make(self._largest))


def provenance(model: StepTimeModel) -> dict[str, list[str]]:
    """Return a recording's entry about the range of its step times; empty unless that range was watched and left."""
    words = model.beyond() if isinstance(model, WatchedProfile) else []
    return {KEY: words} if words else {}
