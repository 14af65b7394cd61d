"""Names on the picture, where there is room: whose row or reservation this is, which block, and whose.

Hues tell owners apart; only a name says which request each is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsim.replay.ledger import NO_OWNER

from ..look.words import ending
from .brush import text_keys
from .tiling import Detail

if TYPE_CHECKING:
    from kvsim.replay.replay import Replay

    from .tiling import Tiling

_LONGEST_NAME = 12


def name_units(lines: npt.NDArray[np.int32], tiling: Tiling, replay: Replay, cells: npt.NDArray[np.int64]) -> None:
    """Write which unit each of `cells` shows, and who holds it, and how many more do.

    `lines` are the last lines of characters of each row of cells: shape (rows, characters).
    """
    for place, unit in enumerate(cells[cells < tiling.num_units].tolist()):
        row, column = divmod(place, tiling.columns)
        begin, end = tiling.column_edges[column : column + 2].tolist()
        owner, refs = int(replay.owner[unit]), int(replay.refs[unit])
        # The last character of a cell keeps it apart from the next one.
        room = end - begin - 1
        text = f"{unit + replay.first_unit}"
        if owner != NO_OWNER:
            others = f"+{refs - 1}" if refs > 1 else ""
            text += f" {_name(replay, owner, max(room - len(text) - len(others) - 1, 1))}{others}"
        _write(text[:room], lines[row, begin:])


def name_runs(lines: npt.NDArray[np.int32], tiling: Tiling, replay: Replay, cells: npt.NDArray[np.int64]) -> None:
    """Write at the beginning of each row or reservation among `cells` whose it is.

    `lines` are a line of characters through each row of cells: shape (rows, characters).
    """
    first = [found[0] if len(found := tiling.units_of(cell)) else -1 for cell in cells.tolist()]
    units = np.array(first, np.int64)
    owners = np.where(units >= 0, replay.owner[units.clip(min=0)], NO_OWNER)
    edges = tiling.column_edges
    for line, held in zip(lines, owners.reshape(-1, tiling.columns), strict=True):
        begins = np.flatnonzero(np.diff(held, prepend=NO_OWNER)).tolist()
        for begin, end in zip(begins, [*begins[1:], len(held)], strict=False):
            owner, room = int(held[begin]), int(edges[end] - edges[begin]) - 2
            # What has no prompt is not a request but the end of a row, which needs no name.
            if owner != NO_OWNER and room > 0 and replay.recording.requests.prompt_tokens[owner]:
                # How far a unit is filled shows on either side of the name.
                side = "" if tiling.detail is Detail.FILL else " "
                _write(f"{side}{_name(replay, owner, room)}{side}", line[edges[begin] + (not side) : edges[end]])


def _write(text: str, place: npt.NDArray[np.int32]) -> None:
    keys = text_keys(text, place)
    place[: len(keys)] = keys


def _name(replay: Replay, request: int, room: int = _LONGEST_NAME) -> str:
    return ending(str(replay.recording.requests.id[request]), min(room, _LONGEST_NAME), "")
