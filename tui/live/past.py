"""History of a followed server: charts that grow, and the sessions that supplied them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.recording.tables import RequestStatus

from ..playback.charts import Before
from ..playback.session import Session, printable_ids

if TYPE_CHECKING:
    from kvsim.live.tail import Excerpt

MAX_FRAMES: Final = 50_000
"""Largest number of frames before a session's own in its charts."""


class Past:
    """Opens one excerpt after the other, each with the charts and totals of the time before it.

    Each frame is taken from the last session that contains it, a thousand steps later: only then are the used reserved
    slots known.
    """

    def __init__(self, latest: Session | None = None) -> None:
        """`latest` is the session that was opened before, if any."""
        self._latest = latest

    def open(self, excerpt: Excerpt) -> Session:
        """Return a session over `excerpt`, whose charts begin with earlier excerpts.

        Raises:
            RecordingError: it contradicts itself.
        """
        self._latest = Session(excerpt.recording, before=self._before(excerpt))
        return self._latest

    def _before(self, excerpt: Excerpt) -> Before:
        nothing = Before(first_step=excerpt.first_step, num_summary_frames=excerpt.num_before)
        if (latest := self._latest) is None:
            return nothing
        old = latest.before
        end = old.num_summary_frames + excerpt.first_step - old.first_step
        if not old.num_summary_frames <= end <= latest.player.last_frame:
            return nothing  # it goes further back, or not far enough
        if end == old.num_summary_frames:
            return old
        charts = latest.charts.rows(0, latest.num_frames_before + end)
        requests = latest.recording.requests
        gone = ~np.isin(requests.id, printable_ids(excerpt.recording.requests.id))
        return Before(
            first_step=excerpt.first_step,
            num_summary_frames=excerpt.num_before,
            charts=charts.rows(max(len(charts) - MAX_FRAMES, 0)),
            num_finished=old.num_finished + int((~np.isnan(requests.finished_s[gone])).sum()),
            num_refused=old.num_refused + int((requests.status[gone] == RequestStatus.REFUSED).sum()),
            num_preempted=old.num_preempted + int(latest.recording.steps.preempted[:end].sum()),
            tokens_served=old.tokens_served + int(requests.output_tokens[gone].sum()),
        )
