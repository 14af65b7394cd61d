"""Data of recordings that several figures need: cached replays and waste, and means over time bins."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from kvsim.errors import RecordingError
from kvsim.metrics import Waste, means_between, waste
from kvsim.replay import Replay

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.recording import Recording
    from kvsim.recording.tables import FloatArray, IntArray

NUM_BINS = 600
"""Number of bins of time: finer than a printed column can show; on a slide, a bin is about three pixels wide."""


@lru_cache(maxsize=4)  # as many recordings as one figure compares
def replay_of(recording: Recording) -> Replay:
    """Return the cached replay of `recording`. It may be at any frame, so callers must seek."""
    return Replay(recording)


@lru_cache(maxsize=16)
def waste_of(recording: Recording) -> Waste:
    """Return the cached `Waste` of `recording`: slots by state, at its frames and in the gaps between steps."""
    return waste(replay_of(recording))


def counts_over_time(recording: Recording, name: str) -> tuple[FloatArray, IntArray]:
    """Return `num_scheduled`, `running` or `waiting` over time: times in seconds from which values hold, and values."""
    in_gaps = waste_of(recording).in_gaps
    assert in_gaps is not None
    return in_gaps.gaps.over_time(recording, name)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TimeBins:
    """Equal intervals of a recording's time."""

    edges_s: FloatArray
    """Edges of the bins in seconds, from the first step to the end: float64[num_bins + 1]."""

    @classmethod
    def of(cls, recording: Recording, num_bins: int = NUM_BINS) -> TimeBins:
        """Divide the time from the first step of `recording` to its end."""
        start_s = float(recording.steps.start_s[0]) if len(recording.steps) else 0.0
        if not recording.duration_s > start_s:
            raise RecordingError(f"recording {recording.name!r} lasts no time, so nothing can be drawn over time.")
        return cls(edges_s=np.linspace(start_s, recording.duration_s, num_bins + 1))

    @property
    def width_s(self) -> float:
        """Length of one bin in seconds."""
        return float(self.edges_s[1] - self.edges_s[0])

    def mean(self, time_s: FloatArray, values: npt.NDArray[np.int64] | IntArray) -> FloatArray:
        """Return the mean of `values` over time in every bin. A row of `values` holds until the next in `time_s`."""
        return means_between(time_s, values, self.edges_s)

    def count(self, time_s: FloatArray, amounts: IntArray) -> npt.NDArray[np.int64]:
        """Return the sum of the `amounts` whose times are in each bin."""
        index = np.searchsorted(self.edges_s, time_s, side="right") - 1
        total = np.zeros(len(self.edges_s) - 1, np.int64)
        np.add.at(total, np.clip(index, 0, len(total) - 1), amounts)
        return total
