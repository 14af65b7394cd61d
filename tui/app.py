"""The Textual application: loads what it is given, drives the playing screen with a clock, and applies themes."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual._compositor import CompositorUpdate
from textual.binding import Binding
from textual.events import InputEvent

from kvsim.errors import KvsimError

from .look.states import ASCII, COLOR, GLYPHS
from .look.themes import THEMES, palette_of
from .playback.compared_runs import ComparedRuns
from .playback.fleet_servers import FleetServers
from .playback.session import Session
from .playbacks import Playbacks
from .pool.flash import FLASH_S
from .screens.defects import NoTracebackMixin
from .screens.keys import ASCII_KEYS
from .screens.opening import Opening, OpeningJob, OpeningProgress
from .terminal import Link, ScreenContent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.console import RenderableType
    from textual.app import SystemCommand
    from textual.binding import BindingType
    from textual.events import Event
    from textual.screen import Screen
    from textual.theme import Theme

    from kvsim.recording.model import Recording

    from .lessons import Guided
    from .live.feed import Feed

FRAMES_PER_S = 30
CALM_FRAMES_PER_S = 1
_FREEZE_AFTER_S = 0.5
"""Wall seconds between the first picture and `_freeze_objects`."""


class KvsimApp(NoTracebackMixin, Playbacks):
    """Shows a session, a comparison of several sessions, a fleet, or a lesson."""

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
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit", id="quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True, id="quit.interrupt"),
    ]

    def __init__(
        self,
        opening: Session | ComparedRuns | FleetServers | Guided | OpeningJob,
        *,
        ascii: bool = False,  # noqa: A002 - the flag's name
        clock: Callable[[], float] = time.monotonic,
        runs: Callable[[], Sequence[Recording]] | None = None,
        ample: Callable[[], Sequence[float]] | None = None,
        feed: Feed | None = None,
        flash_s: float = FLASH_S,
        calm: bool = False,
    ) -> None:
        """Show `opening`. If that is a function, call it in a thread, and show its result.

        `runs` and `ample` have the same meaning as in `kvsim_tui.run`. `feed` supplies the new steps of a growing
        recording. `clock` returns wall seconds. Changed blocks are highlighted for `flash_s` wall seconds. A `calm`
        interface draws one frame a second and highlights no changes.
        """
        super().__init__(runs=runs, ample=ample, feed=feed)
        self._opening = opening
        self._link = Link()
        self._shown = ScreenContent(self._link)
        self.failure: KvsimError | None = None
        """Error that prevented `opening` from being loaded; None if there was none."""
        self.flash_s = 0.0 if calm else flash_s
        self._frames_per_s = CALM_FRAMES_PER_S if calm else FRAMES_PER_S
        # Without colours, each cell shows its state by a character.
        self.symbols = replace(ASCII if ascii else GLYPHS if "NO_COLOR" in os.environ else COLOR)
        self.animation_level = "none"
        self.set_class(ascii, "-ascii")
        self._clock = clock
        self._ticked_s = 0.0
        self._clock_runs = False
        self._leaving = False
        for theme in THEMES:
            self.register_theme(theme)
        # The first theme is set before the style sheet is read: a change would read and apply all rules again.
        self.set_reactive(KvsimApp.theme, THEMES[0].name)
        self.set_class(True, f"-theme-{THEMES[0].name}")
        self.stylesheet.set_variables(self.get_css_variables())
        self.symbols.palette = palette_of(THEMES[0])

    def get_default_screen(self) -> Screen[None]:
        """Return the playing screen, or a screen that reports progress if `opening` is a function."""
        if isinstance(self._opening, Session | ComparedRuns | FleetServers) or not callable(self._opening):
            return self.playback_for(self._opening)
        self._report = OpeningProgress("reading")
        return Opening(self._report, self.symbols)

    async def _make_opening(self, job: OpeningJob) -> None:
        try:
            shown = await asyncio.to_thread(job, self._report)
        except KvsimError as error:
            self.failure = error
            self.exit()
            return
        if not self._leaving:
            self.push_screen(self.playback_for(shown))
            self.set_timer(_FREEZE_AFTER_S, self._freeze_objects)

    def on_mount(self) -> None:
        self.theme_changed_signal.subscribe(self, self._take_colors)
        self._timer = self.set_interval(1 / self._frames_per_s, self.tick, pause=True)
        if callable(self._opening):
            job = self._opening
            self.call_after_refresh(lambda: self.run_worker(self._make_opening(job)))
        else:
            self.set_timer(_FREEZE_AFTER_S, self._freeze_objects)

    def _freeze_objects(self) -> None:
        """Freeze the objects that live as long as the program, so that the garbage collector skips them."""
        if not self.is_headless:  # a headless application runs inside another program, such as a test
            gc.collect()
            gc.freeze()
            gc.set_threshold(50_000, 20, 100)

    def _take_colors(self, theme: Theme) -> None:
        self.symbols.palette = palette_of(theme)
        for screen in self.screen_stack:
            for widget in screen.query("*"):
                widget.notify_style_update()
                widget.refresh()
        if self.num_playbacks:
            self.playback.show_frame(everything=True)

    def exit(self, result: None = None, return_code: int = 0, message: RenderableType | None = None) -> None:
        """End the program. Keys and mouse are ignored from now on."""
        self._leaving = True
        super().exit(result, return_code, message)

    async def on_event(self, event: Event) -> None:
        """Handle an event. Keys and mouse are ignored while the program ends, because the screens are closing."""
        if not (self._leaving and isinstance(event, InputEvent)):
            await super().on_event(event)

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        update = self._shown.update(renderable) if isinstance(renderable, CompositorUpdate) else renderable
        super()._display(screen, update)

    def tick(self) -> None:
        """Advance the playback by the wall time since the last tick.

        Do nothing while the bytes sent to the terminal exceed the rate of the link.
        """
        if not self._link.is_free(time.monotonic()):
            return
        now_s = self._clock()
        elapsed_s, self._ticked_s = now_s - self._ticked_s, now_s
        if self.num_playbacks:  # the clock may still tick while the program ends
            self.playback.tick(elapsed_s)

    def run_clock(self, *, running: bool) -> None:
        """Start or stop the regular calls of `tick`."""
        if running == self._clock_runs:
            return
        self._clock_runs = running
        if running:
            self._ticked_s = self._clock()
            self._timer.resume()
        else:
            self._timer.pause()

    def action_save(self, kind: str) -> None:
        """Save the screen ("svg" or "png") or its numbers ("csv") in the current folder."""
        from .saving import save  # noqa: PLC0415 - nothing that the first picture needs

        save(self, self.playback, kind)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Return the entries of the command palette: the actions of the playing screen, then Textual's own."""
        if self.num_playbacks:
            from .commands import commands  # noqa: PLC0415 - nothing that the first picture needs

            yield from commands(self, self.playback)
        hidden = {"Screenshot", "Keys", "Maximize", "Minimize"}
        yield from (command for command in super().get_system_commands(screen) if command.title not in hidden)

    def action_command_palette(self) -> None:
        from .commands import choose  # noqa: PLC0415 - nothing that the first picture needs

        choose(self, self.get_system_commands(self.screen), "What shall be done?")

    def search_themes(self) -> None:
        from .commands import choose, themes  # noqa: PLC0415 - nothing that the first picture needs

        choose(self, themes(self), "Which theme?")

    def get_key_display(self, binding: Binding) -> str:
        """Return the name of a key for the footer. In plain ASCII, arrow keys are spelled out."""
        if not self.symbols.ascii:
            return super().get_key_display(binding)
        return binding.key_display or ASCII_KEYS.get(binding.key, binding.key)
