"""The pool at the current frame as lines of characters, for text output and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.memory.waste import SlotState
from kvsim.metrics.names import STATE_NAMES, tells_owners

from ..look.states import STACK
from ..look.wording import percent, plural
from ..pool.brush import Brush
from ..pool.canvas import Canvas
from ..pool.host_blocks import legend_now, map_keys, slots_now
from ..pool.labels import longest_name
from ..pool.layer_kinds import layer_kinds, places_of_units
from ..pool.levels import best_level, levels
from ..pool.line_lengths import LineLengths
from ..pool.paint import OWNER, SHARED, ColorBy, hue_of, paint_glyphs
from ..pool.tiling import one_cell

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt
    from rich.style import Style

    from ..look.states import Symbols
    from ..playback.session import Session

_MOST_NAMED: Final = 10


def still(
    session: Session, symbols: Symbols, width: int, height: int, *, color_by: ColorBy = ColorBy.STATE
) -> list[list[tuple[str, Style]]]:
    """Return the picture of the pool as lines of at most `width` characters with styles.

    The picture has about `height` lines. It may have up to twice as many if the pool is divided into equal rows, such
    as the rows of a training batch, because each row then gets a line.
    """
    replay = session.replay
    stride = LineLengths(replay).length_at(replay.seq)
    if stride is not None and -(-replay.num_units // stride) <= 2 * height:
        height = max(height, -(-replay.num_units // stride))
    canvas = Canvas(replay, one_cell(replay.num_units), half_blocks=symbols.color, color_by=color_by)
    tilings = levels(
        replay.num_units,
        replay.unit_tokens,
        width,
        height,
        stride=stride,
        half_blocks=symbols.color,
        has_slots=len(replay.groups) == 1,
        names=longest_name(replay),
        bare=longest_name(replay, shared=False),
    )
    canvas.tiling = tilings[best_level(tilings, height)]
    return _drawn(canvas.draw(0, canvas.height), symbols)


def host_still(session: Session, symbols: Symbols, width: int, height: int) -> list[list[tuple[str, Style]]]:
    """Return the map of host memory in `height` lines of `width` characters. Empty without host memory."""
    slots = slots_now(session)
    if slots is None:
        return []
    keys = map_keys(slots, width, height, half_blocks=symbols.color)
    return _drawn(keys, symbols)


def host_legend(session: Session, *, hued: bool = True) -> list[tuple[list[int], str]]:
    """Return the legend of host memory at the current frame: (paints, meaning) of each entry. A paint is the number of
    a colour; see `pool.paint`.

    Empty without host memory. If `hued`, owners' blocks have the owners' hues, as in a map in colours.
    """
    return legend_now(session, hued=hued)


def _drawn(keys: npt.NDArray[np.int32], symbols: Symbols) -> list[list[tuple[str, Style]]]:
    brush = Brush(symbols)
    return [[brush[key] for key in row] for row in keys.tolist()]


def pool_legend(session: Session, color_by: ColorBy) -> list[tuple[list[int], str]]:
    """Return the legend of the pool if colours mean `color_by`: (paints, meaning) of each entry.

    Percentages are of the pool or, for a training batch, of the rows in use.
    """
    if color_by is ColorBy.STATE:
        return _states(session, STACK)
    if color_by is ColorBy.LAYERS:
        return _layers(session)
    live = [row for row in session.replay.live_requests().tolist() if session.recording.requests.prompt_tokens[row]]
    if not tells_owners(session.recording):
        found = [([int(SlotState.TOKEN)], f"tokens of {len(live)} requests")]
    elif len(live) <= _MOST_NAMED:
        found = [([OWNER + hue_of(row)], session.request_name(row)) for row in live]
    else:
        found = [([OWNER + hue_of(row) for row in live[:4]], f"{len(live)} requests")]
    if (session.replay.refs > 1).any():
        found.append(([SHARED], "shared"))
    return found + _states(session, [state for state in STACK if state is not SlotState.TOKEN])


def _layers(session: Session) -> list[tuple[list[int], str]]:
    replay = session.replay
    places, kinds = places_of_units(replay, np.flatnonzero(replay.refs > 0)), layer_kinds(replay)
    found = []
    for kind in kinds:
        held = int((places == kind.place).sum())
        found.append(([kind.paint], f"{kind.words}: {plural(held, session.unit_name)}"))
    return found + _states(session, [state for state in STACK if state is not SlotState.TOKEN])


def _states(session: Session, states: Iterable[SlotState]) -> list[tuple[list[int], str]]:
    slots, rows, whole = session.breakdown.copy(), session.rows, session.capacity
    if rows is not None:  # the whole is the rows, without the free slots after the last row
        whole = rows.num_rows * rows.row_tokens
        slots[SlotState.FREE] += whole - slots.sum()
    return [
        ([int(state)], f"{STATE_NAMES[state]} {percent(int(slots[state]), whole)}") for state in states if slots[state]
    ]


def legend(session: Session, symbols: Symbols, color_by: ColorBy) -> str:
    """Return the legend of the pool as a line of characters."""
    return in_characters(pool_legend(session, color_by), symbols)


def in_characters(entries: Iterable[tuple[Iterable[int], str]], symbols: Symbols) -> str:
    """Return a legend as a line of characters. Each entry is (paints, meaning)."""
    glyphs = paint_glyphs(symbols)
    return "   ".join(f"{''.join(glyphs[paint] for paint in paints)} {words}" for paints, words in entries)
