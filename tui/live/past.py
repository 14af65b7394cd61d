"""Charts of a running server that reach back beyond the steps of the current session.

A live screen opens many sessions, one after the other. Each covers the steps that were newest when it was opened.
`Past` joins their charts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.recording.tables import RequestStatus

from ..playback.charts import Before
from ..playback.session import Session, printable_ids

if TYPE_CHECKING:
    from kvsim.live.tail import Excerpt

MAX_FRAMES: Final = 50_000
"""Largest number of frames in a session's charts that precede the session's own frames."""


class Past:
    """Opens successive excerpts of a recording, each with the charts and totals of the time before the excerpt.

    The chart of a frame comes from the last session that contains the frame, because only later steps show which
    reserved slots were used. The first frame of an excerpt may be a summary frame, which summarizes all earlier steps.
    """

    def __init__(self, latest: Session | None = None) -> None:
        """Continue from the session `latest`, which has been opened without this object; None if there is none."""
        self._latest = latest

    def open(self, excerpt: Excerpt) -> Session:
        """Return a session over `excerpt`.

        Its charts begin with the frames of earlier excerpts, if no step is missing in between.
        """
        self._latest = Session(excerpt.recording, before=self._before(excerpt))
        return self._latest

    def _before(self, excerpt: Excerpt) -> Before:
        """Return the charts and totals of the time before `excerpt`.

        Charts are None and totals 0 if no session reaches up to the first step of `excerpt`.
        """
        unknown = Before(first_step=excerpt.first_step, num_summary_frames=excerpt.num_summary_steps)
        if (latest := self._latest) is None:
            return unknown  # this is the first session
        old = latest.before
        end = old.num_summary_frames + excerpt.first_step - old.first_step  # frame of `latest` where `excerpt` begins
        if not old.num_summary_frames <= end <= latest.player.last_frame:
            return unknown  # `excerpt` begins before `latest`, or leaves a gap after it
        if end == old.num_summary_frames:
            return old  # `excerpt` begins with the same step as `latest`
        # `excerpt` begins within `latest`, or right after it.
        charts = latest.charts.rows(0, latest.num_frames_before + end)
        requests = latest.recording.requests
        # The new session counts the requests of `excerpt` itself. All others ended before it.
        gone = ~np.isin(requests.id, printable_ids(excerpt.recording.requests.id))
        return Before(
            first_step=excerpt.first_step,
            num_summary_frames=excerpt.num_summary_steps,
            charts=charts.rows(max(len(charts) - MAX_FRAMES, 0)),
            num_finished=old.num_finished + int((~np.isnan(requests.finished_s[gone])).sum()),
            num_refused=old.num_refused + int((requests.status[gone] == RequestStatus.REFUSED).sum()),
            num_preemptions=old.num_preemptions + int(latest.recording.steps.preempted[:end].sum()),
            tokens_served=old.tokens_served + int(requests.output_tokens[gone].sum()),
        )
