"""Playback clock: turns wall time into recorded time, and recorded time into the frame to show.

It knows times and frame numbers only, so that recordings, comparisons and fleets can share it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kvsim.recording.tables import FloatArray, IntArray

DEFAULT_PLAY_S = 45.0
"""Wall seconds that a whole recording takes at the initial speed, approximately."""
_MANTISSAS = (1.0, 2.0, 5.0)
_MAX_SPEED_STEPS = 12
"""Largest number of steps of the speed scale up or down from the initial speed. Three steps are a factor of 10."""


def speed_at(index: int) -> float:
    """Return the speed at `index` of the scale 1, 2, 5, 10, ...; index 0 is 1."""
    return _MANTISSAS[index % 3] * 10.0 ** (index // 3)


def speed_index(speed: float) -> int:
    """Return the index of the fastest speed of the scale that is at most `speed`, which must be positive."""
    first = 3 * math.floor(math.log10(speed))
    # Rounding can leave a speed slightly below a speed of the scale; it counts as that speed.
    return max(index for index in range(first - 1, first + 4) if speed_at(index) <= speed * 1.000001)


class Player:
    """Position and speed of a playback."""

    def __init__(self, times_s: FloatArray, notable: IntArray, *, span_s: float | None = None) -> None:
        """`times_s` has the seconds at which the frames begin, at least one, ascending.

        `notable` are the frames at which `jump` stops, in any order. The initial speed plays `span_s` recorded seconds,
        by default the whole recording, in about `DEFAULT_PLAY_S`.
        """
        self.times_s = times_s
        self.notable = notable
        self.stops_at_notable = False
        """True if playback pauses at notable frames."""
        self.gap_begins_s, self.gap_ends_s = np.empty(0), np.empty(0)
        """Times in seconds at which gaps begin and end, ascending.

        A gap lies between an output and the next step, with no step in flight. It shows the memory after the output.
        """
        self.begin_s, self.duration_s = float(times_s[0]), float(times_s[-1])
        self.playing = False
        self.frame = 0
        self.clock_s = self.begin_s
        """Current recorded time in seconds. During playback, it can be between the beginnings of two frames."""
        span_s = self.duration_s - self.begin_s if span_s is None else span_s
        self._default_index = speed_index(max(span_s, 1e-6) / DEFAULT_PLAY_S)
        self._index = self._default_index

    @property
    def notable(self) -> IntArray:
        """Frames at which `jump` stops, ascending, without duplicates."""
        return self._notable

    @notable.setter
    def notable(self, frames: IntArray) -> None:
        # In a long recording nearly every frame is notable, often several times: a mask is faster than sorting.
        is_notable = np.zeros(int(np.max(frames, initial=-1)) + 1, np.bool_)
        is_notable[frames] = True
        self._notable = np.flatnonzero(is_notable)

    @property
    def speed(self) -> float:
        """Recorded seconds per wall second."""
        return speed_at(self._index)

    @property
    def last_frame(self) -> int:
        """Index of the last frame, which shows the end of the last step."""
        return len(self.times_s) - 1

    @property
    def at_end(self) -> bool:
        """True if the current frame is the last one."""
        return self.frame == self.last_frame

    @property
    def gap(self) -> int | None:
        """Index of the gap that contains the clock's time; None outside gaps."""
        gap = int(np.searchsorted(self.gap_begins_s, self.clock_s, side="right")) - 1
        return gap if gap >= 0 and self.clock_s < self.gap_ends_s[gap] else None

    def toggle(self) -> None:
        """Switch between playing and paused; at the end, play again from the beginning."""
        if not self.playing and self.at_end:
            self.go_to_frame(0)
        self.playing = not self.playing

    def tick(self, wall_s: float) -> bool:
        """Advance by `wall_s` wall seconds. Return True if the current frame or gap has changed."""
        if not self.playing:
            return False
        before, gap = self.frame, self.gap
        self.clock_s = min(self.clock_s + wall_s * self.speed, self.duration_s)
        self.frame = self._frame_at(self.clock_s)
        self.playing = not self.at_end
        if self.stops_at_notable:
            passed = self._notable[(self._notable > before) & (self._notable <= self.frame)]
            if len(passed):
                self.playing = False
                self.go_to_frame(int(passed[0]))
        return self.frame != before or self.gap != gap

    def go_to_frame(self, frame: int) -> None:
        """Show `frame`, clamped to the recording."""
        self.frame = min(max(frame, 0), self.last_frame)
        self.clock_s = float(self.times_s[self.frame])

    def go_to_time(self, time_s: float) -> None:
        """Show the frame that is current at `time_s` seconds, clamped to the recording."""
        self.clock_s = min(max(time_s, self.begin_s), self.duration_s)
        self.frame = self._frame_at(self.clock_s)

    def step(self, frames: int) -> None:
        """Pause, and move by a number of frames."""
        self.playing = False
        self.go_to_frame(self.frame + frames)

    def jump(self, direction: int) -> bool:
        """Pause at the next (1) or previous (-1) notable frame. Return True if there is one."""
        if direction > 0:
            at = int(np.searchsorted(self._notable, self.frame, side="right"))
        else:
            at = int(np.searchsorted(self._notable, self.frame, side="left")) - 1
        if not 0 <= at < len(self._notable):
            return False
        self.playing = False
        self.go_to_frame(int(self._notable[at]))
        return True

    def take_over(self, other: Player) -> None:
        """Continue at the time of `other`, a player of another part of the same run.

        Take over the user's changes of speed: both speeds are the same number of steps from their initial values.
        """
        self.playing = other.playing
        self.go_to_time(other.clock_s)
        self._index = self._default_index + other._index - other._default_index

    def change_speed(self, direction: int) -> None:
        """Play faster (1) or slower (-1) by one step of the scale 1, 2, 5, 10, ..."""
        slowest, fastest = self._default_index - _MAX_SPEED_STEPS, self._default_index + _MAX_SPEED_STEPS
        self._index = min(max(self._index + direction, slowest), fastest)

    def _frame_at(self, time_s: float) -> int:
        return max(0, int(np.searchsorted(self.times_s, time_s, side="right")) - 1)
