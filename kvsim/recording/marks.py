"""A moment of a run that is still being recorded, and what has been reported since."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.recording.tables import IntArray, Memory, Requests, Schedule, Steps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mark:
    """A moment of a run: how much had been reported by then."""

    seq: int
    """The last sequence number."""
    num_requests: int
    num_steps: int
    num_schedule_rows: int
    num_memory_rows: int
    open_rows: IntArray
    """Rows of the schedule that may go on."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Since:
    """What was reported since a mark, in the numbers of the whole run."""

    rows: IntArray
    """The rows of the whole run in which `requests` stand, ascending."""
    requests: Requests
    steps: Steps
    schedule: Schedule
    """Rows that were open at the mark and went on begin where they began."""
    memory: Memory
