"""Charts of the whole run on one time axis: slots by state, running and waiting requests, and events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.style import Style as TextualStyle

from kvsim.memory.waste import SlotState

from ..look.stack import EIGHTHS, columns, stacked
from ..look.states import STACK, ink_on
from ..look.wording import percent, seconds
from ..playback.run_events import ENDS, EVENT_NAMES, NOTABLE, EventKind
from ..pool.colors import paint_of
from ..pool.paint import paint_colors
from ..pool.swatches import stack_cells
from .scrubber import GUTTER, Scrubber

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..look.states import Symbols
    from ..playback.run_events import Events
    from ..playback.session import Session

_LEAST_FULL_MARK = 4
"""A mark of events is full at this number of events, or at the largest number in a column if that is larger."""
_MOST_SQUARES = 12
"""Events are marked by squares if at most this many columns of the axis have events."""
_MOST_KINDS = 2
_LEAST_FOR_RUNNING, _LEAST_FOR_WAITING, _LEAST_FOR_EVENTS = 2, 4, 8
"""Least heights of the charts, in lines, with a line for running requests, for waiting requests and for events."""
_FREE = (SlotState.FREE, SlotState.CACHED, SlotState.EXTERNAL)


_MOSTLY_FILLED = "▅▆▇█"
"""Characters of which the text colour fills more than half."""


def _with_line(cell: Segment, symbols: Symbols) -> Segment:
    """Return a character of a chart with the clock's vertical line, on the colour that fills most of the character.

    Without colours, an empty character or free memory becomes a line, and other characters become bold.
    """
    palette, style = symbols.palette, cell.style or Style()
    if not symbols.color:
        blank = cell.text in (" ", symbols.states[SlotState.FREE])
        return Segment("|" if blank else cell.text, Style(color=palette.cursor, bold=True))
    ground = style.color if cell.text in _MOSTLY_FILLED else style.bgcolor
    color = palette.void if ground is None else ground.get_truecolor().hex
    return Segment("┃", Style(color=ink_on(color), bgcolor=color))


class TimelineChart(Scrubber):
    """Charts over time, all with one axis and one cursor. The mouse moves the clock along the axis."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"timeline--held"}

    def __init__(self, session: Session, symbols: Symbols) -> None:
        super().__init__(session.player, symbols, id="timeline")
        self.open(session)

    def open(self, session: Session) -> None:
        self._session, self.player = session, session.player
        self._charts, self._num_before = session.charts, session.num_frames_before
        self._notable = self._charts.events.notable
        self._lines: list[Strip] = []
        self._drawn_size = Size(0, 0)
        self._followed = session.followed
        self._column = -1
        self._counted: tuple[int, int | None, npt.NDArray[np.int64]] = (0, None, np.empty(0, np.int64))
        """Width of the axis, followed request, and the number of marked events in each column."""

    def show_frame(self) -> None:
        """Show the session's current frame and followed request. Redraw only what has changed."""
        column = self.cursor_column if self.axis_width else 0
        if self._followed == self._session.followed and column == self._column:
            labels = (Region(0, y, GUTTER, 1) for y in self._labelled_lines())
            self.refresh(*labels, Region(GUTTER + column, 0, 1, self.size.height))
            return
        if self._followed != self._session.followed:
            self._drawn_size = Size(0, 0)
            self.show_clock_title()
        self._column = column
        self.refresh()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._drawn_size = Size(0, 0)

    def render_line(self, y: int) -> Strip:
        """Render a line: label and current value at the left, then the chart with the cursor."""
        if self._drawn_size != self.size:
            self._drawn_size, self._followed = self.size, self._session.followed
            self._lines = self._draw_charts(self.axis_width, self.size.height)
        if not 0 <= y < len(self._lines) or not self.axis_width:
            return Strip.blank(self.size.width, self.get_component_rich_style("timeline--text"))
        column = self.cursor_column
        chart = self._lines[y]
        before, after = chart.crop(0, column), chart.crop(column + 1)
        cursor = (
            self._knob(column)
            if y == len(self._lines) - 1
            else _with_line(next(iter(chart.crop(column, column + 1))), self.symbols)
        )
        return Strip([*self._label(y), *before, cursor, *after]).adjust_cell_length(
            self.size.width, self.get_component_rich_style("timeline--text")
        )

    def step_text(self) -> str:
        """Return the current step and the last one in words.

        The number of waiting requests follows if requests ever wait in this run, and no line of the chart shows them.
        """
        session, frame = self._session, self.player.frame
        place = f"step {session.step_number(frame):,} of {session.step_number(self.player.last_frame):,}"
        waiting = self._charts.waiting[self._num_before + frame]
        told = 0 < self.size.height < _LEAST_FOR_WAITING and self._charts.waiting.max() > 0
        return place + (f" {self.symbols.dot} {waiting:,} waiting" if told else "")

    @property
    def begin_s(self) -> float:
        """Time in seconds at which the charts begin. It may be before the player's first frame."""
        return float(self._charts.times_s[0])

    def legend_entries(self) -> list[tuple[str, TextualStyle, str]]:
        """Return the entries of the title: the memory of the followed request, notable events, and scales of charts."""
        session, symbols = self._session, self.symbols
        shown, square = self._marked_events(), "#" if symbols.ascii else "■"
        found = []
        if session.followed is not None:
            found.append((symbols.held, "held", f"{session.request_name(session.followed)} holds memory"))
        kinds = sorted(set(shown.kind.tolist()))
        if kinds:
            names = [EVENT_NAMES[EventKind(kind)] for kind in kinds]
            found.append((square, "tick", " or ".join(names) if len(names) <= _MOST_KINDS else "events"))
        scales = [f"{values.max():,} {name}" for name, values in self._scales() if len(values)]
        if scales:
            found.append((square, "bar", f"full bar: {', '.join(scales)}"))
        return [(glyph, TextualStyle.from_rich_style(self._rich(name)), words) for glyph, name, words in found]

    @property
    def num_on_axis(self) -> int:
        """Number of entries of `legend_entries`, except the one for the scales of the charts."""
        return len(self.legend_entries()) - any(len(values) for _, values in self._scales())

    def _scales(self) -> list[tuple[str, npt.NDArray[Any]]]:
        charts, height = self._charts, self.size.height
        running = [("running", charts.running)] * (height >= _LEAST_FOR_RUNNING)
        return running + [("waiting", charts.waiting)] * (height >= _LEAST_FOR_WAITING)

    def _rich(self, name: str) -> Style:
        if name == "tick":
            return Style(color=self._mark_color())
        return self._held_style if name == "held" else self.get_component_rich_style(f"timeline--{name}")

    @property
    def _held_style(self) -> Style:
        """Style of the time in which the followed request holds memory: the request's colour, if it has one."""
        style = self.get_component_rich_style("timeline--held")
        followed = self._session.followed
        if followed is None or not self.symbols.color:
            return style
        paint = paint_of(self._session, followed)
        return style if paint == SlotState.TOKEN else style + Style(color=paint_colors(self.symbols.palette)[paint])

    def _mark_color(self) -> str:
        """Return the colour of the marks of events.

        It is that of freed units if there are preemptions, refusals or aborts, otherwise that of the cursor.
        """
        is_notable = bool(np.isin(self._marked_events().kind, NOTABLE).any())
        palette = self.symbols.palette
        return palette.changes[1] if is_notable else palette.cursor

    def _counts_now(self, row: int) -> tuple[int, int]:
        """Return the numbers of running and of waiting requests at the clock.

        `row` is the current frame's row of the charts. While the clock is in a gap, its numbers are returned.
        """
        gap, idle = self._session.player.gap, self._session.idle
        counts, place = (self._charts, row) if gap is None else (idle, gap)
        return int(counts.running[place]), int(counts.waiting[place])

    def _labelled_lines(self) -> set[int]:
        """Return the indices of the lines with a value at the left. These values change with every frame."""
        height = self.size.height
        below = range(height - len(self._names_from_below(height)), height)
        return {line for line in (0, *below) if line >= 0}

    def _names_from_below(self, height: int) -> list[str]:
        return [
            "time",
            *["events"] * self._has_event_line(height),
            *["waiting"] * (height >= _LEAST_FOR_WAITING),
            "running",
        ]

    def _has_event_line(self, height: int) -> bool:
        """Tell whether events have a line of their own: there are many, and there is room."""
        return height >= _LEAST_FOR_EVENTS and not self._has_squares

    def _label(self, y: int) -> list[Segment]:
        session, height = self._session, len(self._lines)
        row = self._num_before + session.player.frame
        names, place = self._names_from_below(height), height - 1 - y
        label = names[place] if place < len(names) else "held" if y == 0 else ""
        value = ""
        match label:
            case "time":
                value = seconds(session.player.clock_s, session.player.duration_s / 1000)
            case "waiting" | "running":
                value = f"{self._counts_now(row)[label == 'waiting']:,}"
            case "events":
                events = self._marked_events()
                kinds = set(events.kind.tolist())
                label = EVENT_NAMES[EventKind(kinds.pop())] if len(kinds) == 1 else label
                value = f"{events.up_to(row):,}"
            case "held":
                value = percent(session.num_held_slots, session.capacity)
        value = value.rjust(GUTTER - len(label) - 1)
        return [
            Segment(label, self.get_component_rich_style("timeline--label")),
            Segment(value + " ", self.get_component_rich_style("timeline--value")),
        ]

    def _draw_charts(self, width: int, height: int) -> list[Strip]:
        if not width or not height:
            return []
        charts = self._charts
        slots, running, waiting = self._values_of_columns(width)
        strips = self._memory(slots[:, list(STACK)], max(height - len(self._names_from_below(height)), 0))
        strips.append(self._bars(running, charts.running.max()))
        if height >= _LEAST_FOR_WAITING:
            strips.append(self._bars(waiting, charts.waiting.max()))
        if self._has_event_line(height):
            strips.append(self._bars(self._events, self._full_mark, Style(color=self._mark_color())))
        return [*strips, self._track(width, height)][-height:]

    def _values_of_columns(
        self, width: int
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return (mean slots by state, most running requests, most waiting requests) in each of `width` columns.

        The shapes are (width, 8), (width,) and (width,). A column that lies in an idle span has the values of the span.
        """
        charts = self._charts
        first, last = self._frames_of_columns(width)
        slots = np.zeros((width, len(SlotState)))
        if len(charts.slots):
            spans = zip(first.tolist(), (last + 1).tolist(), strict=True)
            slots[:] = [charts.slots[begin:end].mean(axis=0) for begin, end in spans]
        running, waiting = (np.maximum.reduceat(values, first) for values in (charts.running, charts.waiting))
        idle, edges_s = self._session.idle, self.edges_s(width)
        for span, (begin_s, end_s) in enumerate(zip(idle.begin_s, idle.end_s, strict=True)):
            columns_idle = slice(*np.searchsorted(edges_s, (begin_s, end_s)) - (0, 1))
            slots[columns_idle] = idle.slots[span]
            running[columns_idle], waiting[columns_idle] = idle.running[span], idle.waiting[span]
        return slots, running, waiting

    def _frames_of_columns(self, width: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the first and the last frame that each column shows. Neighbouring columns may show the same frame."""
        times_s = self._charts.times_s
        edges_s = self.edges_s(width)
        first = np.maximum(np.searchsorted(times_s, edges_s[:-1], side="right") - 1, 0)
        last = np.maximum(np.searchsorted(times_s, edges_s[1:], side="left") - 1, first)
        return first, last

    def _memory(self, slots: npt.NDArray[np.float64], height: int) -> list[Strip]:
        if not height:
            return []
        if height == 1 and not self.symbols.color:  # a glyph of a state cannot show a share, so draw a bar
            free = slots[:, [STACK.index(state) for state in _FREE]].sum(axis=1)
            return [self._bars(self._session.capacity - free, self._session.capacity)]
        layers = np.stack(stacked(slots, height), axis=-1)
        rows = range(height - 1, -1, -1)
        return [Strip(stack_cells(layers[:, row].tolist(), self.symbols.up, self.symbols)).simplify() for row in rows]

    def _bars(self, values: npt.NDArray[Any], most: float, style: Style | None = None) -> Strip:
        style = style or self.get_component_rich_style("timeline--bar")
        if self.symbols.color:  # the upper eighth stays empty, so that a full chart does not touch the one above
            most *= EIGHTHS / (EIGHTHS - 1)
        text = "".join(self.symbols.up[eighths] for eighths in columns(values, most, 1)[0])
        return Strip([Segment(text, style)])

    def _track(self, width: int, height: int) -> Strip:
        """Return the line of the time axis: marks of events, and the spans in which the followed request holds memory.

        It has no marks of events if these have their own line above.
        """
        symbols = self.symbols
        marks = columns(self._events * (not self._has_event_line(height)), self._full_mark, 1)[0]
        # In few columns, events have a square, like the sample in the title; where there are many, bars count them.
        glyphs = [symbols.up[mark] for mark in marks.tolist()]
        if self._has_squares and not symbols.ascii:
            # Several events of the followed request have their number, so that the numbers of its story are found.
            counts = self._events if self._session.followed is not None else np.minimum(self._events, 1)
            glyphs = [" ■23456789+"[min(count, 10)] for count in counts.tolist()]
        held = self._residency(width)
        track, hold = self.get_component_rich_style("timeline--track"), self._held_style
        tick = Style(color=self._mark_color(), bold=True)
        return Strip(
            [
                Segment(glyph, tick) if mark else Segment(symbols.held, hold) if here else Segment(symbols.track, track)
                for mark, glyph, here in zip(marks.tolist(), glyphs, held.tolist(), strict=True)
            ]
        ).simplify()

    def _knob(self, column: int) -> Segment:
        """Return the character that marks the clock on the axis; over a square of events, in the square's colour."""
        hides = len(self._events) > column and self._events[column] > 0 and self._has_squares
        color = self._mark_color() if hides else self.symbols.palette.cursor
        return Segment(self.symbols.knob, Style(color=color, bold=True))

    @property
    def _full_mark(self) -> int:
        return max(int(self._events.max(initial=0)), _LEAST_FULL_MARK)

    @property
    def _events(self) -> npt.NDArray[np.int64]:
        width, followed = self.axis_width, self._session.followed
        if self._counted[:2] != (width, followed):
            events = self._marked_events()
            times_s = self._charts.times_s[events.frame]
            times_s = np.where(np.isin(events.kind, ENDS), self._session.idle.released_s(times_s), times_s)
            counts = np.bincount(self.column_of(times_s, width), minlength=width) if width else np.empty(0, np.int64)
            self._counted = (width, followed, counts)
        return self._counted[2]

    @property
    def _has_squares(self) -> bool:
        return int(np.count_nonzero(self._events)) <= _MOST_SQUARES

    def _marked_events(self) -> Events:
        """Return the notable events; while a request is followed, only those of that request."""
        session = self._session
        return self._notable if session.followed is None else self._notable.of_request(session.followed)

    def _residency(self, width: int) -> npt.NDArray[np.bool_]:
        held = np.zeros(width, np.bool_)
        session = self._session
        if session.followed is None:
            return held
        for begin, end in session.residencies(session.followed):
            end_s = session.idle.released_s(session.times_s[[end]])
            first, last = self.column_of(np.append(session.times_s[begin], end_s), width)
            held[first : last + 1] = True
        return held
