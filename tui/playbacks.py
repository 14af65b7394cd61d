"""Stack of playing screens: opening one on top of another, and returning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .playback.compared_runs import ComparedRuns
from .playback.fleet_servers import FleetServers
from .playback.session import Session
from .screens.app_interface import AppInterface
from .screens.playback import PlaybackScreen
from .screens.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.screen import Screen

    from kvsim.recording.model import Recording

    from .lessons import Guided, Lesson
    from .live.feed import Feed


class Playbacks(AppInterface):
    """Stack of playing screens. A session, comparison, fleet or lesson opens on top, and can be left again."""

    def __init__(
        self,
        *,
        runs: Callable[[], Sequence[Recording]] | None,
        ample: Callable[[], Sequence[float]] | None,
        feed: Feed | None,
    ) -> None:
        """`runs` and `ample` have the same meaning as in `kvsim_tui.run`; None if there is no such function.

        `feed` supplies new steps for the first session; None if its recording does not grow.
        """
        super().__init__()
        self._runs, self._ample, self._feed = runs, ample, feed

    @property
    def playback(self) -> PlaybackScreen:
        """The topmost `PlaybackScreen`, even if a dialog covers it."""
        return next(screen for screen in reversed(self.screen_stack) if isinstance(screen, PlaybackScreen))

    def plays(self, screen: Screen[Any]) -> bool:
        return self.num_playbacks > 0 and self.playback is screen

    @property
    def num_playbacks(self) -> int:
        return sum(isinstance(screen, PlaybackScreen) for screen in self.screen_stack)

    def playback_for(self, shown: Session | ComparedRuns | FleetServers | Guided) -> PlaybackScreen:
        """Return the screen that plays `shown`.

        The screen already has the style classes for the size of the terminal, so that it is first drawn only once.
        """
        playback = self._playback_for(shown)
        for breakpoints, length in (
            (self.HORIZONTAL_BREAKPOINTS, self.size.width),
            (self.VERTICAL_BREAKPOINTS, self.size.height),
        ):
            playback.add_class(max((at, name) for at, name in breakpoints or () if at <= length)[1])
        return playback

    def _playback_for(self, shown: Session | ComparedRuns | FleetServers | Guided) -> PlaybackScreen:
        if isinstance(shown, Session):
            return self._watch(shown)
        from .screens.compare_runs import Compare  # noqa: PLC0415 - nothing that the first picture needs

        if isinstance(shown, ComparedRuns):
            return Compare(shown, self.symbols, ample=self._ample)
        if isinstance(shown, FleetServers):
            from .screens.wall import Wall  # noqa: PLC0415 - as above

            return Wall(shown, self.symbols)
        if shown.comparison is not None:
            return Compare(shown.comparison, self.symbols, shown)
        return Watch(shown.sessions[0], self.symbols, shown)

    def _watch(self, session: Session) -> PlaybackScreen:
        if self._feed is None:
            return Watch(session, self.symbols)
        from .live.screen import Live  # noqa: PLC0415 - nothing that the first picture needs

        return Live(session, self.symbols, self._feed)

    def open_playback(self, playback: PlaybackScreen) -> None:
        """Pause the playing screen, and show `playback` on top of it.

        A lesson that was opened on top of another screen is replaced by `playback` instead.
        """
        self.playback.player.playing = False
        if self.playback.guided is not None and self.num_playbacks > 1:
            self.switch_screen(playback)
        else:
            self.push_screen(playback)

    def leave_playback(self) -> None:
        if isinstance(self.screen, PlaybackScreen) and self.num_playbacks > 1:
            self.pop_screen()
            self.playback.show_frame(everything=True)

    def action_compare(self) -> None:
        playback = self.playback
        if playback.compares:
            time_s = playback.player.clock_s
            self.leave_playback()
            if self.playback is not playback:
                self.playback.player.go_to_time(time_s)
                self.playback.show_frame(everything=True)
        elif self._runs is None:
            self.notify("There are no requests here that could be served again under other policies.")
        else:
            runs, time_s, name = self._runs, playback.player.clock_s, playback.followed_name
            playing = playback.player.playing or not playback.player.frame

            def served() -> ComparedRuns:
                comparison = ComparedRuns(runs(), at_s=time_s)
                # This run may take longer, such as static batches with the step times of their own engine.
                if time_s > comparison.player.duration_s:
                    comparison.show_halfway()
                return comparison

            def play(comparison: ComparedRuns) -> None:
                comparison.follow(name)
                comparison.player.playing = playing
                self.open_playback(self.playback_for(comparison))

            self.run_in_thread(served, play, "Serving the same requests under every policy")

    def play_session(self, session: Session) -> None:
        """Play one run on top of the current playing screen."""
        self.open_playback(self.playback_for(session))

    def action_lessons(self) -> None:
        from .dialogs.lesson_list import LessonsScreen  # noqa: PLC0415 - nothing that the first picture needs
        from .lessons import all_lessons  # noqa: PLC0415 - a tenth of a second, which only lessons wait for

        self.push_screen(LessonsScreen(all_lessons()), self._play_lesson)

    def _play_lesson(self, lesson: Lesson | None) -> None:
        from .lessons import Guided  # noqa: PLC0415 - as above

        if lesson is not None:
            self.run_in_thread(
                lambda: Guided(lesson), lambda guided: self.open_playback(self.playback_for(guided)), lesson.heading
            )
