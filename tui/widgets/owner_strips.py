"""The pool by owner: a strip for each request, the largest first, with a bracket around requests that share blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from kvsim.memory.waste import SlotState

from ..facts.owners import Owner, OwnerGroup, holdings, owners_line
from ..look.stack import EIGHTHS, stacked
from ..look.states import STACK
from ..look.wording import ending, plural
from ..pool.paint import OWNER, SHARED, hue_of
from ..pool.swatches import stack_cells
from .panel import Panel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from textual import events

    from ..facts.owners import Slots
    from ..look.states import Symbols
    from ..playback.session import Session

MANY: Final = 24
"""Number of requests above which a screen begins with the pool by owner, because hues would repeat too often."""
_NAME, _TOKENS = 11, 7
"""Widths of the columns for the name of a request and for its tokens."""
_LEAST_BAR, _GAP = 10, 2
"""Smallest width of a bar, and width of the gap between two columns of strips."""
_MOST_MEMBERS = (1 << 30, 16, 12, 8, 6, 5, 4, 3, 2)
"""Limits on the number of requests of a group that have their own strips. They are tried in order until all fits."""


@dataclass(frozen=True, slots=True, eq=False)
class _OwnerLine:
    """Content of a strip: one request, the shared units of a group, several requests together, or nothing."""

    name: str
    """Name of a request, or words about several requests."""
    figure: str
    """Number of tokens, formatted; empty in a blank line."""
    slots: Slots
    """Number of slots in each state, for the bar."""
    edge: str = " "
    """Character of the bracket around a group; a space for a request alone."""
    request: int | None = None
    """Row of the request; None for the shared units of a group, for several requests, and in a blank line."""
    shared: bool = False
    """True for the units that the requests of a group share."""
    number: int = 1
    """Number of requests that share the strip; 0 for the shared units of a group."""
    num_tokens: int = 0
    """Number of tokens of these requests."""


class OwnerStrips(Panel):
    """Strips of all requests in as many columns as needed. Requests without room share the last strip."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"owners--followed"}

    def __init__(self, session: Session, symbols: Symbols) -> None:
        super().__init__(session, symbols, id="owners")
        self._requests: dict[tuple[int, int], int] = {}
        """Request of each strip, by column and line."""
        self._column_width = 1
        self._drawn: set[int] = set()
        """States that the bars show."""
        self.scale = ""
        """Size of a character of a bar, in words."""

    def shows(self, paint: int) -> bool:
        """Tell whether the bars show the state with this paint; a rare state takes less than a character."""
        return paint in self._drawn

    def write(self) -> list[Strip]:
        """Return the summary and the strips."""
        found = holdings(self.session)
        dot = self.symbols.dot
        width, height = self.size
        self._show_title(width - 2)
        summary = Strip([self.text(owners_line(self.session, found, width, dot), "strong")])
        room = height - 1
        if room < 1:
            self._requests, self._drawn, self.scale = {}, set(), ""
            return [summary][:height]
        most_columns = max((width + _GAP) // (_NAME + _TOKENS + _LEAST_BAR + _GAP), 1)
        lines, num_columns = self._fitting_lines(found, room, most_columns)
        self._column_width = (width + _GAP) // num_columns
        bar = self._column_width - _GAP - _NAME - _TOKENS
        most = max((int(line.slots.sum()) for line in lines), default=1)
        self._drawn = set()
        self.scale = f"1 cell = {plural(max(round(most / max(bar, 1)), 1), 'slot')}"
        drawn = [self._strip(line, bar, most) for line in lines]
        self._requests = {
            (nth // room, nth % room): line.request for nth, line in enumerate(lines) if line.request is not None
        }
        rows = [Strip.join(drawn[row::room]) for row in range(min(room, len(drawn)))]
        return [summary, *rows]

    def _show_title(self, room: int) -> None:
        """Show what the strips are, when their memory is free again, and the key of the other view."""
        caches, view = self.session.recording.meta.prefix_caching, f" {self.symbols.dot} v: physical"
        first = f"largest{' group' * caches} first: "
        titles = (
            f"tokens by owner, {first}free when it ends{', what is shared when all end' * caches}{view} order",
            f"tokens by owner, {first}free when it ends{', shared ones when all end' * caches}{view}",
            f"tokens by owner: free when it ends{', shared ones when all end' * caches}{view}",
        )
        self.border_title = next((title for title in titles if len(title) <= room), titles[-1])

    def _fitting_lines(self, found: Sequence[OwnerGroup], room: int, most_columns: int) -> tuple[list[_OwnerLine], int]:
        """Return the lines of all groups, and the number of columns of `room` lines that they need.

        As many requests of each group as fit have lines of their own. If there is no room even for the smallest limit,
        the last line is for all others together.
        """
        edges = ("+", "|", "+") if not self.symbols.right and self.symbols.ascii else ("╭", "│", "╰")
        for most_members in _MOST_MEMBERS:
            lines = [line for holding in found for line in self._lines_of(holding, edges, most_members)]
            if len(lines) <= most_columns * room:
                break
        num_columns = min(max(-(-len(lines) // room), 1), most_columns)
        if len(lines) > num_columns * room:
            return _folded(lines, num_columns * room, edges), num_columns
        whole = _unbroken(lines, room)
        return (whole if len(whole) <= num_columns * room else lines), num_columns

    def _lines_of(self, holding: OwnerGroup, edges: tuple[str, str, str], most_members: int) -> Iterator[_OwnerLine]:
        if len(holding.owners) == 1:
            yield self._line(holding.owners[0], " ")
            return
        top, side, bottom = edges
        words, tokens = f"{len(holding.owners):,} share", f"{int(holding.shared[SlotState.TOKEN]):,}"
        yield _OwnerLine(words, tokens, holding.shared, edge=top, shared=True, number=0)
        followed = self.session.followed
        # The followed request comes first, so that it has its own strip.
        ranked = sorted(holding.owners, key=lambda owner: owner.request != followed)
        # A single remaining request gets a strip of its own: a strip "1 more" would take the same line.
        num_own = most_members + (len(ranked) == most_members + 1)
        own = sorted(ranked[:num_own], key=lambda owner: -owner.num_tokens)
        rest = ranked[num_own:]
        for nth, owner in enumerate(own):
            yield self._line(owner, bottom if not rest and nth == len(own) - 1 else side)
        if rest:
            yield _more(len(rest), sum(owner.num_tokens for owner in rest), edge=bottom)

    def _line(self, owner: Owner, edge: str) -> _OwnerLine:
        return _OwnerLine(
            self.session.request_name(owner.request),
            f"{owner.num_tokens:,}",
            owner.slots,
            edge=edge,
            request=owner.request,
            num_tokens=owner.num_tokens,
        )

    def _strip(self, line: _OwnerLine, bar: int, most: int) -> Strip:
        followed = self._is_followed(line)
        kind = "strong" if followed else "text"
        name = line.name if line.request is None else ending(line.name, _NAME - 2, self.symbols.cut)
        mark = self.text(">", "strong") if followed and line.edge == " " else self.text(line.edge, "label")
        figure = self.text(f"{line.figure:>{_TOKENS - 1}} ", kind)
        segments = [mark, self.text(f"{name:<{_NAME - 1}}", kind), figure, *self._bar(line, bar, most)]
        return Strip(segments).adjust_cell_length(self._column_width, self.get_component_rich_style("panel--text"))

    def _is_followed(self, line: _OwnerLine) -> bool:
        return line.request is not None and line.request == self.session.followed

    def _bar(self, line: _OwnerLine, width: int, most: int) -> Iterator[Segment]:
        """Yield the bar of a strip: slots by state, or one colour for shared blocks and for the followed request.

        Several requests together have words in place of a bar. The longest bar, of `most` slots, is `width` wide.
        """
        if line.number > 1:
            each = f"{line.num_tokens / line.number:,.0f} each"
            yield self.text(next((words for words in (f"together, {each}", each) if len(words) <= width), ""), "weak")
            return
        total = int(line.slots.sum())
        cells = max(round(total / most * width), min(total, 1))
        if line.shared or self._is_followed(line):
            sample = self.sample(OWNER + hue_of(line.request) if line.request is not None else SHARED)
            character = self._full if self.symbols.right else sample.text
            yield Segment(character * cells, sample.style or Style())
        elif cells:
            yield from self._states(line.slots, cells)

    def _states(self, slots: Slots, cells: int) -> Iterator[Segment]:
        """Yield the `cells` characters of a bar of slots by state; each character shows one state."""
        first, second, shares = stacked(slots[None, list(STACK)], cells)
        # A character shows the state that has most of it, so that a bar claims no slots that are not there.
        layers = np.where(shares[0] >= EIGHTHS // 2, first[0], second[0]).tolist()
        self._drawn |= {int(STACK[layer]) for layer in layers}
        if not self.symbols.right:
            yield from stack_cells(((layer, layer, EIGHTHS) for layer in layers), "", self.symbols)
            return
        for layer, run in groupby(layers):
            yield Segment(self._full * len(list(run)), Style(color=self.symbols.palette.states[STACK[layer]]))

    @property
    def _full(self) -> str:
        """Character of a bar in colour: seven eighths of a line, so that neighbouring strips stay apart."""
        return self.symbols.up[EIGHTHS - 1]

    def on_click(self, event: events.Click) -> None:
        """Follow the request of the clicked strip."""
        offset = event.get_content_offset(self)
        if offset is not None:
            request = self._requests.get((offset.x // self._column_width, offset.y - 1))
            if request is not None:
                self.post_message(self.Picked(request))


def _unbroken(lines: list[_OwnerLine], room: int) -> list[_OwnerLine]:
    """Return `lines` with blank lines inserted, so that columns of `room` lines split no group that fits into one."""
    found: list[_OwnerLine] = []
    begins = [at for at, line in enumerate(lines) if line.edge == " " or line.shared] + [len(lines)]
    for begin, end in pairwise(begins):
        left = -len(found) % room
        if left < end - begin <= room:
            found += [_OwnerLine("", "", np.zeros(len(SlotState), np.int64))] * left
        found += lines[begin:end]
    return found


def _folded(lines: list[_OwnerLine], room: int, edges: tuple[str, str, str]) -> list[_OwnerLine]:
    """Return the first `room` - 1 lines, and a last line for all others together."""
    kept, rest = lines[: room - 1], lines[room - 1 :]
    if kept and kept[-1].edge == edges[1]:  # the group has more requests; its bracket ends here
        kept[-1] = replace(kept[-1], edge=edges[2])
    return [*kept, _more(sum(line.number for line in rest), sum(line.num_tokens for line in rest))]


def _more(number: int, num_tokens: int, edge: str = " ") -> _OwnerLine:
    """Return the line of several requests together. It has no bar, because bars are scaled to the longest one."""
    return _OwnerLine(
        f"{number:,} more",
        f"{num_tokens:,}",
        np.zeros(len(SlotState), np.int64),
        edge=edge,
        number=number,
        num_tokens=num_tokens,
    )
