"""Mark a moment of a growing recording, and get only the rows after it.

A simulation that is watched while it runs shows its progress from such rows, without copying all tables each time.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.recording.tables import EncoderEvents, IntArray, Memory, PromptImages, Requests, Schedule, Steps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mark:
    """Numbers of rows of the growing tables at one moment."""

    seq: int
    """Number of the last event before the mark."""
    num_requests: int
    num_steps: int
    num_schedule_rows: int
    num_memory_rows: int
    num_encoder_rows: int
    open_rows: IntArray
    """Indices of the schedule rows that later steps may still extend; ascending."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Since:
    """Rows that were added after a mark. Requests, steps and events in them are counted from the run's beginning."""

    rows: IntArray
    """Row of each entry of `requests` in the requests table of the whole run; ascending."""
    requests: Requests
    steps: Steps
    schedule: Schedule
    """Rows that cover a step after the mark. A row that began before the mark is there with all its steps."""
    memory: Memory
    images: PromptImages | None
    """Images of the requests in `rows`; None if no prompt has an image."""
    encoder: EncoderEvents | None
    """Events of the encoder cache since the mark; None if no prompt has an image."""
