"""Base class of the playing screens: headline, story, captions of a lesson, panels, time line and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
from textual.binding import Binding
from textual.widgets import Static

from ..export.csv_table import as_csv
from ..widgets.caption_box import CaptionBox
from ..widgets.headline import Headline
from ..widgets.key_line import KeyLine
from ..widgets.scrubber import Scrubber
from ..widgets.story_line import HINTS, StoryLine
from .keys import BINDINGS
from .transport import Transport

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from kvsim.diagnosis import Diagnosis

    from ..lessons import Guided
    from ..look.states import Symbols
    from ..playback.player import Player
    from ..playback.session import Story
    from .app_interface import AppInterface

_PANEL_UPDATE_S = 8 / 30
"""Wall seconds between two updates of a panel during playback: faster changes cannot be read.

Each tick updates only some of the panels.
"""
_LEAST_HEIGHT_FOR_DRAWINGS = 22
"""Smallest height of a terminal, in lines, on which a lesson has a drawing and a time line beside its pool."""


class FramePanel(Protocol):
    """Panel with text about the current frame. It is drawn less often than the picture of the pool."""

    def show_frame(self) -> None:
        """Draw the player's frame."""


class PlaybackScreen(Transport):
    """Shows the frames of `player`. In a lesson, playback pauses at each caption, and `[` and `]` jump to captions."""

    BINDINGS: ClassVar[list[BindingType]] = [*BINDINGS, Binding("escape", "back", "Back", show=False, id="back")]
    PANELS: ClassVar[str]
    """CSS selector of the panels with text."""
    HINTS: ClassVar[tuple[str, ...]] = HINTS
    """Hints about keys, beside the story, the longest first."""
    compares: ClassVar[bool] = False
    """True if the screen plays several runs beside each other."""
    app: AppInterface

    def __init__(self, player: Player, symbols: Symbols, guided: Guided | None = None) -> None:
        """`guided` is the lesson that `player` plays; None outside lessons."""
        super().__init__(player)
        self.symbols = symbols
        self.guided = guided
        self.story: Story | None = None
        """Story of the run; None if the screen shows none."""
        self._num_ticks = 0
        self._scrubber: Scrubber | None = None
        self._panels: list[FramePanel] = []
        self.set_class(guided is not None, "-lesson")
        self.set_class(self.compares, "-compares")
        self.set_class(guided is not None and bool(guided.draws), "-draws")
        self.set_class(guided is not None and "schedule" in guided.draws, "-schedules")
        if guided is not None:
            player.notable = np.array([caption.frame for caption in guided.captions])
            player.stops_at_notable = True

    def compose(self) -> ComposeResult:
        yield Headline(self.symbols)
        if self.story is not None:
            yield StoryLine(self.story, self.symbols, self.HINTS)
        if self.guided is not None:
            yield CaptionBox(self.guided.captions, self.symbols)
        yield from self.compose_body()
        yield KeyLine(self.symbols)
        yield Static("kvsim needs 60 columns and 16 lines.\nPlease enlarge this terminal; q quits.", id="too-small")

    def compose_body(self) -> ComposeResult:
        raise NotImplementedError

    def on_mount(self) -> None:
        """Show the first frame. Textual calls this in addition to the `on_mount` of a subclass."""
        self._scrubber = self.query_one(Scrubber)
        self._panels = list(self.query(self.PANELS))  # type: ignore[arg-type]
        self.show_headline()
        self.update_clock_and_title()
        self.call_after_refresh(self.show_frame, everything=True)

    @property
    def _ready(self) -> bool:
        """True if the widgets are mounted. False while screens change, and while the program ends."""
        return self in self.app.screen_stack and self._scrubber is not None and self._scrubber.is_attached

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return False until all widgets are mounted, as keys may arrive earlier. Then return Textual's answer."""
        return self._ready and super().check_action(action, parameters)

    def on_resize(self) -> None:
        self.set_class(self.size.height < _LEAST_HEIGHT_FOR_DRAWINGS, "-low")

    def show_headline(self) -> None:
        lesson = [] if self.guided is None else [self.guided.lesson.heading]
        long, short = self.headline()
        self.query_one(Headline).tell(lesson + long, lesson + short)

    def headline(self) -> tuple[list[str], list[str]]:
        """Return the parts of the headline in a long and a short form, the most important part first."""
        raise NotImplementedError

    def show_picture(self) -> None:
        """Draw the player's frame in the pictures, which change with every tick, unlike the panels."""
        raise NotImplementedError

    def show_panels(self) -> None:
        for panel in self._panels:
            panel.show_frame()

    @property
    def followed_name(self) -> str | None:
        """Id of the followed request; None if none is followed."""
        session = next(iter(self.sessions()))
        return None if session.followed is None else session.request_name(session.followed)

    def follow(self, request: int | None) -> None:
        """Follow the request in row `request`: show it in colour, all others in grey, and show its figures.

        If `request` is None, follow no request.
        """
        raise NotImplementedError

    def follow_name(self, name: str | None) -> None:
        """Follow the request with the id `name` in every run. If `name` is None, follow no request."""
        raise NotImplementedError

    def csv_text(self) -> str:
        """Return the figures of the current frame as CSV."""
        return as_csv(self.sessions())

    def file_name(self) -> str:
        """Return a file name for a picture of the current frame, without extension."""
        raise NotImplementedError

    def action_zoom(self, direction: int) -> None:
        raise NotImplementedError

    def action_color(self) -> None:
        raise NotImplementedError

    def action_arrange(self) -> None:
        """Switch between the pool by owner and in physical order, on a screen of one run."""
        self.notify("Watch one run to see its memory by owner.", timeout=3)

    def action_follow_next(self, direction: int) -> None:
        """Follow the next (1) or previous (-1) running or waiting request.

        If none is followed, follow the newest running request, or the first waiting one if none runs.
        """
        session = next(iter(self.sessions()))
        requests = [*session.replay.live_requests().tolist(), *session.replay.waiting_requests().tolist()]
        if not requests:
            self.notify("No request runs or waits now.", timeout=3)
            return
        if session.followed not in requests:
            running = len(session.replay.live_requests())
            self.follow(requests[max(running - 1, 0)])
        else:
            self.follow(requests[(requests.index(session.followed) + direction) % len(requests)])

    def action_find(self) -> None:
        from ..dialogs.find_dialog import FindScreen  # noqa: PLC0415 - nothing that the first picture needs

        self.app.push_screen(FindScreen(next(iter(self.sessions()))), self.show_found)

    def action_diagnose(self) -> None:
        """Simulate the run with changed settings of the server for some seconds, and show the changes that help."""
        from ..dialogs.remedies import RemediesScreen, diagnosed  # noqa: PLC0415 - nothing that the first picture needs

        session = next(iter(self.sessions()))
        if session.rows is not None or not session.added_up:
            self.notify("There is no complete run of a server here.", timeout=3)
            return

        def show(found: Diagnosis) -> None:
            session.diagnosis = found
            self.show_verdict()
            self.app.push_screen(RemediesScreen(found))

        if session.diagnosis is not None:
            show(session.diagnosis)
            return
        self.app.run_in_thread(lambda: diagnosed(session.recording), show, "Simulating what would help")

    def show_verdict(self) -> None:
        """Show the verdict on the run again, after a diagnosis."""

    def action_tree(self) -> None:
        from ..dialogs.tree_page import RadixTreeScreen  # noqa: PLC0415 - nothing that the first picture needs
        from ..facts.tree_nodes import has_tree  # noqa: PLC0415

        session = next((each for each in self.sessions() if has_tree(each)), None)
        if session is None:
            self.notify("No run here keeps a radix tree; kvsim run --policy radix does.", timeout=3)
            return
        self.player.playing = False
        self.app.push_screen(RadixTreeScreen(session))

    def show_found(self, found: tuple[str, int] | None) -> None:
        """Follow the request or select the block that the find dialog returned; None if the dialog returned neither."""
        raise NotImplementedError

    def tick(self, wall_s: float) -> None:
        """Advance playback by `wall_s` seconds, and draw what has changed."""
        moved = self.player.tick(wall_s)
        if not self.player.playing:
            self.show_frame(everything=True)
            return
        self.show_frame(moved=moved)
        self._num_ticks += 1
        num_turns = max(round(_PANEL_UPDATE_S / max(wall_s, 1 / 30)), 1)
        turn = self._num_ticks % num_turns
        if self._ready:
            for panel in self._panels[turn::num_turns]:
                panel.show_frame()
            if not turn:
                self._show_words()

    def show_frame(self, *, moved: bool = True, everything: bool = False) -> None:
        """Draw the picture if the player has `moved` to another frame. If `everything`, also draw panels and texts.

        Then start or stop the clock. Do nothing until all widgets are mounted.
        """
        if not self._ready:
            return
        if moved:
            self.show_picture()
        if everything:
            self.show_panels()
            self._show_words()
        else:
            self.update_clock()

    def _show_words(self) -> None:
        if self.guided is not None:
            self._show_caption()
        self.update_clock_and_title()

    def update_clock(self) -> None:
        """Start the clock if this is the playing screen and playback is not paused; otherwise stop it."""
        self.app.run_clock(running=self.app.plays(self) and self.player.playing)

    def update_clock_and_title(self) -> None:
        """Start or stop the clock, and update the title of the time axis."""
        if self._ready:
            self.update_clock()
            assert self._scrubber is not None  # `_ready` implies it
            self._scrubber.show_clock_title()

    def action_back(self) -> None:
        self.app.leave_playback()

    def on_key(self) -> None:
        """Remove the hint about keys as soon as a key is pressed."""
        for line in self.query(StoryLine):
            line.stop_hinting()

    def action_help(self) -> None:
        from ..dialogs.help import HelpScreen, idea_of_pool  # noqa: PLC0415 - nothing that the first picture needs

        self.app.push_screen(HelpScreen(idea_of_pool(next(iter(self.sessions())).unit_name), self.symbols))

    def _show_caption(self) -> None:
        box = self.query_one(CaptionBox)
        changed = box.show_frame(self.player.frame, playing=self.player.playing)
        if changed is not None:
            self.follow_name(changed.follow)
            self.set_class(changed.draws is not None and changed.draws.stands_alone, "-draws-alone")
