"""Tables for a terminal, as rich lays them out: columns side by side, and cells that fold where the terminal ends.

rich itself takes a tenth of a short command to load; it draws what moves, such as progress bars.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

_GAP = "   "
_EDGE = " "
_LEAST = 10
"""Letters that a column keeps when there is no room."""


def cell_width(text: str) -> int:
    """Places that `text` takes in a terminal: two for a wide letter, none for an accent on the letter before."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width  # noqa: PLC0415  most text is plain

    return sum(0 if combining(letter) else 1 + (east_asian_width(letter) in "WF") for letter in text)


def folded(text: str, width: int) -> list[str]:
    """The lines of `text`, broken between words where they are longer than `width`, and inside longer words."""
    return [part for line in text.expandtabs().split("\n") for part in _parts(line, width)]


def table_lines(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int,
    figures: Collection[int] = (),
    rule: str = "─",
) -> tuple[list[str], list[str]]:
    """The lines of a table, in at most `width` places if it can be: those of its head, and all below.

    Args:
        columns: heads; without any that says something, the table has none.
        rows: one text for each column, of one or several lines.
        width: places that there are.
        figures: numbers of the columns that are aligned to the right and never fold.
        rule: what the line below the head is made of.
    """
    columns, rows = [each.expandtabs() for each in columns], [[each.expandtabs() for each in row] for row in rows]
    natural = [
        max(cell_width(line) for cell in cells for line in cell.split("\n"))
        for cells in zip(columns, *rows, strict=True)
    ]
    taken = 2 * len(_EDGE) + len(_GAP) * (len(columns) - 1)
    widths = _fitted(natural, width - taken, figures)
    blank = " " * (sum(widths) + taken)
    head = list(_row(columns, widths, figures)) if any(columns) else []
    ruled = [_EDGE + rule * (len(blank) - 2 * len(_EDGE)) + _EDGE] if head else []
    body = [line for row in rows for line in _row(row, widths, figures)]
    return [blank, *head], [*ruled, *body, blank]


def _fitted(widths: list[int], room: int, figures: Collection[int]) -> list[int]:
    """`widths`, of which the widest that may fold give way until all fit."""
    widths = list(widths)
    while sum(widths) > room:
        may = [index for index, each in enumerate(widths) if index not in figures and each > _LEAST]
        if not may:
            break
        widest = max(may, key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def _row(cells: Sequence[str], widths: Sequence[int], figures: Collection[int]) -> Iterator[str]:
    """The lines of one row."""
    lines = [folded(cell, width) for cell, width in zip(cells, widths, strict=True)]
    for nth in range(max(map(len, lines), default=0)):
        parts = [each[nth] if nth < len(each) else "" for each in lines]
        yield _EDGE + _GAP.join(_aligned(part, widths[at], at in figures) for at, part in enumerate(parts)) + _EDGE


def _aligned(text: str, width: int, is_figure: bool) -> str:
    space = " " * (width - cell_width(text))
    return space + text if is_figure else text + space


def _parts(line: str, width: int) -> Iterator[str]:
    """`line` in pieces of at most `width` places."""
    while cell_width(line) > width:
        end = _places(line, width)
        space = line.rfind(" ", 0, end + 1)
        if space > 0 and line[:space].strip():
            end = space
        yield line[:end].rstrip(" ")
        line = line[end:].lstrip(" ")
    yield line


def _places(text: str, width: int) -> int:
    """How many letters of `text` take at most `width` places, and at least one."""
    taken = 0
    for index, letter in enumerate(text):
        taken += cell_width(letter)
        if taken > width:
            return max(index, 1)
    return len(text)
