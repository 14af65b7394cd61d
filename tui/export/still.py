"""The pool at one moment as lines of characters, for text and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.metrics.names import STATE_NAMES

from ..look.states import STACK
from ..look.words import percent
from ..pool.brush import Brush
from ..pool.canvas import Canvas
from ..pool.host_map import map_keys
from ..pool.levels import best_level, levels
from ..pool.lines import Lines
from ..pool.paint import ColorBy
from ..pool.tiling import one_cell

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from rich.style import Style

    from ..look.states import Symbols
    from ..playback.session import Session


def still(
    session: Session, symbols: Symbols, width: int, height: int, color_by: ColorBy = ColorBy.STATE
) -> list[list[tuple[str, Style]]]:
    """Return the pool of `session` now as lines of at most `width` styled characters; about `height` lines."""
    replay = session.replay
    canvas = Canvas(replay, one_cell(replay.num_units), half_blocks=symbols.color, color_by=color_by)
    tilings = levels(
        replay.num_units,
        replay.unit_tokens,
        width,
        height,
        stride=Lines(replay).length_at(int(replay.frame_seq[replay.frame])),
        half_blocks=symbols.color,
        has_slots=len(replay.groups) == 1,
    )
    canvas.tiling = tilings[best_level(tilings, height)]
    return _drawn(canvas.draw(0, canvas.height), symbols)


def host_still(session: Session, symbols: Symbols, width: int, height: int) -> list[list[tuple[str, Style]]]:
    """Return the map of host memory now, in `height` lines of `width` characters; no lines without host memory."""
    if session.host is None:
        return []
    keys = map_keys(session.host, session.replay.frame, width, height, half_blocks=symbols.color)
    return _drawn(keys, symbols)


def _drawn(keys: npt.NDArray[np.int32], symbols: Symbols) -> list[list[tuple[str, Style]]]:
    brush = Brush(symbols)
    return [[brush[key] for key in row] for row in keys.tolist()]


def legend(session: Session, symbols: Symbols) -> str:
    """Return the legend of a still: each state that occurs, with its share."""
    parts = [
        f"{symbols.states[state]} {STATE_NAMES[state]} {percent(int(session.breakdown[state]), session.capacity)}"
        for state in STACK
        if session.breakdown[state]
    ]
    return "   ".join(parts)
