"""Several runs of the same requests on one clock, for the screen that compares policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.errors import RecordingError
from kvsim.recording.tables import RequestStatus

from .player import DEFAULT_PLAY_S, Player
from .session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from kvsim.recording.model import Recording
    from kvsim.recording.tables import FloatArray

_SHORTEST_PLAY_S = 8.0
"""Wall seconds that the shortest run takes at the initial speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One of the runs. A screen shows it in a lane, with `label` as the name."""

    label: str
    session: Session

    @property
    def over(self) -> bool:
        """True if the run has ended."""
        return self.session.player.at_end


class ComparedRuns:
    """Runs side by side, with one player. A run that has ended keeps showing its last frame."""

    def __init__(
        self,
        recordings: Sequence[Recording],
        labels: Sequence[str] = (),
        *,
        at_s: float | None = None,
        fastest_first: bool = True,
    ) -> None:
        """`labels` name the runs, by default after their policies. Playback begins at `at_s`, or at the first frame if
        that is None.

        If `fastest_first`, the shortest run comes first; otherwise runs keep the order of `recordings`.

        Raises:
            RecordingError: there is no recording, or one has no steps.
        """
        if not recordings:
            raise RecordingError("there is no recording to compare; give at least one.")
        names = labels or [recording.meta.rules_name for recording in recordings]
        lanes = [ComparedRun(label=name, session=Session(run)) for name, run in zip(names, recordings, strict=True)]
        self.fastest_first = fastest_first
        self.lanes = sorted(lanes, key=lambda lane: lane.session.player.duration_s * fastest_first)
        self._order = [lanes.index(lane) for lane in self.lanes]
        self.ample_tokens_per_s: tuple[float, ...] = ()
        """Output tokens per second that each run would reach with unlimited memory, in the order of `lanes`.

        Empty if unknown.
        """
        sessions = [lane.session for lane in self.lanes]
        durations_s = [lane.session.player.duration_s for lane in self.lanes]
        self.player = Player(
            np.unique(np.concatenate([each for s in sessions for each in (s.times_s, s.idle.begin_s)])),
            np.empty(0, np.int64),
            span_s=min(min(durations_s) / _SHORTEST_PLAY_S * DEFAULT_PLAY_S, max(durations_s)),
        )
        all_requests = [lane.session.recording.requests for lane in self.lanes]
        refused_s = [each.arrival_s[each.status == RequestStatus.REFUSED] for each in all_requests]
        self.player.notable = self.frames_at(np.concatenate([durations_s, *refused_s]))
        if at_s is not None:
            self.player.go_to_time(at_s)
        self.show()

    def frames_at(self, times_s: FloatArray) -> npt.NDArray[np.intp]:
        """Return, for each of `times_s`, the player's first frame that begins at that time or later."""
        return np.searchsorted(self.player.times_s, times_s)

    def set_ample_throughput(self, ample_tokens_per_s: Sequence[float]) -> None:
        """Set `ample_tokens_per_s`. The argument has the order of the `recordings` that the constructor got."""
        self.ample_tokens_per_s = tuple(ample_tokens_per_s[place] for place in self._order)

    def show(self) -> None:
        """Move every run to the player's clock."""
        for lane in self.lanes:
            lane.session.player.go_to_time(self.player.clock_s)
            lane.session.show()

    def show_halfway(self) -> None:
        """Move every run to the moment at which the fastest run is half done."""
        self.player.go_to_time(min(lane.session.player.duration_s for lane in self.lanes) / 2)
        self.show()

    def follow(self, name: str | None) -> None:
        """Follow the request with the id `name` in every run that has it. If `name` is None, follow no request."""
        for lane in self.lanes:
            rows = np.flatnonzero(lane.session.recording.requests.id == (name or ""))
            lane.session.followed = int(rows[0]) if len(rows) else None
