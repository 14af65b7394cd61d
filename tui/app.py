"""The application: how it opens, its clock, its colours, and what it does aside."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.events import InputEvent

from kvsim.display.text import message
from kvsim.errors import KvsimError

from .look.states import ASCII, COLOR, GLYPHS
from .look.themes import THEMES, palette_of
from .playback.comparison import Comparison
from .playback.session import Session
from .playbacks import Playbacks
from .pool.flash import FLASH_S
from .screens.defects import Careful
from .screens.host import Result
from .screens.keys import ASCII_KEYS
from .screens.opening import Job, Opening, Report

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
_SETTLE_S = 0.5
"""Wall seconds after which there is a picture to look at, and time for the collector."""


class KvsimApp(Careful, Playbacks):
    """Shows a session, several in comparison, or a lesson. `clock` returns wall seconds; tests pass their own."""

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
        opening: Session | Comparison | Guided | Job,
        *,
        ascii: bool = False,  # noqa: A002 - the flag's name
        clock: Callable[[], float] = time.monotonic,
        runs: Callable[[], Sequence[Recording]] | None = None,
        ample: Callable[[], Sequence[float]] | None = None,
        feed: Feed | None = None,
        flash_s: float = FLASH_S,
    ) -> None:
        """Args: what to show first or what makes it in a thread, how to draw, the clock, what makes runs to compare,
        how fast these would be with memory for everything, what `opening` grows by, and how many wall seconds changes
        are lit up.
        """
        super().__init__(runs=runs, ample=ample, feed=feed)
        self._opening = opening
        self.failure: KvsimError | None = None
        """The error because of which there was nothing to show."""
        self.flash_s = flash_s
        # Without colours, states are read from glyphs, one per cell.
        self.symbols = replace(ASCII if ascii else GLYPHS if "NO_COLOR" in os.environ else COLOR)
        self.animation_level = "none"
        self.set_class(ascii, "-ascii")
        self._clock = clock
        self._ticked_s = 0.0
        self._keeping_time = False
        self._busy = False
        self._leaving = False
        for theme in THEMES:
            self.register_theme(theme)
        # The first theme is set before the style sheet is read: a change would read and apply all rules again.
        self.set_reactive(KvsimApp.theme, THEMES[0].name)
        self.set_class(True, f"-theme-{THEMES[0].name}")
        self.stylesheet.set_variables(self.get_css_variables())
        self.symbols.palette = palette_of(THEMES[0])

    def get_default_screen(self) -> Screen[None]:
        """Return the screen that plays the opening, or the one that reports progress until it is loaded."""
        if isinstance(self._opening, Session | Comparison) or not callable(self._opening):
            return self.playback_for(self._opening)
        self._report = Report("reading")
        return Opening(self._report, self.symbols)

    async def _make_opening(self, job: Job) -> None:
        try:
            shown = await asyncio.to_thread(job, self._report)
        except KvsimError as error:
            self.failure = error
            self.exit(return_code=1)
            return
        if not self._leaving:
            self.push_screen(self.playback_for(shown))
            self.set_timer(_SETTLE_S, self._settle)

    def on_mount(self) -> None:
        """Make the clock, paused, and whatever takes time to make."""
        self.theme_changed_signal.subscribe(self, self._take_colors)
        self._timer = self.set_interval(1 / FRAMES_PER_S, self.tick, pause=True)
        if callable(self._opening):
            job = self._opening
            self.call_after_refresh(lambda: self.run_worker(self._make_opening(job)))
        else:
            self.set_timer(_SETTLE_S, self._settle)

    def _settle(self) -> None:
        """Keep the collector away from what lives as long as the program."""
        if not self.is_headless:  # then the process belongs to another program
            gc.collect()
            gc.freeze()
            gc.set_threshold(50_000, 20, 100)

    def _take_colors(self, theme: Theme) -> None:
        """Draw the pictures for a dark or a light background."""
        self.symbols.palette = palette_of(theme)
        for screen in self.screen_stack:
            for widget in screen.query("*"):
                widget.notify_style_update()
                widget.refresh()
        if self.num_playbacks:
            self.playback.show_frame(everything=True)

    def exit(self, result: None = None, return_code: int = 0, message: RenderableType | None = None) -> None:
        """Leave."""
        self._leaving = True
        super().exit(result, return_code, message)

    async def on_event(self, event: Event) -> None:
        """Ignore keys and mouse while the program ends: the screens that they would reach are closing."""
        if not (self._leaving and isinstance(event, InputEvent)):
            await super().on_event(event)

    def tick(self) -> None:
        """Advance the playback by the wall time since the last tick."""
        now_s = self._clock()
        elapsed_s, self._ticked_s = now_s - self._ticked_s, now_s
        if self.num_playbacks:  # the clock may run on a little while the program ends
            self.playback.tick(elapsed_s)

    def keep_time(self, *, running: bool) -> None:
        """Run the clock, or let it rest."""
        if running == self._keeping_time:
            return
        self._keeping_time = running
        if running:
            self._ticked_s = self._clock()
            self._timer.resume()
        else:
            self._timer.pause()

    def aside(self, job: Callable[[], Result], then: Callable[[Result], None], what: str) -> None:
        """Run `job` in a thread and pass its result to `then`; notify that `what` is under way, and of an error."""
        if self._busy:
            return

        async def work() -> None:
            try:
                result = await asyncio.to_thread(job)
            except KvsimError as error:
                self.notify(message(str(error)), severity="error", timeout=10, markup=False)
            else:
                then(result)
            finally:
                self._busy = False

        self._busy = True
        self.notify(f"{what}.", timeout=3, markup=False)
        self.run_worker(work())

    def action_save(self) -> None:
        """Save what is on the screen beside the person's other files."""
        from .saving import save_picture  # noqa: PLC0415 - nothing that the first picture needs

        save_picture(self, self.playback)

    def action_save_png(self) -> None:
        """Save a picture of the screen as PNG."""
        from .saving import save_png  # noqa: PLC0415 - nothing that the first picture needs

        save_png(self, self.playback)

    def action_save_numbers(self) -> None:
        """Save the numbers on the screen as CSV."""
        from .saving import save_numbers  # noqa: PLC0415 - nothing that the first picture needs

        save_numbers(self, self.playback)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Return the entries of the palette: the player's actions by name, then those of every Textual program."""
        if self.num_playbacks:
            from .commands import commands  # noqa: PLC0415 - nothing that the first picture needs

            yield from commands(self, self.playback)
        hidden = {"Screenshot", "Keys", "Maximize", "Minimize"}
        yield from (command for command in super().get_system_commands(screen) if command.title not in hidden)

    def action_command_palette(self) -> None:
        """Choose a command by its name."""
        from .commands import choose  # noqa: PLC0415 - nothing that the first picture needs

        choose(self, self.get_system_commands(self.screen), "What shall be done?")

    def search_themes(self) -> None:
        """Choose a theme by its name."""
        from .commands import choose, themes  # noqa: PLC0415 - nothing that the first picture needs

        choose(self, themes(self), "Which theme?")

    def get_key_display(self, binding: Binding) -> str:
        """Return the name of a key for the footer: words where arrows cannot be drawn."""
        if not self.symbols.ascii:
            return super().get_key_display(binding)
        return binding.key_display or ASCII_KEYS.get(binding.key, binding.key)
