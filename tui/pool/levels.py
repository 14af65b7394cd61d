"""Levels of detail of a picture of the pool, from the whole pool at once to single slots."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ..look.stack import EIGHTHS
from .tiling import Detail, Tiling

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_WIDE, _MOST_TALL = 12, 4
"""Largest cell of one unit: its width in characters, and its height in lines."""
_ROOMY = 12
"""Least number of characters per unit with which units are drawn wider than high."""
_MOST_MARGIN_SHARE = 0.25
_LEAST_FILL = 0.9
"""Least share of the picture's width that cells of equal width must cover; otherwise widths differ by one character."""
_SPARE_FOR_NUMBERS = 0.12
"""Share of the picture that may stay empty for the numbers in the margin."""
_BAD_SHAPE_PENALTY = 0.05
"""Penalty for badly shaped cells, as a share of the picture, for each unit of |ln(ratio of the sides / best ratio)|."""
_SPARE_FOR_FILL = 0.15
"""Share of the picture that may stay empty so that cells can show how full a block is."""
_SPARE_FOR_ROUND_ROWS = 0.08
"""Share of the picture that may stay empty so that rows have a multiple of ten units."""
_CELL_EIGHTHS = (6, 7, 9, 10, 11, 12, 13, 14, 15)
"""Widths of cells in eighths of a character. In a narrower cell, three units could share a character."""
_ROUND_ROWS = (100, 50, 20, 10, 8, 5, 4, 2)
"""Round numbers of units, the best first. The number of units in a row is a multiple of one of these."""
_LEAST_SLOT_COLUMNS = 4
"""Least number of columns, and of rows, of units for a picture slot by slot.

With fewer, a coarser level is shown.
"""
_MOST_CUT = 512
"""Largest number of units of a pool that is drawn with gaps, numbers and holders."""
_ROUND_COLUMNS = {10: 0.12, 20: 0.12, 40: 0.12, 8: 0.06, 16: 0.06, 5: 0.06}
"""Numbers of columns that make units easy to count, each with the share of the picture that may stay empty for it."""


def levels(
    num_units: int,
    unit_tokens: int,
    width: int,
    height: int,
    *,
    stride: int | None,
    half_blocks: bool,
    has_slots: bool = True,
    names: int = 0,
    bare: int = 0,
    most_units: int = 0,
) -> list[Tiling]:
    """Return every level of detail for a picture of `width` by `height` characters, coarsest first.

    The coarsest level shows the whole pool. The next levels have fewer units per cell, down to one; their pictures may
    be larger than the view. The last levels show the fill of each unit, and each slot, unless `has_slots` is off.

    Args:
        num_units: units of the pool.
        unit_tokens: slots of a unit.
        width: characters of a line.
        height: lines of the picture.
        stride: units of one line, for a pool that consists of lines; None for a paged pool.
        half_blocks: True if the terminal shows characters of half a line's height.
        has_slots: True if single slots can be shown; units of several KV-cache groups have different slots.
        names: characters of the longest name of a request, which is written beside its row or unit where there is room.
        bare: characters of the longest name without the number of other holders.
        most_units: units of the largest of several pools, all of which have their names in the same places.
    """
    if stride is not None:
        return _levels_of_lines(num_units, width, height, stride, half_blocks=half_blocks, names=names)
    most_units = max(num_units, most_units)
    cut = None
    if unit_tokens > 1 and names and half_blocks and most_units <= _MOST_CUT:
        cut = _tiling_with_gaps(num_units, most_units, width, height, names, bare or names)
    found = [cut or _whole_pool_tiling(num_units, unit_tokens, width, height, half_blocks=half_blocks)]
    while found[-1].per_cell > 2:  # levels of twice as many cells
        found.append(_scrolled_tiling(_Shape(Detail.MIX, EIGHTHS, 1, -(-found[-1].per_cell // 2)), num_units, width))
    if unit_tokens > 1:
        if found[-1].detail is not Detail.FILL:
            found.append(_scrolled_tiling(_Shape(Detail.FILL, EIGHTHS, 1), num_units, width))
        if has_slots:
            found.append(_tiling_by_slot(num_units, unit_tokens, width, height, names))
    elif found[-1].per_cell > 1:
        found.append(_scrolled_tiling(_Shape(Detail.HALF if half_blocks else Detail.MIX, EIGHTHS, 1), num_units, width))
    return found


def best_level(tilings: list[Tiling], height: int) -> int:
    """Return the index of the level that shows single slots if it fits into `height` lines, else 0 (the whole pool).

    It is 0, too, if single slots have less than `_LEAST_SLOT_COLUMNS` columns, and level 0 names units below.
    """
    finest = tilings[-1]
    if finest.detail is not Detail.SLOTS or finest.height > height:
        return 0
    has_names_below = tilings[0].separates_units and not tilings[0].margin
    is_sparse = finest.columns < _LEAST_SLOT_COLUMNS <= finest.num_units // _LEAST_SLOT_COLUMNS
    return 0 if is_sparse and has_names_below else len(tilings) - 1


def _levels_of_lines(
    num_units: int, width: int, height: int, stride: int, *, half_blocks: bool, names: int
) -> list[Tiling]:
    """Return the levels of detail of a pool that is divided into equal lines, drawn one below the other.

    The first level shows all lines. Each further level has up to twice as many rows and columns of cells, so its
    picture may be larger than the view.
    """
    num_lines = -(-num_units // stride)
    margin = names + 2 if names and num_lines <= height and names + 2 <= _MOST_MARGIN_SHARE * width else 0
    width -= margin
    columns, rows = min(width, stride), min(height, num_lines)
    found = [_lines(num_units, stride, columns, rows, width, height, margin)]
    while columns < stride or rows < num_lines:
        columns, rows = min(2 * columns, stride), min(2 * rows, num_lines)
        found.append(_lines(num_units, stride, columns, rows, max(width, columns), max(height, rows), margin))
    # If lines are too many for whole characters, the finest level draws them at half height.
    if half_blocks and found[-1].units_per_cell == 1 and num_lines > height:
        finest = found.pop()
        found.append(
            Tiling(
                num_units=num_units,
                stride=stride,
                columns=finest.columns,
                rows=finest.rows,
                width=finest.width,
                height=_equally_high(finest.rows, max(2 * height, finest.rows)),
                detail=Detail.HALF,
            )
        )
    return found


def _lines(num_units: int, stride: int, columns: int, rows: int, width: int, height: int, margin: int) -> Tiling:
    even = width // columns * columns
    width = even if even >= _LEAST_FILL * width else width  # equally long sequences look equally long
    return Tiling(
        num_units=num_units,
        stride=stride,
        columns=columns,
        rows=rows,
        width=width,
        height=_equally_high(rows, height),
        detail=Detail.MIX,
        margin=margin,
    )


def _equally_high(rows: int, height: int) -> int:
    """Return the largest multiple of `rows` up to `height`, but at least `rows`.

    All rows then have the same height: a higher one would look as if it held more memory.
    """
    return max(height // rows, 1) * rows


class _Shape(NamedTuple):
    detail: Detail
    wide: int
    """Width in eighths of a character."""
    tall: int
    """Height in lines, or in half lines for `Detail.HALF`."""
    per_cell: int = 1

    @property
    def area(self) -> float:
        return self.wide * self.tall / (EIGHTHS * self.lines_per_character * self.per_cell)

    @property
    def lines_per_character(self) -> int:
        return 2 if self.detail is Detail.HALF else 1

    def fits(self, num_units: int, width: int, height: int) -> bool:
        columns, rows = EIGHTHS * width // self.wide, height * self.lines_per_character // self.tall
        return columns * rows * self.per_cell >= num_units

    def columns(self, num_units: int, width: int, height: int) -> int:
        """Return the number of columns in a picture, with a round number of units per row if possible."""
        cells = -(-num_units // self.per_cell)
        least = -(-cells // max(height * self.lines_per_character // self.tall, 1))
        most = min(EIGHTHS * width // self.wide, cells)
        for step in _ROUND_ROWS:
            found = most - most % (step // math.gcd(step, self.per_cell))
            if found >= max(least, 1):
                return found
        return most


def _whole_pool_tiling(num_units: int, unit_tokens: int, width: int, height: int, *, half_blocks: bool) -> Tiling:
    """Return the tiling of equal cells that covers most of a picture of `width` by `height` characters.

    Among tilings that cover about as much, well-shaped cells are preferred. A margin at the left has the number of each
    row's first block. It is omitted if it takes too much of the picture, if numbers are below the blocks, or if there
    is only one row.
    """
    margin = len(str(num_units)) + 1 if unit_tokens > 1 else 0
    choices = []
    for left in sorted({0, margin if margin <= _MOST_MARGIN_SHARE * width else 0}):
        shape = _best_shape(num_units, unit_tokens, width - left, height, half_blocks=half_blocks)
        tiling = _tiling_of_shape(shape, num_units, width - left, height, left)
        choices.append((num_units * shape.area / (width * height), tiling))
    (bare, without), (covered, numbered) = choices[0], choices[-1]
    if without.gap or without.rows == 1 or bare - covered > _SPARE_FOR_NUMBERS:
        return without
    return numbered


def _best_shape(num_units: int, unit_tokens: int, width: int, height: int, *, half_blocks: bool) -> _Shape:
    room = width * height / num_units
    shapes = [
        shape
        for shape in _shapes_of_one(room, blocks=unit_tokens > 1, half_blocks=half_blocks)
        if shape.fits(num_units, width, height)
    ]
    if not shapes:
        return _Shape(Detail.MIX, EIGHTHS, 1, -(-num_units // (width * height)))
    aspect = 5 if room >= _ROOMY and height > 1 else 2

    def score(shape: _Shape) -> float:
        oblongness = abs(math.log(shape.wide * shape.lines_per_character / (EIGHTHS * shape.tall * aspect)))
        is_round = shape.columns(num_units, width, height) % 10 == 0
        bonus = _SPARE_FOR_FILL * (shape.detail is Detail.FILL) + _SPARE_FOR_ROUND_ROWS * is_round
        return shape.area / room + bonus - _BAD_SHAPE_PENALTY * oblongness

    return max(shapes, key=score)


def _shapes_of_one(room: float, *, blocks: bool, half_blocks: bool) -> Iterator[_Shape]:
    """Yield the shapes of cells of one unit, with an area of at most `room` characters."""
    for tall in range(1, _MOST_TALL + 1):
        wides = range(1, min(int(room / tall), 2 * _MOST_WIDE) + 1)
        if blocks:
            yield from (_Shape(Detail.FILL, EIGHTHS * wide, tall) for wide in wides)
        elif not half_blocks:
            yield from (_Shape(Detail.MIX, EIGHTHS * wide, tall) for wide in wides)
    if not half_blocks:
        return
    # Blocks of an even number of half lines are drawn with their fill instead.
    for tall in (1, 3) if blocks else range(1, 2 * _MOST_TALL + 1):
        wides = range(1, min(int(2 * room / tall), 2 * _MOST_WIDE) + 1)
        yield from (_Shape(Detail.HALF, EIGHTHS * wide, tall) for wide in wides)
    if blocks:
        yield from (_Shape(Detail.PART, wide, 1) for wide in _CELL_EIGHTHS if wide <= EIGHTHS * room)


def _tiling_of_shape(shape: _Shape, num_units: int, width: int, height: int, margin: int) -> Tiling:
    columns = shape.columns(num_units, width, height)
    rows = -(-num_units // (columns * shape.per_cell))
    return Tiling(
        num_units=num_units,
        columns=columns,
        rows=rows,
        width=-(-columns * shape.wide // EIGHTHS),
        height=rows * shape.tall,
        detail=shape.detail,
        per_cell=shape.per_cell,
        eighths=shape.wide if shape.detail is Detail.PART else 0,
        margin=margin,
    )


def _scrolled_tiling(shape: _Shape, num_units: int, width: int) -> Tiling:
    """Return a tiling of cells of `shape` that fills rows of nearly `width` characters, with as many rows as needed."""
    margin = len(str(num_units)) + 1
    margin = margin if margin <= _MOST_MARGIN_SHARE * width else 0
    return _tiling_of_shape(shape, num_units, width - margin, num_units, margin)


def _tiling_with_gaps(num_units: int, most_units: int, width: int, height: int, names: int, bare: int) -> Tiling | None:
    """Return a tiling with gaps between equally large units, which bear their numbers and holders; None without room.

    Numbers and names are below the units. With less room, names are on the units, and a margin has the number of each
    row's first unit. With even less, there are no names. The choice is made for `most_units`, so that pools that
    are shown together look alike.
    """
    digits = len(str(most_units))
    places = [_Place(0, digits + names + 2, 2, _MOST_TALL)]
    places += [_Place(digits + 1, bare + 1, tall, tall, bare) for tall in (2, 1)]
    places += [_Place(digits + 1, 2, tall, tall) for tall in (2, 1)]
    for place in places:
        if _best_tiling_at(most_units, width, height, place) is not None:
            return _best_tiling_at(num_units, width, height, place)
    return None


class _Place(NamedTuple):
    """Position of the numbers and names of units, and the room in characters that a unit needs for them."""

    margin: int
    least_wide: int
    least_tall: int
    most_tall: int
    label: int = 0
    """Length of names on the units; 0 if names are below the units, or if there are none."""


def _best_tiling_at(num_units: int, width: int, height: int, place: _Place) -> Tiling | None:
    best: tuple[float, Tiling] | None = None
    for columns in range(1, min((width - place.margin) // place.least_wide, num_units) + 1):
        wide, rows = min((width - place.margin) // columns, 2 * _MOST_WIDE), -(-num_units // columns)
        tall = min(height // rows, place.most_tall)
        if tall < place.least_tall:
            continue
        fill = (place.margin + columns * wide) * rows * tall / (width * height)
        score = fill + _ROUND_COLUMNS.get(columns, 0.0) - abs(math.log(wide / (3 * tall))) / 8
        if best is None or score > best[0]:
            picture = Tiling(
                num_units=num_units,
                columns=columns,
                rows=rows,
                width=columns * wide,
                height=rows * tall,
                detail=Detail.FILL,
                margin=place.margin,
                separates_units=True,
                label=place.label,
            )
            best = (score, picture)
    return None if best is None else best[1]


def _tiling_by_slot(num_units: int, unit_tokens: int, width: int, height: int, names: int) -> Tiling:
    """Return a tiling with one character per slot, or more characters per slot if the whole pool fits with them.

    The number and the holder of a unit are left of it. A gap separates neighbouring units.
    """
    gutter = min(len(str(num_units)) + 1 + (names + 1 if names else 0), max(width - unit_tokens - 1, 0))
    for scale in range(_MOST_TALL, 0, -1):
        wide = gutter + unit_tokens * scale + 1
        columns = min(max(width // wide, 1), num_units)
        rows = -(-num_units // columns)
        if scale == 1 or (wide <= width and rows * (scale + 1) <= height):
            break
    columns = min(columns, -(-num_units // rows))
    lines = rows if height < 2 * rows else _equally_high(rows, min(height, rows * (2 * scale + 4)))
    return Tiling(
        num_units=num_units,
        columns=columns,
        rows=rows,
        width=wide * columns,
        height=lines,
        detail=Detail.SLOTS,
        gutter=gutter,
    )
