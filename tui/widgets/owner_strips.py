"""The pool by owner: a strip for each request, the largest first, with a bracket around requests that share blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.message import Message
from textual.strip import Strip

from kvsim.memory.waste import SlotState

from ..facts.owners import holdings, owners_line
from ..facts.units import slots_text
from ..look.stack import EIGHTHS, stacked
from ..look.states import STACK
from ..look.wording import ending
from ..pool.colors import paint_of
from ..pool.paint import EMPTY, SHARED, paint_colors
from .owner_lines import OwnerLine, fitting_lines
from .panel import Panel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual import events

    from ..facts.owners import Slots
    from ..look.states import Symbols
    from ..playback.session import Session

MAX_IN_PHYSICAL_ORDER: Final = 24
"""Largest number of running requests with which the screen of a run first shows the pool in physical order.

With more requests, it first shows memory by owner, because hues repeat. Lessons and static batches begin with the pool.
"""
_NAME, _TOKENS = 11, 7
"""Widths in characters of the columns for the name of a request and for its tokens."""
_LEAST_BAR, _GAP = 10, 2
"""Smallest width of a bar, and width of the gap between two columns of strips, in characters."""


class OwnerStrips(Panel):
    """Strips of all requests that hold memory, in as many columns as needed.

    Requests without room share a strip: the last one of their group or, if the groups do not fit, the very last one.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"owners--followed"}

    @dataclass
    class BarsChanged(Message):
        """Message: the scale of the bars has changed, or the set of states that appear in them."""

    def __init__(self, session: Session, symbols: Symbols) -> None:
        super().__init__(session, symbols, id="owners")
        self._requests: dict[tuple[int, int], int] = {}
        self._column_width, self._figure_width = 1, _TOKENS - 1
        self._drawn: set[int] = set()
        self.scale = ""
        """Number of slots per character of a bar, in words."""

    def shows(self, paint: int) -> bool:
        """Tell whether the bars show the state with this paint. A rare state may be too narrow."""
        return paint in self._drawn

    def write(self) -> list[Strip]:
        found = holdings(self.session)
        dot = self.symbols.dot
        width, height = self.size
        self._show_title(width - 2)
        summary = Strip([self.text(owners_line(self.session, found, width - _GAP, dot), "strong")])
        room = height - 1
        if room < 1:
            self._requests, self._drawn, self.scale = {}, set(), ""
            return [summary][:height]
        most_columns = max((width + _GAP) // (_NAME + _TOKENS + _LEAST_BAR + _GAP), 1)
        edges = ("+", "|", "+") if self.symbols.ascii else ("╭", "│", "╰")
        lines, num_columns = fitting_lines(self.session, found, room=room, most_columns=most_columns, edges=edges)
        self._column_width = (width + _GAP) // num_columns
        self._figure_width = max(_TOKENS - 1, *(len(line.figure) for line in lines), 0)
        bar = self._column_width - _GAP - _NAME - self._figure_width - 1
        most = max((line.num_shared_slots + int(line.slots.sum()) for line in lines), default=1)
        before = self._drawn, self.scale
        self._drawn = set()
        self.scale = f"1 cell = {slots_text(self.session, max(round(most / max(bar, 1)), 1), 'slot')}"
        drawn = [self._strip(line, bar, most) for line in lines]
        if (self._drawn, self.scale) != before:
            self.post_message(self.BarsChanged())
        self._requests = {
            (nth // room, nth % room): line.request for nth, line in enumerate(lines) if line.request is not None
        }
        rows = [Strip.join(drawn[row::room]) for row in range(min(room, len(drawn)))]
        return [summary, *rows]

    def _show_title(self, room: int) -> None:
        caches, view = self.session.recording.meta.prefix_caching, f" {self.symbols.dot} v: physical"
        what = "memory" if len(self.session.replay.groups) > 1 else "tokens"
        first = f"largest{' group' * caches} first: "
        titles = (
            f"{what} by owner, {first}freed when it ends{', what is shared when all end' * caches}{view} order",
            f"{what} by owner, {first}freed when it ends{', shared ones when all end' * caches}{view}",
            f"by owner, largest first: freed when it ends{', shared ones when all end' * caches}{view}",
            f"{what} by owner: freed when it ends{', shared ones when all end' * caches}{view}",
            f"{what} by owner: freed when it ends{view}",
        )
        self.border_title = next((title for title in titles if len(title) <= room), titles[-1])

    def _strip(self, line: OwnerLine, bar: int, most: int) -> Strip:
        followed = self._is_followed(line)
        kind = "strong" if followed else "text"
        name = line.name if line.request is None else ending(line.name, _NAME - 2, self.symbols.cut)
        mark = self.text(">", "strong") if followed and line.edge == " " else self.text(line.edge, "label")
        figure = self.text(f"{line.figure:>{self._figure_width}} ", kind)
        segments = [mark, self.text(f"{name:<{_NAME - 1}}", kind), figure, *self._bar(line, bar, most)]
        return Strip(segments).adjust_cell_length(self._column_width, self.get_component_rich_style("panel--text"))

    def _is_followed(self, line: OwnerLine) -> bool:
        return line.request is not None and line.request == self.session.followed

    def _bar(self, line: OwnerLine, width: int, most: int) -> Iterator[Segment]:
        """Yield the bar of a strip: slots by state, or one colour for shared blocks.

        Several requests together have words in place of a bar. The longest bar, of `most` slots, is `width` wide.
        """
        if len(line.owners) > 1:
            yield self.text(self._words_of_several(line, width), "weak")
            return
        share = (line.num_shared_slots + int(line.slots.sum())) / most
        if line.group is None:
            tokens = int(SlotState.TOKEN)
            if line.request is not None and self._is_followed(line):
                tokens = paint_of(self.session, line.request)
            yield from self._states(line.slots, share * width, tokens, num_shared_slots=line.num_shared_slots)
            return
        yield from self._states(line.slots, share * width, int(SlotState.TOKEN), shared=line.group.shared)
        words = f" {slots_text(self.session, line.group.num_tokens)} in all"
        yield self.text(words * (math.ceil(share * width) + len(words) <= width), "weak")

    def _words_of_several(self, line: OwnerLine, width: int) -> str:
        largest, *_, least = sorted(line.owners, key=lambda owner: -owner.own_tokens)
        name = self.session.request_name
        own = sum(owner.own_tokens for owner in line.owners)
        ends = (f"{name(each.request)}: {slots_text(self.session, each.own_tokens)}" for each in (largest, least))
        mean = slots_text(self.session, round(own / len(line.owners)))
        texts = (f" {self.symbols.cut} ".join(ends), f"mean {mean}")
        return next((words for words in texts if len(words) <= width), "")

    def _states(
        self, slots: Slots, length: float, token_paint: int, *, shared: Slots | int = 0, num_shared_slots: int = 0
    ) -> Iterator[Segment]:
        """Yield a bar of `length` characters: empty for `num_shared_slots` slots, then the `shared` ones of `slots`,
        then the others by state, with tokens in `token_paint`.

        The bar ends at an eighth of a character if the terminal shows eighths.
        """
        total, num_shared = num_shared_slots + int(slots.sum()), int(np.sum(shared))
        if not slots.any():
            return
        step = 1 if self.symbols.right else EIGHTHS
        eighths = max(round(length * EIGHTHS / step), 1) * step
        cells = math.ceil(eighths / EIGHTHS)
        # The parts of the bar: empty space, shared slots, own slots by state, and the empty rest of the last character.
        beyond = total * (cells * EIGHTHS - eighths) / eighths
        parts = np.array([num_shared_slots, num_shared, *(slots - shared)[list(STACK)], beyond])
        states: list[SlotState | None] = [None, None, *STACK, None]
        first, second, shares = (values[0].tolist() for values in stacked(parts[None], cells))
        colors = paint_colors(self.symbols.palette)
        paints = [EMPTY, SHARED, *(token_paint if state is SlotState.TOKEN else int(state) for state in STACK), EMPTY]
        if self.symbols.right and eighths % EIGHTHS and second[-1] != len(paints) - 1:
            # The last character has three parts; the smaller one of two states is left out.
            first[-1] = first[-1] if shares[-1] >= EIGHTHS // 2 else second[-1]
            second[-1], shares[-1] = len(paints) - 1, eighths % EIGHTHS
        for low, high, part in zip(first, second, shares, strict=True):
            visible = {low, high} if part < EIGHTHS else {low}
            self._drawn |= {int(state) for at in visible if (state := states[at]) is not None}
            if self.symbols.right:
                style = Style(color=colors[paints[low]], bgcolor=colors[paints[high]])
                yield Segment(self.symbols.right[part], style)
            else:
                yield from [self.sample(paints[low if part >= EIGHTHS // 2 else high])]

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None:
            request = self._requests.get((offset.x // self._column_width, offset.y - 1))
            if request is not None:
                self.post_message(self.Picked(request))
