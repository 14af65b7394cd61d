"""The level of detail of a pool: chosen by the user, or the finest that shows the whole pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..look.wording import plural
from .labels import longest_name
from .levels import best_level, levels
from .tiling import Detail, Tiling

if TYPE_CHECKING:
    from kvsim.replay.replay import Replay

    from ..look.states import Symbols


_LEAST_WHOLE_MEAN = 4
"""A mean number of units per cell has one decimal if it is below this."""


class Zoom:
    """Levels of detail of one pool for one size of picture, and the current level."""

    def __init__(
        self, heading: str | None, *, half_blocks: bool, slots: bool = True, longest: int = 0, most_units: int = 0
    ) -> None:
        """Begin without levels: `measure` computes them.

        `heading` is the name of the pool if several are shown, otherwise None. `longest` is the length of the longest
        heading, and `most_units` the number of units of the largest pool. Without `slots`, no level shows single slots.
        """
        self._most_units = most_units
        self._heading, self._longest = heading, longest
        self._half_blocks, self._slots = half_blocks, slots
        self._levels: list[Tiling] = []
        self._level = 0
        self._chosen = False
        self._stride: int | None = None

    def measure(self, replay: Replay, width: int, height: int, stride: int | None) -> None:
        """Compute the levels for a picture of `width` by `height` characters.

        `stride` is the number of units in a line of the pool; None for a paged pool.
        """
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

    def title(self, unit_tokens: int, meaning: str, symbols: Symbols, width: int, *, scattered: bool = False) -> str:
        """Return a title: the pool, the size of a cell, and the `meaning` of colour.

        A unit has `unit_tokens` slots. With `scattered`, the units are in physical order, and the title says so if
        there is room in `width` characters. If several pools are shown, the title is the pool's heading, then the size
        of a cell if it would fit after the longest heading of these pools.
        """
        cell = self.cell_words(unit_tokens, symbols)
        if self._heading is None:
            units = plural(self.tiling.num_units, _unit_name(unit_tokens))
            short = f"1 cell = {cell} {symbols.dot} colour: {meaning}"
            titles = [f"memory in physical order{count}: {short}" for count in (f", {units}", "")] * scattered
            titles += [f"memory pool, {units}: {short}", f"pool, {short}"]
            return next((title for title in titles if len(title) <= width), titles[-1])
        return self._heading + self.size_in_title(cell, width)

    def size_in_title(self, cell: str, width: int) -> str:
        """Return the words `cell` on the size of a cell, to follow a pool's heading; empty if there is no room."""
        room = width - max(self._longest, len(self._heading or ""))
        texts = (f": 1 cell = {cell}", f": {cell.partition(',')[0]} a cell")
        return next((text for text in texts if len(text) <= room), "")

    def cell_words(self, unit_tokens: int, symbols: Symbols) -> str:
        """Return the size of a cell, such as `1 block`, `44 blocks` or `12×2 slots`."""
        tiling, unit = self.tiling, _unit_name(unit_tokens)
        match tiling.detail:
            case Detail.SLOTS:
                return f"1 slot, {unit_tokens} to a block"
            case Detail.FILL:
                return "1 block"
            case _ if self._stride is not None and tiling.down > 1:
                # A cell of a rectangle is described as columns times rows of slots.
                return f"{round(tiling.across):,}{symbols.times}{round(tiling.down):,} {unit}s"
            case _:
                return _mean_units_words(tiling.units_per_cell, unit)


def _unit_name(unit_tokens: int) -> str:
    return "block" if unit_tokens > 1 else "slot"


def _mean_units_words(number: float, noun: str) -> str:
    number = round(number, 1) if number < _LEAST_WHOLE_MEAN else round(number)
    return plural(int(number), noun) if number == int(number) else f"{number} {noun}s"
