"""The level of detail at which a pool is shown: chosen by the user, or the finest that shows the whole pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..look.wording import plural
from .labels import longest_name
from .levels import best_level, levels
from .tiling import Detail, Tiling

if TYPE_CHECKING:
    from kvsim.replay.replay import Replay

    from ..look.states import Symbols
    from .paint import ColorBy


class Zoom:
    """Levels of detail of one pool for one size of picture, and the current level."""

    def __init__(
        self, heading: str | None, *, half_blocks: bool, slots: bool = True, longest: int = 0, most_units: int = 0
    ) -> None:
        """`heading` is the name of the pool if several pools are shown.

        `longest` is the length of their longest name, and `most_units` the number of units of the largest. Without
        `slots`, no level shows single slots.
        """
        self._most_units = most_units
        self._heading, self._longest = heading, longest
        self._half_blocks, self._slots = half_blocks, slots
        self._levels: list[Tiling] = []
        self._level = 0
        self._chosen = False
        self._stride: int | None = None

    def measure(self, replay: Replay, width: int, height: int, stride: int | None) -> None:
        """Compute the levels for a picture of `width` by `height` characters. `stride` is as for `levels`."""
        self._stride = stride
        self._levels = levels(
            replay.num_units,
            replay.unit_tokens,
            width,
            height,
            stride=stride,
            half_blocks=self._half_blocks,
            has_slots=self._slots and len(replay.groups) == 1,
            names=longest_name(replay),
            bare=longest_name(replay, shared=False),
            most_units=self._most_units,
        )
        if not self._chosen:
            self._level = best_level(self._levels, height)
        self._level = min(self._level, len(self._levels) - 1)

    def forget(self) -> None:
        """Discard the levels, because another pool will be shown."""
        self._levels = []

    @property
    def ready(self) -> bool:
        """True if the size of the picture is known."""
        return bool(self._levels)

    @property
    def tiling(self) -> Tiling:
        """Cells of the current level."""
        return self._levels[self._level]

    def move(self, direction: int) -> bool:
        """Change to the next finer (1) or coarser (-1) level; return True if there is one."""
        level = self._level + direction
        if not 0 <= level < len(self._levels):
            return False
        self._level, self._chosen = level, True
        return True

    def title(self, unit_tokens: int, color_by: ColorBy, symbols: Symbols, width: int) -> str:
        """Return a title: the pool, the size of a cell, and the meaning of colour.

        If several pools are shown, the title has the pool's name, and words are left out if they exceed `width`.
        """
        tiling, unit = self.tiling, "block" if unit_tokens > 1 else "slot"
        match tiling.detail:
            case Detail.SLOTS:
                cell = f"1 cell = 1 slot, {unit_tokens} to a block"
            case Detail.FILL:
                cell = "1 cell = 1 block"
            case _ if self._stride is not None and tiling.down > 1:
                # A cell of a rectangle is described as columns times rows of slots.
                cell = f"1 cell = {round(tiling.across):,}{symbols.times}{round(tiling.down):,} {unit}s"
            case _:
                cell = f"1 cell = {_about(tiling.units_per_cell, unit)}"
        if self._heading is not None:  # one of several pools, all of the same size
            texts = (
                f"{self._heading}: {cell}",
                f"{self._heading}: {cell.removeprefix('1 cell = ').partition(',')[0]} a cell",
            )
            longer = max(self._longest - len(self._heading), 0)  # a text should fit with the longest name, too
            return next((text for text in texts if len(text) + longer <= width), self._heading)
        return f"memory pool, {plural(tiling.num_units, unit)}: {cell} {symbols.dot} colour: {color_by.value}"


def _about(number: float, noun: str) -> str:
    """Return `1 block`, `1.2 blocks`, `44 blocks`; larger cells may differ by one."""
    return plural(round(number), noun) if number >= 2 or round(number, 1) == 1 else f"{number:.1f} {noun}s"
