"""Writes names into the picture where there is room: owners of rows and reservations, numbers and owners of blocks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kvsim.memory.waste import SlotState
from kvsim.metrics.names import STATE_NAMES
from kvsim.replay.unfolding import NO_OWNER

from ..look.wording import ending
from .brush import is_divided, strong, text_keys
from .paint import ColorBy
from .tiling import Detail

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.replay.replay import Replay

    from .array_types import IndexArray, KeyArray
    from .tiling import Tiling

_LONGEST_NAME = 12
_FREE = STATE_NAMES[SlotState.FREE]

_LEAST_NAMED_WIDTH = 3


_MOST_UNITS = 4
"""Largest number of units that one cell of a paged pool may show and still bear its owner's name.

In a fuller cell, a name would hide the colours of too many units.
"""


def write_names(
    picture: KeyArray,
    top: int,
    rows: IndexArray,
    cells: IndexArray,
    tiling: Tiling,
    replay: Replay,
    color_by: ColorBy,
    *,
    half_blocks: bool,
    marked: int | None = None,
) -> None:
    """Write the owners' names into `picture`: for each of `rows`, on its line for names. `rows` are indices of rows of
    cells, and `cells` are the indices of the cells in these rows, row by row.

    `picture` begins at line `top` of the whole picture. If each line of the pool has a name, ">" precedes the name of
    the request `marked`. The margin of a paged pool gets the number of each row's first unit.
    """
    if tiling.margin and tiling.stride is None:
        _number_rows(picture, top, rows, tiling, replay)
    if color_by in (ColorBy.OWNER, ColorBy.SHARING) and _bears_extents(tiling):
        _count_holders(picture, top, cells, tiling, replay)
    name, lines = _name_lines(tiling, rows, replay, color_by, half_blocks=half_blocks, marked=marked)
    if name is None:
        return
    lines = np.where(lines >= 0, lines - top, -1)
    seen = (lines >= 0) & (lines < len(picture))
    if seen.any():
        through = picture[lines[seen]]
        name(through, tiling, replay, cells.reshape(len(rows), -1)[seen].ravel())
        picture[lines[seen]] = through


def _bears_extents(tiling: Tiling) -> bool:
    """Tell whether a name would be on the first of consecutive units of one request, in the units themselves."""
    return tiling.detail is Detail.FILL and not tiling.gap and not tiling.separates_units


def _name_lines(
    tiling: Tiling, rows: IndexArray, replay: Replay, color_by: ColorBy, *, half_blocks: bool, marked: int | None
) -> tuple[Callable[..., None] | None, IndexArray]:
    """Return the function that writes names, None if there is no room for them, and for each of `rows` the line of the
    whole picture for its names, -1 for none.
    """
    name: Callable[..., None] | None = None
    lines = tiling.row_edges[rows]
    match tiling.detail:
        case Detail.MIX | Detail.PART | Detail.HALF if replay.unit_tokens > 1 or tiling.down > 1:
            pass
        case Detail.MIX if tiling.stride is None and tiling.units_per_cell > _MOST_UNITS:
            pass
        case Detail.FILL if _bears_extents(tiling):
            if tiling.wide >= _LEAST_NAMED_WIDTH and half_blocks:
                name = partial(name_extents, counted=color_by in (ColorBy.OWNER, ColorBy.SHARING))
        case Detail.FILL if not tiling.gap:  # a name is on each unit
            name = name_blocks
        case Detail.MIX | Detail.HALF:
            by_line = tiling.margin and tiling.stride is not None
            stressed = marked if names_every_line(tiling, replay) else None
            name = partial(name_lines if by_line else name_extents, marked=stressed)
            first, last = _lines_for_names(tiling, rows)
            lines = np.where(first <= last, (first + last) // 2, -1)
        case Detail.FILL:  # a name is on the empty line below each unit
            name, lines = name_units, tiling.row_edges[rows + 1] - 1
        case Detail.SLOTS:  # a name is left of each unit
            name = name_units
    return name, lines


def longest_name(replay: Replay, *, shared: bool = True) -> int:
    """Return the length of the longest request name, with the number of other holders if units can be shared.

    Without `shared`, that number is left out. The result is at most 12. It is 0 for training batches, because one of
    their rows has several sequences.
    """
    meta = replay.recording.meta
    if "row_tokens" in meta.policy:
        return 0
    longest = max((len(name) for name in replay.recording.requests.id.tolist()), default=0)
    return min(longest + 2 * (shared and meta.prefix_caching and replay.unit_tokens > 1), _LONGEST_NAME)


def names_every_line(tiling: Tiling, replay: Replay) -> bool:
    """Tell whether each line of the pool is one row or reservation and has room for its owner's name."""
    if replay.unit_tokens > 1 or tiling.stride is None or tiling.down > 1:
        return False
    if tiling.detail not in (Detail.MIX, Detail.HALF):
        return False
    first, last = _lines_for_names(tiling, np.arange(tiling.rows))
    return bool((first <= last).all())


def _lines_for_names(tiling: Tiling, rows: IndexArray) -> tuple[IndexArray, IndexArray]:
    """Return the first and the last line of characters that belong to one row alone, for each of `rows`.

    If a row shares all its lines with other rows, the last is before the first.
    """
    per_character = 2 if tiling.detail is Detail.HALF else 1
    first = -(-tiling.row_edges[rows] // per_character)
    has_gap = tiling.tall > per_character  # below the row
    return first, (tiling.row_edges[rows + 1] - has_gap) // per_character - 1


def _count_holders(picture: KeyArray, top: int, cells: IndexArray, tiling: Tiling, replay: Replay) -> None:
    units = cells[cells < tiling.num_units]
    for unit in units[replay.refs[units] > 1].tolist():
        row, column = divmod(unit, tiling.columns)
        line, x = int(tiling.row_edges[row]) - top, int(tiling.column_edges[column])
        if 0 <= line < len(picture):
            holders = int(replay.refs[unit])
            x += tiling.margin
            room = max(tiling.wide - 1, 1)
            text = str(holders) if len(str(holders)) <= room and holders <= 10**room - 1 else "+"
            place = picture[line, x : x + room]
            place[: len(text)] = text_keys(text, place)


def name_units(lines: KeyArray, tiling: Tiling, replay: Replay, cells: IndexArray) -> None:
    """Write the number, the first holder and the number of other holders of each unit, below the unit or left of it.

    `cells` has one unit per cell. `lines[i]` is the line for the names of row i of the cells: shape (rows, characters).
    """
    digits = len(str(tiling.num_units + replay.first_unit - 1)) if tiling.gutter else 0
    units = cells[cells < tiling.num_units]
    names = [_holder_words(replay, unit) for unit in units.tolist()]
    # The last character separates the name from the unit, or from the next name.
    room = (tiling.gutter or tiling.wide) - 1
    longest = max(map(len, names), default=0)
    # Numbers of held units are left out if a name has no room beside its number: a part of a name is another's name.
    numbered = tiling.gutter > 0 or longest + len(str(int(units.max(initial=0)) + replay.first_unit)) + 1 <= room
    for place, (unit, name) in enumerate(zip(units.tolist(), names, strict=True)):
        row, column = divmod(place, tiling.columns)
        begin = int(tiling.column_edges[column])
        number = f"{unit + replay.first_unit:>{digits}} " if numbered or not name else ""
        _write(number[:room], lines[row, begin:])
        if name and len(number) + len(name) <= room:
            _write(name, lines[row, begin + len(number) :], weak=False)


def name_blocks(lines: KeyArray, tiling: Tiling, replay: Replay, cells: IndexArray) -> None:
    """Write the name of its first holder on each unit of `cells`, and the number of other holders if there is room.

    A divided unit of one character has no name, because a name would hide the division. No unit has a name if
    `tiling.label` is 0. `lines` has a line of characters per row of cells, with the margin: shape (rows, characters).
    """
    room = tiling.wide - 1
    for line, row in zip(lines, cells.reshape(-1, tiling.columns), strict=True):
        units = row[row < tiling.num_units].tolist()
        for column, unit in enumerate(units):
            whole = _holder_words(replay, unit) if tiling.label else ""
            name, _, others = whole.rpartition("+")
            name = whole if len(whole) <= room else f"+{others}" if len(others) < room else name
            begin = tiling.margin + int(tiling.column_edges[column])
            if room > 1 or not is_divided(int(line[begin])):
                _write(name, line[begin : begin + room])


def _number_rows(picture: KeyArray, top: int, rows: IndexArray, tiling: Tiling, replay: Replay) -> None:
    """Write the number of the first unit of each of `rows` into the margin, if it begins at the top of a character."""
    per_character = 2 if tiling.detail is Detail.HALF else 1
    for row in rows.tolist():
        line, rest = divmod(int(tiling.row_edges[row]), per_character)
        unit = row * tiling.columns * tiling.per_cell + replay.first_unit
        if not rest and 0 <= line - top < len(picture):
            _write(f"{unit:>{tiling.margin - 1}}", picture[line - top])


def _holder_words(replay: Replay, unit: int) -> str:
    owner, refs = int(replay.owner[unit]), int(replay.refs[unit])
    return "" if owner == NO_OWNER else _name(replay, owner) + (f"+{refs - 1}" if refs > 1 else "")


def name_lines(
    lines: KeyArray, tiling: Tiling, replay: Replay, cells: IndexArray, *, marked: int | None = None
) -> None:
    """Write the owner's name left of each row or reservation of `cells`, with ">" before the name of `marked`.

    A row without an owner is named free. `lines` has one line of characters of each row of cells, with the margin:
    shape (rows, characters).
    """
    for line, row in zip(lines, cells.reshape(-1, tiling.columns), strict=True):
        owners = replay.owner[tiling.units_of(int(row[0]))]
        held = owners[owners != NO_OWNER]
        if len(held):
            mark = ">" if held[0] == marked else " "
            _write(mark + _name(replay, int(held[0]), tiling.margin - 2), line, weak=False)
        elif len(owners) and tiling.margin - 2 >= len(_FREE):
            _write(f" {_FREE}", line)


def name_extents(
    lines: KeyArray,
    tiling: Tiling,
    replay: Replay,
    cells: IndexArray,
    *,
    marked: int | None = None,
    counted: bool = False,
) -> None:
    """Write the owner's name on each row or reservation, or on the first of consecutive units with one owner.

    ">" precedes the name of `marked`. "+" and the number of other holders follow the name. With `counted`, shared units
    have no name, because their number of holders is written on them. The name is written where the characters under it
    are equal, so that no border is hidden; if nowhere enough characters are equal, at the beginning. `lines` has one
    line of characters of each row of cells: shape (rows, characters).
    """
    first = [found[0] if len(found := tiling.units_of(cell)) else -1 for cell in cells.tolist()]
    units = np.array(first, np.int64)
    owners = np.where(units >= 0, replay.owner[units.clip(min=0)], NO_OWNER)
    edges = tiling.column_edges
    shared = np.where(owners != NO_OWNER, replay.refs[units.clip(min=0)] - 1, 0)
    rows = (values.reshape(-1, tiling.columns) for values in (owners, shared))
    for line, held, others in zip(lines[:, tiling.margin :], *rows, strict=True):
        begins = np.flatnonzero(np.diff(held, prepend=NO_OWNER) | np.diff(others, prepend=0)).tolist()
        for begin, end in zip(begins, [*begins[1:], len(held)], strict=False):
            owner, width = int(held[begin]), int(edges[end] - edges[begin])
            room = width - 2
            # An owner without a prompt is the padding at the end of a row, not a request.
            if owner == NO_OWNER or not replay.recording.requests.prompt_tokens[owner]:
                continue
            if counted and others[begin] > 0:
                continue
            name = _name(replay, owner) + (f"+{others[begin]}" if others[begin] > 0 else "")
            if "row_tokens" in replay.recording.meta.policy:  # the length of a sequence follows its name
                length = f" {replay.recording.requests.prompt_tokens[owner]}"
                room += 1  # no blank is needed behind it
                name += length if len(name + length) <= room else ""
            if len(name) > room:  # a shortened name could be mistaken for another request's name
                continue
            # The fill of a unit is visible on both sides of the name.
            if tiling.detail is Detail.FILL:
                _write(name, line[edges[begin] + 1 : edges[end]])
            else:
                mark = ">" if owner == marked else " "
                _write_over_equal_characters(f"{mark}{name} "[:width], line[edges[begin] : edges[end]])


def _write(text: str, place: KeyArray, *, weak: bool = True) -> None:
    keys = text_keys(text, place)
    place[: len(keys)] = keys if weak else strong(keys)


def _write_over_equal_characters(text: str, place: KeyArray) -> None:
    begins = np.flatnonzero(np.diff(place, prepend=-1))
    lengths = np.diff(begins, append=len(place))
    long_enough = begins[lengths >= len(text)]
    _write(text, place[int(long_enough[0]) if len(long_enough) else 0 :])


def _name(replay: Replay, request: int, room: int = _LONGEST_NAME) -> str:
    return ending(str(replay.recording.requests.id[request]), min(room, _LONGEST_NAME), "")
