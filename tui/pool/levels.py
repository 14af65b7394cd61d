"""Levels of detail of a picture of the pool, from the whole pool at once to single slots, for a given picture size."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from .tiling import Detail, Tiling

_MOST_WIDE, _MOST_TALL = 12, 4
"""Largest cell of one unit: its width in characters, and its height in lines."""
_ROOMY = 12
"""Least number of characters per unit with which units are drawn wider than high."""
_MOST_MARGIN = 0.25
"""Largest share of the picture's width that names of lines may take."""
_LEAST_FILL = 0.9
"""Least share of the picture that the pool should cover."""
_FEW = 4
"""Least number of columns of units in a picture slot by slot with as many rows; with fewer, a coarser one is shown."""
_MOST_CUT = 512
"""Largest number of units that a picture separates by gaps, to write numbers and holders."""
_ROUND = {10: 0.12, 20: 0.12, 40: 0.12, 8: 0.06, 16: 0.06, 5: 0.06}
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

    The coarsest level shows the whole pool. The next levels have fewer units per cell, down to one. The last levels
    show the fill of each unit, and each slot, unless `has_slots` is off.

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
    found = []
    rows = height
    # Add levels of twice as many rows until a cell has one unit; if the picture fits in, a character shows two units.
    while num_units > width * rows * (1 + (half_blocks and rows == height)):
        found.append(Tiling(num_units=num_units, columns=width, rows=rows, width=width, height=rows, detail=Detail.MIX))
        rows *= 2
    if half_blocks and width * height < num_units <= 2 * width * height:
        found.append(_one_each(num_units, width, 2 * height, Detail.HALF))
    if unit_tokens > 1:
        most_units, cut = max(num_units, most_units), None
        if names and half_blocks and most_units <= _MOST_CUT:
            cut = _cut_apart(num_units, most_units, width, height, names, bare or names)
        found.append(cut or _one_each(num_units, width, height, Detail.FILL))
        if has_slots:
            found.append(_slots_level(num_units, unit_tokens, width, height, names))
    elif not found or found[-1].detail is not Detail.HALF:
        found.append(_one_each(num_units, width, 2 * height if half_blocks else height, _UNIT[half_blocks]))
    return found


_UNIT = {True: Detail.HALF, False: Detail.MIX}
"""Detail at which a unit of one slot is drawn, with and without half-height characters."""


def best_level(tilings: list[Tiling], height: int) -> int:
    """Return the index of the finest of `tilings` that shows the whole pool in `height` lines of characters.

    If it draws single slots in less than `_FEW` columns of units, and the level before it has the numbers and names of
    units below them, return the level before.
    """
    whole = [
        index
        for index, tiling in enumerate(tilings)
        if tiling.detail in (Detail.FILL, Detail.SLOTS) and tiling.height <= height
    ]
    best = max(whole, default=0)
    finest = tilings[best]
    has_names_below = best > 0 and tilings[best - 1].cut and not tilings[best - 1].margin
    is_sparse = finest.detail is Detail.SLOTS and finest.columns < _FEW <= finest.num_units // _FEW
    return best - 1 if is_sparse and has_names_below else best


def _levels_of_lines(
    num_units: int, width: int, height: int, stride: int, *, half_blocks: bool, names: int
) -> list[Tiling]:
    """Return the levels of a pool of lines, which are drawn one below the other.

    The first level shows all lines in the picture. Each further level has up to twice as many rows and columns of
    cells; its picture may be larger than the view, and is then scrolled.
    """
    num_lines = -(-num_units // stride)
    margin = names + 2 if names and num_lines <= height and names + 2 <= _MOST_MARGIN * width else 0
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
    """Return the largest multiple of `rows` up to `height`, but at least `rows`, so that all rows are equally high.

    A higher row would look as if it held more memory.
    """
    return max(height // rows, 1) * rows


def _one_each(num_units: int, width: int, height: int, detail: Detail) -> Tiling:
    """Return a tiling with a cell for each unit: nearly square, equally large, and covering the picture.

    If the picture is too small, each unit has a character or half a character, in more lines than are visible.
    """
    aspect = 1 if detail is Detail.HALF else 2  # height of a line divided by the width of a character
    most_rows = height
    if detail is Detail.FILL and width * height >= _ROOMY * num_units and height > 1:
        aspect, most_rows = 5, height // 2  # wide and low, with a line for a name
    best: tuple[float, Tiling] | None = None
    for rows in range(-(-num_units // width), most_rows + 1):
        columns = -(-num_units // rows)
        for cell_width, cell_height in ((width / columns, height / rows), (width // columns, height // rows)):
            fill = num_units * cell_width * cell_height / (width * height)
            stretched = cell_width == width / columns and cell_height == height / rows
            if cell_width > _MOST_WIDE * 2 or (fill < _LEAST_FILL and not stretched):
                continue
            uneven = sum((math.ceil(size) - math.floor(size)) / size for size in (cell_width, cell_height))
            oblongness = abs(math.log(cell_width / (aspect * cell_height)))
            score = oblongness + 2 * uneven + 8 * max(1 - fill, 0)
            if best is None or score < best[0]:
                picture = Tiling(
                    num_units=num_units,
                    columns=columns,
                    rows=rows,
                    width=round(cell_width * columns),
                    height=round(cell_height * rows),
                    detail=detail,
                )
                best = (score, picture)
    if best is not None:
        picture = best[1]
        even = _equally_high(picture.rows, picture.height)
        if detail is Detail.FILL and picture.tall > 1 and even >= _LEAST_FILL * picture.height:
            return replace(picture, height=even)
        return picture
    columns, rows = min(width, num_units), -(-num_units // width)
    return Tiling(
        num_units=num_units,
        columns=columns,
        rows=rows,
        width=columns,
        height=max(rows, min(height, rows)),
        detail=detail,
    )


def _cut_apart(num_units: int, most_units: int, width: int, height: int, names: int, bare: int) -> Tiling | None:
    """Return a tiling with equally large units that bear their numbers and holders; None if there is no room for these.

    Numbers and names are below the units; where there is no room, names are on the units, and a margin has the number
    of each row's first unit. Where there is no room for names either, only the margin has numbers. Pools that are shown
    together choose as the largest, of `most_units`, so that their names are in the same places.
    """
    digits = len(str(most_units))
    places = [_Place(0, digits + names + 2, 2, _MOST_TALL)]
    places += [_Place(digits + 1, bare + 1, tall, tall, bare) for tall in (2, 1)]
    places += [_Place(digits + 1, 2, tall, tall) for tall in (2, 1)]
    for place in places:
        if _best_columns(most_units, width, height, place) is not None:
            return _best_columns(num_units, width, height, place)
    return None


class _Place(NamedTuple):
    """Place of the numbers and names of units that are cut apart, and the room that these need, in characters."""

    margin: int
    least_wide: int
    least_tall: int
    most_tall: int
    label: int = 0
    """Characters of names on the units; 0 if names are below the units, or if there are none."""


def _best_columns(num_units: int, width: int, height: int, place: _Place) -> Tiling | None:
    """Return the tiling that covers most of the picture with units of good shape; None if they do not fit."""
    best: tuple[float, Tiling] | None = None
    for columns in range(1, min((width - place.margin) // place.least_wide, num_units) + 1):
        wide, rows = min((width - place.margin) // columns, 2 * _MOST_WIDE), -(-num_units // columns)
        tall = min(height // rows, place.most_tall)
        if tall < place.least_tall:
            continue
        fill = (place.margin + columns * wide) * rows * tall / (width * height)
        score = fill + _ROUND.get(columns, 0.0) - abs(math.log(wide / (3 * tall))) / 8
        if best is None or score > best[0]:
            picture = Tiling(
                num_units=num_units,
                columns=columns,
                rows=rows,
                width=columns * wide,
                height=rows * tall,
                detail=Detail.FILL,
                margin=place.margin,
                cut=True,
                label=place.label,
            )
            best = (score, picture)
    return None if best is None else best[1]


def _slots_level(num_units: int, unit_tokens: int, width: int, height: int, names: int) -> Tiling:
    """Return a tiling with a character per slot, or a square of characters per slot if the whole pool fits.

    The number and the holder of a unit are left of it, and a gap separates neighbouring units.
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
