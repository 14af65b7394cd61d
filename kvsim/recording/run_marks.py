"""Mark a moment of a running recording, to get only the rows after it.

A simulation that is watched while it runs shows its progress in this way, without copying all tables each time.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.recording.tables import EncoderEvents, IntArray, Memory, PromptImages, Requests, Schedule, Steps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mark:
    """Numbers of rows at a moment of a run."""

    seq: int
    """Last sequence number."""
    num_requests: int
    num_steps: int
    num_schedule_rows: int
    num_memory_rows: int
    num_encoder_rows: int
    open_rows: IntArray
    """Rows of the schedule that later steps may still extend."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Since:
    """Rows that were reported after a mark, numbered as in the whole run."""

    rows: IntArray
    """Rows of `requests` in the whole run, ascending."""
    requests: Requests
    steps: Steps
    schedule: Schedule
    """Rows added after the mark, and rows that were open at the mark, as a whole."""
    memory: Memory
    images: PromptImages | None
    """Images of the requests in `rows`; None if no prompt has an image."""
    encoder: EncoderEvents | None
    """Events of the encoder cache since the mark; None if no prompt has an image."""
