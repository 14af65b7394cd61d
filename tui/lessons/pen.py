"""Texts and bars of drawings: lines of styled characters, the same on the screen, in text and in figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from rich.segment import Segment
from rich.style import Style

from ..look.stack import stacked
from ..look.states import STACK
from ..pool.swatches import stack_cells

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from ..look.states import Symbols

Lines: TypeAlias = "list[list[Segment]]"

_PARTS: Final = "█▓▒░"
_PARTS_ASCII: Final = "#=+-"
"""Characters for the parts of a bar, as in `_PARTS`, where colours do not distinguish the parts."""


class Pen:
    """Writes texts and bars with `symbols`."""

    def __init__(self, symbols: Symbols) -> None:
        self.symbols = symbols
        # Seven eighths of a line, so that the bars of neighbouring lines stay apart.
        self._full = symbols.up[-2] if symbols.right else symbols.up[-1]

    def text(self, words: str, *, weak: bool = False) -> Segment:
        """Return `words` in the colour of text, or in a weaker colour."""
        palette = self.symbols.palette
        return Segment(words, Style(color=palette.free_glyph_color if weak else palette.ink))

    def bar(self, share: float, width: int, color: str) -> Segment:
        """Return a bar that fills a `share` of `width` characters.

        A positive share below half a character is a thin line.
        """
        cells = round(share * width)
        bar = self._full * cells if cells or not share else self.symbols.right[1:2] or self.symbols.states[-1]
        return Segment(bar.ljust(width)[:width], Style(color=color))

    def pieces(self, busy: Sequence[bool], color: str) -> Segment:
        """Return a bar with a full character for each true value of `busy`, and a blank for each false one."""
        return Segment("".join(self._full if is_busy else " " for is_busy in busy), Style(color=color))

    def part(self, number: int, cells: int, color: str) -> Segment:
        """Return the part with index `number`, from 0, of a bar of several parts, `cells` characters long."""
        parts = _PARTS_ASCII if self.symbols.ascii else _PARTS
        return Segment((self._full if self.symbols.color else parts[number]) * cells, Style(color=color))

    def states(self, slots: npt.NDArray[np.int64] | npt.NDArray[np.float64], width: int) -> list[Segment]:
        """Return a bar of `width` characters in proportion to the `slots` in each state: shape (8,)."""
        first, second, eighths = stacked(slots[None, list(STACK)], width)
        cells = zip(first[0].tolist(), second[0].tolist(), eighths[0].tolist(), strict=True)
        return list(stack_cells(cells, self.symbols.right, self.symbols))

    def thick(self, line: list[Segment], num_lines: int) -> Lines:
        """Return `line` with bars that are `num_lines` lines high. Its texts are on the middle line."""
        middle = (num_lines - 1) // 2
        return [
            [self._tall(segment, is_first=nth == 0, has_text=nth == middle) for segment in line]
            for nth in range(num_lines)
        ]

    def _tall(self, segment: Segment, *, is_first: bool, has_text: bool) -> Segment:
        """Return one line of `segment` in a thick bar.

        The upper eighth of a bar's first line is empty. Texts are only in the line with `has_text`.
        """
        bars = set(self._full + self.symbols.right[1:2] + (_PARTS_ASCII if self.symbols.ascii else _PARTS))
        if not set(segment.text) & bars or set(segment.text) - bars - {" "}:
            return segment if has_text else Segment(" " * len(segment.text), segment.style)
        text = segment.text if is_first else segment.text.replace(self._full, self.symbols.up[-1])
        return Segment(text, segment.style)
