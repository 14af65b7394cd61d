"""The application: panels around one session, the keys, and the clock that plays it."""

from __future__ import annotations

import gc
import os
import time
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import App, SystemCommand
from textual.containers import Horizontal, Vertical
from textual.widgets import Footer, Static

from .event_list import EventList
from .find import FindScreen
from .headline import Headline
from .help import HelpScreen
from .keys import ASCII_KEYS, BINDINGS
from .panels import BlockTable, Inspector, Panel, Queue
from .picture_file import svg_of, write_atomically
from .pool_view import PoolView
from .states import ASCII, COLOR, GLYPHS
from .themes import THEMES
from .timeline import Timeline
from .waste_bar import WasteBar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from textual.app import ComposeResult
    from textual.binding import Binding, BindingType
    from textual.screen import Screen

    from .session import Session

FRAMES_PER_S = 30
_TICKS_PER_PANEL_UPDATE = 4
"""While playing, text changes less often than the picture: nobody reads thirty times a second."""


class KvsimApp(App[None]):
    """Plays `session`. `clock` returns wall seconds; tests pass their own."""

    CSS_PATH = "kvsim.tcss"
    TITLE = "kvsim"
    AUTO_FOCUS = None
    ENABLE_COMMAND_PALETTE = True
    HORIZONTAL_BREAKPOINTS: list[tuple[int, str]] | None = [  # noqa: RUF012 - Textual declares it so
        (0, "-too-narrow"),
        (60, "-narrow"),
        (100, "-wide"),
        (160, "-xwide"),
    ]
    VERTICAL_BREAKPOINTS: list[tuple[int, str]] | None = [  # noqa: RUF012
        (0, "-too-short"),
        (16, "-short"),
        (38, "-tall"),
        (50, "-xtall"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [*BINDINGS]

    def __init__(self, session: Session, *, ascii: bool = False, clock: Callable[[], float] = time.monotonic) -> None:  # noqa: A002 - the flag's name
        super().__init__()
        self.session = session
        # Whoever reads without colours reads states from glyphs, one per cell.
        self.symbols = ASCII if ascii else GLYPHS if "NO_COLOR" in os.environ else COLOR
        self.animation_level = "none"
        self.set_class(ascii, "-ascii")
        self._clock = clock
        self._ticked_s = 0.0
        self._num_ticks = 0
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = THEMES[0].name

    @property
    def _main(self) -> Screen[object]:
        """The screen with the panels, whatever lies on top of it."""
        return self.screen_stack[0]

    def compose(self) -> ComposeResult:
        """The panels; the style sheet decides which of them there is room for."""
        session, symbols = self.session, self.symbols
        yield Headline(session, symbols)
        with Horizontal(id="body"):
            with Vertical(id="main"):
                yield PoolView(session.replay, symbols)
                yield WasteBar(session, symbols)
                yield Timeline(session, symbols)
            with Vertical(id="side"):
                yield Inspector(session, symbols)
                yield BlockTable(session, symbols)
                yield Queue(session, symbols)
            with Vertical(id="far"):
                yield EventList(session, symbols)
        yield Footer(compact=True)
        yield Static("kvsim needs 60 columns and 16 lines.\nPlease enlarge this terminal; q quits.", id="too-small")

    def on_mount(self) -> None:
        """Make the clock, paused; and keep the collector away from what lives as long as the program."""
        self._timer = self.set_interval(1 / FRAMES_PER_S, self.tick, pause=True)
        if not self.is_headless:  # then the process is somebody else's
            gc.collect()
            gc.freeze()
            gc.set_threshold(50_000, 20, 100)
        self._show_transport()

    def tick(self) -> None:
        """Let the wall time pass that has passed since the last tick."""
        now_s = self._clock()
        elapsed_s, self._ticked_s = now_s - self._ticked_s, now_s
        moved = self.session.player.tick(elapsed_s)
        self._num_ticks += 1
        if not self.session.player.playing:
            self._show(everything=True)
        else:
            self._show(moved=moved, everything=self._num_ticks % _TICKS_PER_PANEL_UPDATE == 0)

    def action_play(self) -> None:
        """Play or pause."""
        self.session.player.toggle()
        self._ticked_s = self._clock()
        self._show(everything=True)

    def action_step(self, frames: int) -> None:
        """Pause, and move by engine steps."""
        self.session.player.step(frames)
        self._show(everything=True)

    def action_event(self, direction: int) -> None:
        """Pause at the next or the previous notable event."""
        if not self.session.player.jump(direction):
            self.notify("There is no further event in this direction.", timeout=3)
        self._show(everything=True)

    def action_speed(self, direction: int) -> None:
        """Play faster or slower."""
        self.session.player.change_speed(direction)
        self._show_transport()

    def action_go(self, share: int) -> None:
        """Go to the beginning (0) or the end (1)."""
        player = self.session.player
        player.go_to_frame(player.last_frame * share)
        self._show(everything=True)

    def action_zoom(self, direction: int) -> None:
        """Show the pool in more or less detail."""
        if not self._main.query_one(PoolView).zoom(direction):
            self.notify("This is the most detail." if direction > 0 else "This is the whole pool.", timeout=3)

    def action_find(self) -> None:
        """Ask for a request or a block."""
        self.push_screen(FindScreen(self.session), self._found)

    def action_help(self) -> None:
        """Explain the screen and the keys."""
        self.push_screen(HelpScreen(self.session, self.symbols))

    def action_save(self) -> None:
        """Save what is on the screen beside the person's other files."""
        name = f"{self.session.recording.name or 'kvsim'}-step{self.session.player.frame}.svg"
        try:
            target = write_atomically(svg_of(self), name)
        except OSError as error:
            self.notify(f"Cannot write {name}: {error.strerror}.", severity="error")
        else:
            self.notify(f"Saved {target}.")

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette: the player's actions by name, then what every Textual program offers."""
        yield SystemCommand("Play or pause", "Run the recording's clock", self.action_play)
        yield SystemCommand("Next event", "Jump to the next preemption, refusal or end", lambda: self.action_event(1))
        yield SystemCommand("Previous event", "Jump back to one", lambda: self.action_event(-1))
        yield SystemCommand("Find", "Follow a request, or select a block", self.action_find)
        yield SystemCommand("Follow nobody", "Light the whole pool again", lambda: self.follow(None))
        yield SystemCommand("More detail", "Zoom into the pool", lambda: self.action_zoom(1))
        yield SystemCommand("Less detail", "Zoom out of the pool", lambda: self.action_zoom(-1))
        yield SystemCommand("Save a picture", "Write the screen as an SVG file", self.action_save)
        yield SystemCommand("Explain this screen", "What the panels, colours and keys mean", self.action_help)
        hidden = {"Screenshot", "Keys", "Maximize", "Minimize"}
        yield from (command for command in super().get_system_commands(screen) if command.title not in hidden)

    def get_key_display(self, binding: Binding) -> str:
        """Keys as the footer names them: words where arrows cannot be drawn."""
        if self.symbols is not ASCII:
            return super().get_key_display(binding)
        return binding.key_display or ASCII_KEYS.get(binding.key, binding.key)

    def follow(self, request: int | None) -> None:
        """Keep one request lit, and show its figures."""
        self.session.followed = request
        self._main.set_class(request is not None, "-following")
        self._main.query_one(PoolView).follow(request)
        self._update_panels()

    @on(PoolView.Selected)
    def _unit_selected(self, message: PoolView.Selected) -> None:
        self.session.selected = message.unit
        self._update_panels()

    @on(PoolView.Follow)
    def _pool_follows(self, message: PoolView.Follow) -> None:
        self.follow(message.request)

    @on(Panel.Picked)
    def _request_picked(self, message: Panel.Picked) -> None:
        self.follow(message.request)

    @on(Timeline.Scrubbed)
    def _scrubbed(self, message: Timeline.Scrubbed) -> None:
        self.session.player.go_to_time(message.time_s)
        self._show(everything=True)

    @on(EventList.Jumped)
    def _jumped(self, message: EventList.Jumped) -> None:
        player = self.session.player
        player.step(message.frame - player.frame)
        self._show(everything=True)
        self.follow(message.request)

    def _found(self, found: tuple[str, int] | None) -> None:
        if found is None:
            return
        kind, number = found
        if kind == "request":
            self.follow(number)
        else:
            self._main.query_one(PoolView).select(number)

    def _show(self, *, moved: bool = True, everything: bool = False) -> None:
        """Draw the player's frame: the picture if it `moved`, the panels too if `everything` should follow."""
        if moved:
            self.session.show()
            self._main.query_one(PoolView).show_frame()
        if everything:
            self.session.show()
            self._update_panels()
        self._show_transport()

    def _update_panels(self) -> None:
        for panel in self._main.query("WasteBar, Timeline, Panel, EventList"):
            panel.show_frame()  # type: ignore[attr-defined]

    def _show_transport(self) -> None:
        playing = self.session.player.playing
        if playing:
            self._timer.resume()
        else:
            self._timer.pause()
        self._main.query_one(Timeline).show_transport()
