"""Bar that shows the states of all slots of the pool, and a legend that names and explains the states."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.strip import Strip
from textual.widget import Widget

from kvsim.memory.waste import SlotState
from kvsim.metrics.names import STATE_MEANINGS, STATE_NAMES

from ..facts.headlines import selection
from ..look.stack import stacked
from ..look.states import STACK, ink_on
from ..look.wording import percent, shortened
from ..pool.layer_kinds import layer_kinds, places_of_units
from ..pool.paint import paint_colors
from ..pool.swatches import stack_cells, swatch

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..look.states import Palette, Symbols
    from ..playback.session import Session

_FIGURES_WIDTH = 10
"""Width in characters of an entry of the legend without its texts: a sample, a percentage, and spaces."""
_GAP_WIDTH = 2
_TITLE, _TITLE_BESIDE = "where the memory is now", "memory of all requests"
_LEAST_HEIGHT_FOR_LEGEND = 20
_LEAST_HEIGHT_FOR_TALL_LEGEND = 38


class WasteBar(Widget):
    """Stacked bar of the pool's slots by state. The legend lists every state that occurs in the recording."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"waste--text", "waste--meaning"}

    def __init__(self, session: Session, symbols: Symbols) -> None:
        super().__init__(id="waste")
        self._symbols = symbols
        self._title = Content("")
        self.open(session)

    def open(self, session: Session) -> None:
        self._session = session
        ever = session.charts.slots.max(axis=0, initial=0)
        self._listed = [state for state in STACK if ever[state] or not session.added_up]
        if self.is_attached:
            self._take_lines()

    def show_frame(self) -> None:
        """Show the session's current frame. On a narrow screen, the title describes the selection."""
        room = self.size.width - 2
        words = [_TITLE]
        if self.screen.has_class("-narrow") and (inspected := selection(self._session)):
            # The title must not suggest that the bar is about the selection.
            texts = (inspected, inspected.rpartition(", ")[0])
            words = [f"{_TITLE_BESIDE} {self._symbols.dot} {text}" for text in texts]
            words.append(inspected)
        # `Content` prevents that a request's id is taken for markup.
        text = next((text for text in words if len(text) <= room), words[-1])
        title = Content(shortened(text, room, self._symbols.cut))
        if title != self._title:
            self.border_title = self._title = title
        self.refresh()

    def on_resize(self) -> None:
        self.show_frame()
        self._take_lines()

    def _take_lines(self) -> None:
        legend = -(-len(self._listed) // len(self._columns()[0]))
        self.styles.height = 2 + legend * (self.screen.size.height >= _LEAST_HEIGHT_FOR_LEGEND)

    def render_line(self, y: int) -> Strip:
        if y == 0:
            return state_bar(self._session.breakdown, self.size.width, self._symbols)
        widths, meanings = self._columns()
        entries = zip(self._listed[(y - 1) * len(widths) : y * len(widths)], range(len(widths)), strict=False)
        segments = [
            segment
            for state, column in entries
            for segment in self._entry(state, widths[column], self._name_width(column, len(widths)), meaning=meanings)
        ]
        return Strip(segments).adjust_cell_length(self.size.width, self.get_component_rich_style("waste--text"))

    def _columns(self) -> tuple[list[int], bool]:
        meanings, number = self._most_columns(meanings=True), len(self._listed)
        most_lines = 4 if meanings > 1 and self.screen.size.height >= _LEAST_HEIGHT_FOR_TALL_LEGEND else 2
        explains = meanings > 0 and -(-number // meanings) <= most_lines
        most = meanings if explains else max(self._most_columns(meanings=False), 1)
        per_line = -(-number // -(-number // most))
        widths = self._widths(per_line, meanings=explains)
        spare = (self.size.width - sum(widths)) // per_line if explains else 0
        return [width + max(spare, 0) for width in widths], explains

    def _most_columns(self, *, meanings: bool) -> int:
        numbers = range(len(self._listed), 0, -1)
        fitting = (number for number in numbers if sum(self._widths(number, meanings=meanings)) <= self.size.width)
        return next(fitting, 0)

    def _widths(self, number: int, *, meanings: bool) -> list[int]:
        widths = []
        for column in range(number):
            longest = max((len(STATE_MEANINGS[state]) for state in self._listed[column::number]), default=0)
            widths.append(_FIGURES_WIDTH + self._name_width(column, number) + longest * meanings + _GAP_WIDTH)
        return [*widths[:-1], widths[-1] - _GAP_WIDTH]

    def _name_width(self, column: int, number: int) -> int:
        return max((len(STATE_NAMES[state]) for state in self._listed[column::number]), default=0)

    def _entry(self, state: SlotState, width: int, name_width: int, *, meaning: bool) -> list[Segment]:
        session = self._session
        base = self.get_component_rich_style("waste--text")
        share = percent(int(session.breakdown[state]), session.capacity)
        text = f" {STATE_NAMES[state]:<{name_width}} {share:>6} "
        segments = [swatch(state, self._symbols), Segment(text, base + Style(bold=bool(session.breakdown[state])))]
        if meaning:
            segments.append(Segment(STATE_MEANINGS[state], self.get_component_rich_style("waste--meaning")))
        return list(Strip(segments).adjust_cell_length(width, base))


def state_bar(slots: npt.NDArray[np.int64], width: int, symbols: Symbols, *, named: bool = True) -> Strip:
    """Return a bar of `width` characters in proportion to the `slots` in each state: shape (8,).

    If `named`, the bar has the names of the states on their parts, where they fit. Without colours it has no names.
    """
    first, second, eighths = stacked(slots[None, list(STACK)], width)
    cells = zip(first[0].tolist(), second[0].tolist(), eighths[0].tolist(), strict=True)
    bar = Strip(stack_cells(cells, symbols.right, symbols))
    return _named(bar, first[0], symbols.palette) if symbols.color and named else bar


def layer_bar(session: Session, width: int, symbols: Symbols) -> Strip:
    """Return a bar of `width` characters of the pool's slots by state.

    Slots with tokens are divided by kind of layers, and have the colours of these kinds.
    """
    kinds, slots = layer_kinds(session.replay), session.replay.slots()
    place = places_of_units(session.replay, np.arange(len(slots)))
    tokens = [slots[place == kind.place, SlotState.TOKEN].sum() for kind in kinds]
    states = [state for state in STACK if state is not SlotState.TOKEN]
    parts = np.array([*tokens, *session.breakdown[states]])
    paints = [*(kind.paint for kind in kinds), *states]
    colors = [paint_colors(symbols.palette)[paint] for paint in paints]
    first, second, eighths = (cells[0].tolist() for cells in stacked(parts[None], width))
    return Strip(
        Segment(symbols.right[part], Style(color=colors[low], bgcolor=colors[high]))
        for low, high, part in zip(first, second, eighths, strict=True)
    )


def _named(bar: Strip, layers: npt.NDArray[np.int64], palette: Palette) -> Strip:
    pieces = []
    for begin, end in zip(*_runs_of_equal(layers), strict=True):
        state, piece = STACK[layers[begin]], bar.crop(begin, end)
        text, color = f" {STATE_NAMES[state]} ", palette.states[state]
        # The last character of a part may show the next part, too, so the name must be shorter than the part.
        if len(text) < end - begin:
            label = Strip([Segment(text, Style(color=ink_on(color), bgcolor=color, bold=True))])
            piece = Strip.join([label, piece.crop(len(text))])
        pieces.append(piece)
    return Strip.join(pieces)


def _runs_of_equal(values: npt.NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """Return the begin and the (exclusive) end index of each run of equal values."""
    ends = np.append(np.flatnonzero(values[1:] != values[:-1]) + 1, len(values)).tolist()
    return [0, *ends[:-1]], ends
