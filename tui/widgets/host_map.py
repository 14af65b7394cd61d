"""Panel with the map of host memory, below the pool: the owner of each host block, and blocks that are being copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.strip import Strip

from ..look.wording import plural
from ..pool.host_blocks import HostBlockState, legend_now, map_keys, slots_now, slots_per_cell, titles_of
from .drawn_panel import DrawnPanel

if TYPE_CHECKING:
    from ..look.states import Symbols
    from ..playback.session import Session


class HostMap(DrawnPanel):
    """Map of the host blocks in order, with a legend below if there is room."""

    def __init__(self, session: Session, symbols: Symbols, *, id: str = "host") -> None:  # noqa: A002 - Textual's name
        super().__init__(session, symbols, id=id)

    def show_frame(self) -> None:
        host = self.session.host
        if host is None:
            self.border_title = "no host memory"
        elif self.size.width:
            titles = titles_of(self.session)
            lines = self._num_lines * (2 if self.symbols.color else 1)
            together = slots_per_cell(host.num_slots, self.size.width * lines)
            scale = f": 1 cell = {plural(together, 'block')}"
            # Without a legend, only the title says what the colours are.
            by = " by owner" * (self.size.height == self._num_lines)
            self.show_title([titles[0].replace(":", f"{by}:") + scale, titles[1] + scale, *titles])
        super().show_frame()

    @property
    def _num_lines(self) -> int:
        """Number of lines of the map. The widget's last line is for the legend, if there are two or more."""
        return max(self.size.height - 1, 1)

    def write(self) -> list[Strip]:
        slots, width = slots_now(self.session), self.size.width
        if slots is None:
            return []
        hued = self.symbols.color
        strips = self.lines_of(map_keys(slots, width, self._num_lines, half_blocks=hued))
        if self.size.height > self._num_lines:
            strips.append(self._legend(legend_now(self.session, hued=hued)))
        return strips

    def _legend(self, entries_now: list[tuple[list[int], str]]) -> Strip:
        """Return the leading entries that fit.

        If not all fit, each condition of host blocks is one entry with its owners.
        """
        entries = [self._entry(paints, words) for paints, words in entries_now]
        if sum(segment.cell_length for entry in entries for segment in entry) + 2 * len(entries) - 2 > self.size.width:
            entries = self._by_kind(entries_now)
        segments: list[Segment] = []
        for entry in entries:
            more = [self.text("  ")] * bool(segments) + entry
            if sum(segment.cell_length for segment in segments + more) > self.size.width:
                break
            segments += more
        return Strip(segments)

    def _entry(self, paints: list[int], words: str) -> list[Segment]:
        return [*(self.sample(paint) for paint in paints), self.text(f" {words}", "weak")]

    def _by_kind(self, entries_now: list[tuple[list[int], str]]) -> list[list[Segment]]:
        kinds = list[list[Segment]]()
        for kind in HostBlockState:
            suffix = f" {kind.value}"
            owned = [(paints, words.removesuffix(suffix)) for paints, words in entries_now if words.endswith(suffix)]
            owners = [segment for paints, name in owned for segment in (self.text(" "), *self._entry(paints, name))]
            kinds += [[self.text(f"{kind.value}:", "weak"), *owners]] if owners else []
            kinds += [self._entry(paints, words) for paints, words in entries_now if words == kind.value]
        return kinds
