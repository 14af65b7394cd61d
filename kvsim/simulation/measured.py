"""Results of a run without its steps: a summary, and the times of the requests."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.metrics import Summary, summarize
from kvsim.recording import Meta, Recording
from kvsim.recording.tables import Requests


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """Metadata, requests and summary of a run."""

    meta: Meta
    requests: Requests
    summary: Summary

    @classmethod
    def of(cls, recording: Recording) -> Measured:
        """Return the results of a recorded run."""
        return cls(meta=recording.meta, requests=recording.requests, summary=summarize(recording))

    @property
    def num_steps(self) -> int:
        """Number of steps that computed tokens or preempted a request."""
        return self.summary.num_steps

    @property
    def duration_s(self) -> float:
        """Seconds from the first event to the end of the last step; 0 without steps."""
        return self.summary.duration_s
