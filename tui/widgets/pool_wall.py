"""Main widget of the screen of a fleet: a strip for each server, the fullest pool first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.message import Message
from textual.strip import Strip

from kvsim.display.palette import mixed
from kvsim.memory.waste import SlotState

from ..facts.fleet_telling import beside_pool, that_fits, way, why_waiting
from ..look.stack import EIGHTHS, bar_text, columns
from ..look.wording import ending, percent, shortened
from .panel import LineBox
from .scrubber import GUTTER, under_cursor

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from textual import events

    from kvsim.recording.tables import FloatArray

    from ..look.states import Symbols
    from ..playback.fleet_servers import FleetServers, ServerNow, Visit

_HELD, _RUNNING, _WAITING, _HITS = 7, 9, 9, 12
"""Widths of the columns of figures beside a strip, in characters."""
FIGURES: Final = _HELD + _RUNNING + _WAITING + _HITS + 1
_MOST_BAR, _LEAST_AXIS = 10, 56
"""Width in columns of the bar of waiting requests, and the least width that the time axis keeps beside the bar."""
_MOST_LINES = 9
"""Largest number of lines of a strip, including the empty line below it."""
_LEAST_APART = 3
"""If strips have at least this many lines, the last line has no text, to separate the strip from the next one."""


def columns_right_of_axis(width: int) -> int:
    """Return the number of columns right of the time axis: for figures and, with room, the bar of waiting requests."""
    return FIGURES + (_MOST_BAR if width - GUTTER - FIGURES - _MOST_BAR >= _LEAST_AXIS else 0)


class PoolWall(LineBox):
    """Strips of the servers: the held share of each pool over the whole run, and figures at the current time.

    Servers without room share the last strip.
    """

    can_focus = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {"wall--picked", "wall--bar"}

    @dataclass
    class Opened(Message):
        """The user wants to watch one server alone."""

        server: int

    def __init__(self, fleet: FleetServers, symbols: Symbols) -> None:
        super().__init__(symbols, id="wall")
        self._fleet = fleet
        self.picked = 0
        """Index of the selected strip in `shown`."""
        self.shown: list[int] = []
        """Indices in `FleetServers.servers` of the servers that have their own strip, from top to bottom."""
        self._lines_each = 1
        self._axis: FloatArray = np.empty(0)
        self._held: dict[int, FloatArray] = {}

    def pick(self, direction: int) -> None:
        """Select the next (1) or previous (-1) strip."""
        self.picked = min(max(self.picked + direction, 0), max(len(self.shown) - 1, 0))
        self.show_frame()

    def write(self) -> list[Strip]:
        """Return the heading, the strips, and a last line.

        The last line is about the followed request. If none is followed, it says which figures the shared strip has; it
        is left out if no servers share a strip. Return no line if there is no room for a chart.
        """
        width, height = self.size
        fleet, axis_width = self._fleet, width - GUTTER - columns_right_of_axis(width)
        if axis_width < 1 or height < 3:
            return []
        clock_s, player = fleet.player.clock_s, fleet.player
        edges_s = np.linspace(player.begin_s, player.duration_s, axis_width + 1)
        if len(edges_s) != len(self._axis):
            self._axis, self._held = edges_s, {}
        now, visits = fleet.at(clock_s), fleet.visits(fleet.followed)
        ranked = fleet.fullest(now)
        visited = {visit.server for visit in visits}
        ranked.sort(key=lambda number: number not in visited)  # the followed request's servers come first
        self._show_title(visits, width - 4)
        room = height - 1
        lines_each = min(max(room // len(ranked), 1), _MOST_LINES)
        if visits or len(ranked) > room:
            room -= 1  # for the last line
        num_own = len(ranked) if len(ranked) <= room else room - 1
        self.shown, self._lines_each = ranked[:num_own], lines_each
        self.picked = min(self.picked, max(num_own - 1, 0))
        most_waiting = max((state.waiting for state in now), default=0)
        drawn = [self._heading(visits, axis_width)]
        for place in range(num_own):
            drawn += self._strip(place, now, visits, most_waiting)
        if num_own < len(ranked):
            drawn.append(self._folded(ranked[num_own:], now, most_waiting))
        last = self._last_line(visits, num_folded=len(ranked) - num_own)
        drawn += [self.blank()] * (height - len(last) - len(drawn))
        return [*drawn[: height - len(last)], *last]

    def _show_title(self, visits: Sequence[Visit], room: int) -> None:
        first = f"with {self._fleet.followed} (> now), then the " if visits else ""
        order = f"{self.symbols.dot} {first}fullest first"
        title = f"share of each pool held, from the start of the run to its end {order}"
        if len(title) > room:
            title = f"share of each pool held over the run {order}"
        self.border_title = shortened(title, room, self.symbols.cut)

    def _heading(self, visits: Sequence[Visit], axis_width: int) -> Strip:
        figures = f"{'held':>{_HELD}}{'running':>{_RUNNING}}{'cache hits':>{_HITS}}{'waiting':>{_WAITING}}"
        legend, note = self._legend(visits, axis_width), "now:"
        legend_width = legend.cell_length
        legend = legend.adjust_cell_length(axis_width, self.get_component_rich_style("panel--text"))
        if legend_width - 1 + len(note) <= axis_width:
            legend = Strip.join([legend.crop(0, axis_width - len(note)), Strip([self.text(note, "weak")])])
        return Strip([self.text(" " * GUTTER), *legend, self.text(figures, "label")])

    def _strip(self, place: int, now: Sequence[ServerNow], visits: Sequence[Visit], most_waiting: int) -> list[Strip]:
        """Return the strip of the server `shown[place]`: its name, its chart, its figures, and texts about it.

        `now` has the state of every server, `visits` the visits of the followed request. `most_waiting` waiting
        requests fill the bar. The last line of a strip marks the stay of the followed request. In a strip of one line,
        the chart marks it.
        """
        number = self.shown[place]
        server, state = self._fleet.servers[number], now[number]
        marks_below = self._lines_each > 1
        height = self._lines_each - 1 if marks_below else 1
        stay = self._columns_of([visit for visit in visits if visit.server == number])
        chart = self._chart(
            place, self._held_of(number), state.held_share, height=height, stay=None if marks_below else stay
        )
        is_here = any(visit.server == number and self._is_now(visit) for visit in visits)
        name = ending(server.name, GUTTER - 4, self.symbols.cut)
        label = f"{'>' if is_here else ' '} {name}".ljust(GUTTER - 1)
        is_picked = place == self.picked
        style = self.get_component_rich_style("wall--picked") if is_picked else self.text("", "strong").style
        lines = [
            [
                Segment(label, style),
                self.text(" "),
                *chart[0],
                *self._figures(state, most_waiting, has_hits=server.kind != "decode"),
            ],
            *([self.text(" " * GUTTER), *line] for line in chart[1:]),
        ]
        if marks_below:
            lines.append([self.text(" " * GUTTER), *self._stay_below(stay)])
        room = columns_right_of_axis(self.size.width) - 2
        why = that_fits(why_waiting(self._fleet, server, self._fleet.player.clock_s), room)
        beside = [(why, "text")] if why else []
        beside += [(text, "weak") for text in beside_pool(self._fleet, server, state, room)]
        with_text = lines[1 : self._lines_each - (self._lines_each >= _LEAST_APART)]
        for line, (text, kind) in zip(with_text, beside, strict=False):
            line.append(self.text(f"  {text}", kind))
        return [Strip(line) for line in lines]

    def _figures(self, state: ServerNow, most_waiting: int, *, has_hits: bool = True) -> list[Segment]:
        """Return the figures right of a chart and, if there is room, the bar of waiting requests.

        `has_hits` is False for a server that looks up no prompts. `most_waiting` requests fill the bar.
        """
        bar = columns_right_of_axis(self.size.width) - FIGURES
        hits = percent(state.hit_tokens, state.prompt_tokens) if has_hits and state.prompt_tokens else self.symbols.dash
        text = f"{percent(state.held_share, 1):>{_HELD}}{state.running:>{_RUNNING},}{hits:>{_HITS}}"
        return [
            self.text(text),
            self.text(f"{state.waiting:>{_WAITING},} ", "strong" if state.waiting else "text"),
            *([self._bar(state.waiting, most_waiting, bar)] if bar else []),
        ]

    def _bar(self, value: int, most: int, width: int) -> Segment:
        text = bar_text(value / max(most, 1), width - 1, self.symbols)
        return Segment(text.ljust(width), self.get_component_rich_style("wall--bar"))

    def _folded(self, numbers: Sequence[int], now: Sequence[ServerNow], most_waiting: int) -> Strip:
        """Return the strip that the servers `numbers` share, which are indices of servers in `now`.

        It has the mean of the held shares, and sums of running requests, waiting requests and tokens. The bar is full
        with `most_waiting` waiting requests or, if that is larger, with the sum.
        """
        # The mean of a sample of about 50 servers is exact enough for one line, and cheap in a large fleet.
        held = np.mean([self._held_of(number) for number in numbers[:: max(len(numbers) // 50, 1)]], axis=0)
        states = [now[number] for number in numbers]
        together = states[0]._replace(
            held_share=float(np.mean([state.held_share for state in states])),
            running=sum(state.running for state in states),
            waiting=sum(state.waiting for state in states),
            prompt_tokens=sum(state.prompt_tokens for state in states),
            hit_tokens=sum(state.hit_tokens for state in states),
        )
        label = f"  {len(numbers):,} more".ljust(GUTTER)
        figures = self._figures(together, max(most_waiting, together.waiting))
        return Strip(
            [self.text(label, "label"), *self._chart(len(self.shown), held, together.held_share, height=1)[0], *figures]
        )

    def _held_of(self, number: int) -> FloatArray:
        if number not in self._held:
            self._held[number] = self._fleet.servers[number].held_between(self._axis)
        return self._held[number]

    def _chart(
        self, place: int, held: FloatArray, now_share: float, *, height: int, stay: npt.NDArray[np.bool_] | None = None
    ) -> list[list[Segment]]:
        """Return the lines of the chart in strip number `place`, which counts from 0 at the top.

        `held` has the held share of the pool in each column, `now_share` the share at the clock. `stay` marks the
        columns in which the followed request is on the server; the last line shows them, unless it is None.
        """
        symbols, states = self.symbols, self.symbols.palette.states
        clock = self._column(self._fleet.player.clock_s)
        held = np.concatenate((held[:clock], [now_share], held[clock + 1 :]))
        # In strips that touch, a full pool takes seven eighths of a line, so that they stay apart.
        touches = self._lines_each == 1
        cells = columns(held, EIGHTHS / (EIGHTHS - 1) if touches else 1.0, height)
        if stay is not None:
            cells[-1] = np.maximum(cells[-1], stay)
        ground, hue = states[SlotState.FREE] if symbols.color else None, symbols.palette.hues[1]
        if ground is not None and touches and place % 2:
            ground = mixed(ground, symbols.palette.void, 0.4)
        lines = []
        for row, eighths in enumerate(cells.tolist()):
            here = stay.tolist() if stay is not None and row == height - 1 else [False] * len(eighths)
            line = [
                Segment(
                    symbols.held if stays and not symbols.color else symbols.up[part],
                    Style(color=hue if stays else states[SlotState.TOKEN], bgcolor=ground),
                )
                for part, stays in zip(eighths, here, strict=True)
            ]
            line[clock] = under_cursor(line[clock], symbols)
            lines.append(list(Strip(line).simplify()))
        return lines

    def _stay_below(self, stay: npt.NDArray[np.bool_]) -> Strip:
        style = Style(color=self.symbols.palette.hues[1])
        return Strip([Segment(self.symbols.held if here else " ", style) for here in stay.tolist()]).simplify()

    def _column(self, time_s: float) -> int:
        player, width = self._fleet.player, len(self._axis) - 1
        share = (time_s - player.begin_s) / max(player.duration_s - player.begin_s, 1e-300)
        return min(max(int(share * width), 0), width - 1)

    def _columns_of(self, visits: Sequence[Visit]) -> npt.NDArray[np.bool_]:
        """Mark the columns of the axis in which the followed request is on a server."""
        here = np.zeros(len(self._axis) - 1, np.bool_)
        for visit in visits:
            end_s = self._fleet.player.duration_s if np.isnan(visit.end_s) else visit.end_s
            here[self._column(visit.arrival_s) : self._column(end_s) + 1] = True
        # The column of the clock shows the current time alone.
        here[self._column(self._fleet.player.clock_s)] = any(map(self._is_now, visits))
        return here

    def _is_now(self, visit: Visit) -> bool:
        clock_s = self._fleet.player.clock_s
        return visit.arrival_s <= clock_s and not visit.end_s <= clock_s  # the end is NaN while the request is there

    def _legend(self, visits: Sequence[Visit], width: int) -> Strip:
        palette, symbols = self.symbols.palette, self.symbols
        held, free = palette.states[SlotState.TOKEN], palette.states[SlotState.FREE]
        mark, blank = ("■", "■") if symbols.color else (symbols.up[-1], symbols.dot)
        here = [(mark, palette.hues[1], f"{self._fleet.followed} is here")] if visits else []
        for by in (" by requests", ""):
            entries = [
                (mark, held, f"held{by}"),
                *here,
                (
                    blank,
                    free if symbols.color else palette.free_glyph_color,
                    "free or cached" if by else "free, cached",
                ),
            ]
            if sum(len(words) + 4 for _, _, words in entries) - 2 <= width:
                break
        segments = [
            segment
            for glyph, color, words in entries
            for segment in (Segment(glyph, Style(color=color)), self.text(f" {words}{' ' * (1 + bool(by))}", "weak"))
        ]
        return Strip(segments)

    def _last_line(self, visits: Sequence[Visit], *, num_folded: int) -> list[Strip]:
        width, name = self.size.width, self._fleet.followed
        if visits:
            texts = [
                f"{name}  {way(self._fleet, list(visits), self.symbols.arrow, short=short)}" for short in (False, True)
            ]
            text = next((text for text in texts if len(text) <= width), shortened(texts[-1], width, self.symbols.cut))
            return [Strip([self.text(text, "strong")])]
        if num_folded:
            text = f"{num_folded:,} more: mean held, sums of the other figures"
            return [Strip([self.text(" " * GUTTER), self.text(text, "weak")])]
        return []

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        place = -1 if offset is None else (offset.y - 1) // self._lines_each
        if 0 <= place < len(self.shown):
            if place == self.picked and event.chain > 1:
                self.post_message(self.Opened(self.shown[place]))
            self.picked = place
            self.show_frame()
