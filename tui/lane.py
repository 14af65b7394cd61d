"""One run of a comparison: where its memory is, how far it has come, and who has to wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from .brush import swatch
from .facts import selection
from .states import LOOKS, STACK
from .waste_bar import state_bar
from .words import plural, seconds, shortened

if TYPE_CHECKING:
    from kvsim.memory.waste import SlotState

    from .comparison import Comparison, Lane
    from .states import Symbols

_NAMES_SHOWN = 12
"""Waiting requests that are named; nobody reads more."""


class LaneFigures(Widget):
    """The tokens served so far, the waste bar, and who runs and waits; or that everything is done."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"lane--text", "lane--label", "lane--strong", "lane--served", "lane--left"}

    def __init__(self, lane: Lane, symbols: Symbols, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._lane = lane
        self._symbols = symbols
        self._num_running, self._num_waiting = (lane.session.counts(name) for name in ("running", "waiting"))

    def show_frame(self) -> None:
        """Follow the run to its current frame."""
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Progress as tall as there is room for, then memory, then words."""
        width, height = self.size
        num_bars = max(height - 3, 1) if height > 4 else 1
        if y < num_bars:
            line = self._progress(width, y)
        elif y == num_bars:
            line = state_bar(self._lane.session.breakdown, width, self._symbols)
        elif y == num_bars + 1:
            line = Strip(self._counts(with_tokens=num_bars == 1))
        else:
            line = Strip(self._who())
        return line.adjust_cell_length(width, self._style("text"))

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"lane--{name}")

    def _progress(self, width: int, y: int) -> Strip:
        """Line `y` of the bar of tokens served, against what the requests ask for in all."""
        session = self._lane.session
        served, total = int(session.served[session.player.frame]), int(session.served[-1])
        what, noun = ("answers", "tokens") if session.rows is None else ("sequences", "sequences")
        share = f" {100 * served / max(total, 1):3.0f}% of all {what} "
        figures = share if y == 0 else f" {served:,} {noun} " if y == 1 else ""
        room = max(width - len(share), 1)
        eighths = round(served / max(total, 1) * room * 8)
        whole, part = divmod(max(eighths, served > 0), 8)
        glyphs = self._symbols.right or self._symbols.up
        edge = glyphs[part] if part and self._symbols.right else ""
        done = self._style("served")
        return Strip(
            [
                Segment(glyphs[8] * whole + edge, self._style("left") + done),
                Segment(
                    (" " if self._symbols.color else self._symbols.states[-1]) * (room - whole - len(edge)),
                    self._style("left"),
                ),
                Segment(figures.ljust(len(share)), self._style("strong")),
            ]
        )

    def _counts(self, *, with_tokens: bool) -> list[Segment]:
        session, dot = self._lane.session, self._symbols.dot
        if session.rows is not None:
            return [Segment(str(session.rows), self._style("strong" if self._lane.over else "text"))]
        served = [f"{int(session.served[session.player.frame]):,} tokens"] if with_tokens else []
        refused = [f"{session.num_refused:,} refused"] if session.num_refused else []
        if self._lane.over:
            when = seconds(session.player.duration_s, session.player.duration_s / 100)
            done = Segment(f"done after {when}", self._style("strong"))
            return [done, Segment("".join(f" {dot} {part}" for part in (*refused, *served)), self._style("text"))]
        frame = session.player.frame
        parts = [f"{self._num_running[frame]:,} running", f"{self._num_waiting[frame]:,} waiting", *refused, *served]
        return [Segment(f" {dot} ".join(parts), self._style("text"))]

    def _who(self) -> list[Segment]:
        """The unit or request that somebody looks at; else the head of the queue, by name."""
        session, cut = self._lane.session, self._symbols.cut
        inspected = selection(session)
        if inspected:
            return [Segment(shortened(inspected, self.size.width, cut), self._style("text"))]
        waiting = session.replay.waiting_requests()[:_NAMES_SHOWN].tolist()
        if not waiting or self._lane.over:
            finished = plural(session.num_finished, "request") + " finished" if session.rows is None else ""
            return [Segment(finished, self._style("label"))]
        names = " ".join(session.request_name(request) for request in waiting)
        text = shortened(f"next: {names}", self.size.width, cut)
        return [Segment(text, self._style("label"))]


class Legend(Widget):
    """The states that any of the runs ever has, in one line."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"legend--text"}

    def __init__(self, comparison: Comparison, symbols: Symbols) -> None:
        super().__init__(id="legend")
        ever = sum(lane.session.slots.max(axis=0) for lane in comparison.lanes)
        self._states = [state for state in STACK if ever[state]]
        self._symbols = symbols

    def render_line(self, y: int) -> Strip:
        """With what they mean where there is room."""
        del y
        style, width = self.get_component_rich_style("legend--text"), self.size.width
        texts = [[self._entry(state, meaning=meaning) for state in self._states] for meaning in (True, False)]
        entries = next((line for line in texts if sum(map(len, line)) + 2 * len(line) <= width), texts[-1])
        segments = [
            segment
            for state, text in zip(self._states, entries, strict=True)
            for segment in (swatch(state, self._symbols), Segment(text + " ", style))
        ]
        return Strip(segments).adjust_cell_length(width, style)

    def _entry(self, state: SlotState, *, meaning: bool) -> str:
        look = LOOKS[state]
        return f" {look.name}: {look.meaning}" if meaning else f" {look.name}"
