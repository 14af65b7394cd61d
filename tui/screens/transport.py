"""Actions of the keys that control playback: play, step, jump to events, change the speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from textual import on
from textual.screen import Screen

from ..widgets.scrubber import Scrubber

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..playback.player import Player
    from ..playback.run_events import EventKind
    from ..playback.session import Session


class Transport(Screen[None]):
    """Screen whose keys and time line move `player`."""

    def __init__(self, player: Player) -> None:
        super().__init__()
        self.player = player

    def sessions(self) -> Iterable[Session]:
        raise NotImplementedError

    def show_frame(self, *, moved: bool = True, everything: bool = False) -> None:
        """Draw the picture if the player has `moved` to another frame. If `everything`, also draw panels and texts."""
        raise NotImplementedError

    def update_clock_and_title(self) -> None:
        """Start or stop the clock, and update the title of the time axis."""
        raise NotImplementedError

    def action_play(self) -> None:
        self.player.toggle()
        self.show_frame(everything=True)

    def action_step(self, frames: int) -> None:
        """Pause, and move by `frames` engine steps."""
        self.player.step(frames)
        self.show_frame(everything=True)

    def action_event(self, direction: int) -> None:
        """Pause at the next (1) or previous (-1) notable event."""
        if not self.player.jump(direction):
            self.notify("There is no further event in this direction.", timeout=3)
        self.show_frame(everything=True)

    def jump_to_kind(self, kind: EventKind) -> None:
        """Pause at the next event of `kind` in any of the runs."""
        times_s = [session.times_s[session.events.of_kinds((kind,)).frame] for session in self.sessions()]
        coming_s = np.concatenate(times_s)
        coming_s = coming_s[coming_s > self.player.times_s[self.player.frame]]
        if len(coming_s):
            self.player.playing = False
            self.player.go_to_time(float(coming_s.min()))
        else:
            self.notify("There is no further one.", timeout=3)
        self.show_frame(everything=True)

    def action_speed(self, direction: int) -> None:
        """Play faster (1) or slower (-1)."""
        self.player.change_speed(direction)
        self.update_clock_and_title()

    def action_go(self, share: int) -> None:
        """Move to the beginning (0) or the end (1)."""
        self.player.go_to_frame(self.player.last_frame * share)
        self.show_frame(everything=True)

    @on(Scrubber.Scrubbed)
    def _scrubbed(self, message: Scrubber.Scrubbed) -> None:
        self.go_to_time(message.time_s)

    def go_to_time(self, time_s: float) -> None:
        self.player.go_to_time(time_s)
        self.show_frame(everything=True)
