"""The pool as lines of keys: what is drawn where, for any level of detail, cursor and followed request.

A canvas draws the lines that are in view and nothing else, so its cost does not grow with the pool. It knows nothing
of Textual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsim.memory.waste import NUM_STATES, SlotState

from .brush import CURSOR, DIM, fill_keys, glyph_keys, half_keys, reverse
from .labels import name_runs, name_units
from .picture import EMPTY, Cells, UnitStates
from .tiling import Detail, Tiling

if TYPE_CHECKING:
    from kvsim.recording.replay import Replay

BLANK = int(glyph_keys(np.array([EMPTY], np.uint8))[0])
"""The key of a character outside the pool."""
_WIDE_ENOUGH = 4
"""Characters of a unit that leave something to be seen of it beside a name."""
_DRAWING_ORDER = (
    SlotState.PADDING,
    SlotState.TOKEN,
    SlotState.RESERVED,
    SlotState.INTERNAL,
    SlotState.EXTERNAL,
    SlotState.CACHED,
    SlotState.FREE,
)
"""The order of the states inside one unit, by address."""


class Canvas:
    """Draws the pool of `replay` at its current frame."""

    def __init__(self, replay: Replay, tiling: Tiling, *, half_blocks: bool) -> None:
        self._replay = replay
        self._half_blocks = half_blocks
        self._states = UnitStates(replay)
        self.followed: int | None = None
        """The request that stays lit while all else is in shade."""
        self.cursor: int | None = None
        """The selected unit, from 0 in address order."""
        self.tiling = tiling

    @property
    def tiling(self) -> Tiling:
        """What the cells are."""
        return self._tiling

    @tiling.setter
    def tiling(self, tiling: Tiling) -> None:
        self._tiling = tiling
        self._cells = Cells(tiling, self._states.dominant) if tiling.detail is Detail.AREA else None

    @property
    def lines_per_character(self) -> int:
        """Lines of the picture that share one character."""
        return 2 if self._half_blocks and self.tiling.detail is Detail.AREA else 1

    @property
    def height(self) -> int:
        """Lines of characters that the whole picture takes."""
        return -(-self.tiling.height // self.lines_per_character)

    def update(self) -> None:
        """Follow the replay to its current frame."""
        units = self._states.update()
        if self._cells is not None and len(units):
            self._cells.update(units, self._states.dominant)

    def unit_at(self, x: int, y: int) -> int | None:
        """The first unit of the cell drawn at character `x` of line `y`, or None outside the pool."""
        tiling = self.tiling
        column, row = x // tiling.wide, y * self.lines_per_character // tiling.tall
        if not (0 <= column < tiling.columns and 0 <= row < tiling.rows):
            return None
        units = tiling.units_of(row * tiling.columns + column)
        return int(units[0]) if len(units) else None

    def place_of(self, unit: int) -> tuple[int, int]:
        """The character and the line at which the cell of `unit` begins."""
        row, column = divmod(self._cell(unit), self.tiling.columns)
        return column * self.tiling.wide, row * self.tiling.tall // self.lines_per_character

    def moved(self, unit: int, right: int, down: int) -> int:
        """The unit some cells away from `unit`, which stays where the pool ends."""
        tiling = self.tiling
        line, offset = divmod(unit, tiling.stride)
        offset = min(max(offset + right * tiling.across, 0), tiling.stride - 1)
        moved = (line + down * tiling.down) * tiling.stride + offset
        return moved if 0 <= moved < tiling.num_units else unit

    def draw(self, top: int, height: int) -> npt.NDArray[np.int32]:
        """Keys of the lines [top, top + height) that exist: shape (lines, characters)."""
        tiling, per_character = self.tiling, self.lines_per_character
        begin, end = top * per_character, min((top + height) * per_character, tiling.height)
        first_row, last_row = begin // tiling.tall, -(-end // tiling.tall)
        cells = np.arange(first_row * tiling.columns, last_row * tiling.columns)
        keys = self._area(cells) if tiling.detail is Detail.AREA else self._inside(cells)
        lines = keys.reshape(last_row - first_row, tiling.columns * tiling.wide).repeat(tiling.tall, axis=0)
        if tiling.gap:
            lines[tiling.tall - 1 :: tiling.tall] = EMPTY if per_character == 2 else BLANK
        skipped = begin - first_row * tiling.tall
        lines = lines[skipped : skipped + end - begin]
        picture = half_keys(lines.astype(np.uint8)) if per_character == 2 else lines
        self._write_names(picture, top, np.arange(first_row, last_row), cells)
        return picture

    def _write_names(
        self, picture: npt.NDArray[np.int32], top: int, rows: npt.NDArray[np.int64], cells: npt.NDArray[np.int64]
    ) -> None:
        """Say whose memory it is, where a row of `cells` has a whole line of the picture for that."""
        tiling, per_character = self.tiling, self.lines_per_character
        match tiling.detail:
            case Detail.AREA if self._replay.unit_tokens > 1 or tiling.down > 1:
                return
            case Detail.FILL if not tiling.gap and (tiling.wide < _WIDE_ENOUGH or not self._half_blocks):
                return
            case Detail.FILL if not tiling.gap:  # on the first of neighbouring units of one request
                name, lines = name_runs, rows * tiling.tall - top
            case Detail.AREA:
                name = name_runs
                first = -(-rows * tiling.tall // per_character)
                last = ((rows + 1) * tiling.tall - tiling.gap) // per_character - 1
                lines = np.where(first <= last, (first + last) // 2 - top, -1)
            case _:  # below each unit, or else on it
                name = name_units
                lines = (rows + 1) * tiling.tall - 1 - top
        seen = (lines >= 0) & (lines < len(picture))
        if seen.any():
            through = picture[lines[seen]]
            name(through, tiling, self._replay, cells.reshape(len(rows), -1)[seen].ravel())
            picture[lines[seen]] = through

    def _area(self, cells: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        assert self._cells is not None  # the tiling's setter made them
        codes = self._cells.codes[cells]
        codes = codes + np.where(self._lit(cells) | (codes == EMPTY), 0, DIM).astype(np.uint8)
        at_cursor = self._at_cursor(cells)
        if self._half_blocks:
            codes[at_cursor] = CURSOR
            return codes.astype(np.int32).repeat(self.tiling.wide)
        keys = glyph_keys(codes)
        keys[at_cursor] = reverse(keys[at_cursor])
        return keys.repeat(self.tiling.wide)

    def _inside(self, cells: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Keys of cells that show one unit each; where there is room behind what is inside, it stays empty."""
        tiling, states = self.tiling, self._states
        units = np.minimum(cells, tiling.num_units - 1)
        dim = ~self._lit(cells)
        if tiling.detail is Detail.SLOTS:
            inside = self._slots(units, dim)
        else:
            fills = fill_keys(
                states.dominant[units], states.rest[units], states.fill[units], dim, half_blocks=self._half_blocks
            )
            inside = fills[:, None].repeat(tiling.wide - tiling.gap, axis=1)
        inside[cells >= tiling.num_units] = BLANK
        at_cursor = self._at_cursor(cells)
        inside[at_cursor] = reverse(inside[at_cursor])
        keys = np.full((len(cells), tiling.wide), BLANK, np.int32)
        keys[:, : inside.shape[1]] = inside
        return keys.ravel()

    def _slots(self, units: npt.NDArray[np.int64], dim: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
        counts = self._replay.slots(units)[:, _DRAWING_ORDER]
        codes = np.array(_DRAWING_ORDER, np.uint8) + np.where(dim, DIM, 0).astype(np.uint8)[:, None]
        slots = codes.ravel().repeat(counts.ravel()).reshape(len(units), self._replay.unit_tokens)
        # Lines of one unit run into each other where a gap follows; where none does, each ends in a seam.
        keys = half_keys(slots.repeat(2, axis=0)) if self._half_blocks and self.tiling.gap else glyph_keys(slots)
        return keys.repeat(self.tiling.wide // self._replay.unit_tokens, axis=1)

    def _lit(self, cells: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether each cell has something of the followed request; all are lit where it has nothing, or nobody is."""
        lit: npt.NDArray[np.bool_] = np.ones(len(cells), np.bool_)
        if self.followed is not None:
            _, addresses = self._replay.block_table(self.followed)
            if len(addresses):
                lit = np.isin(cells, self.tiling.cell_of(addresses - self._replay.first_unit))
        return lit

    def _at_cursor(self, cells: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        at_cursor: npt.NDArray[np.bool_] = cells == (-1 if self.cursor is None else self._cell(self.cursor))
        return at_cursor

    def _cell(self, unit: int) -> int:
        return int(self.tiling.cell_of(np.array([unit]))[0])


assert len(_DRAWING_ORDER) == NUM_STATES
