"""Results of a run that is not recorded: a summary, the times of the requests, and a sparse timeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.metrics import Summary, summarize
from kvsim.recording import Meta, Recording
from kvsim.recording.tables import Requests

TIMELINE_POINTS = 2048
"""Largest number of points of a timeline; when there is one more, every second point is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """Evenly spaced steps of a run, at most `TIMELINE_POINTS`."""

    start_s: npt.NDArray[np.float64]
    scheduled: npt.NDArray[np.int64]
    """Number of sequences that computed something in the step."""
    waiting: npt.NDArray[np.int64]
    held_slots: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """Results of a run whose steps are not kept."""

    meta: Meta
    requests: Requests
    summary: Summary
    timeline: Timeline

    @classmethod
    def of(cls, recording: Recording) -> Measured:
        """Return the results of a recorded run."""
        steps, pool = recording.steps, recording.meta.pool
        some = slice(None, None, -(-len(steps) // TIMELINE_POINTS) or 1)
        timeline = Timeline(
            start_s=steps.start_s[some],
            scheduled=steps.num_scheduled[some].astype(np.int64),
            waiting=steps.waiting[some].astype(np.int64),
            held_slots=((pool.num_units or 0) - steps.free_units[some].astype(np.int64)) * pool.unit_slots,
        )
        return cls(meta=recording.meta, requests=recording.requests, summary=summarize(recording), timeline=timeline)

    @property
    def num_steps(self) -> int:
        """Number of steps that computed something or preempted a request."""
        return self.summary.num_steps

    @property
    def duration_s(self) -> float:
        """Seconds from the first event to the end of the last step."""
        return self.summary.duration_s
