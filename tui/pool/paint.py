"""Paints of the pool's pictures: a number for each meaning of a cell, and its colour. Colour has one meaning at a time,
which the user chooses: owner, state, kind of layers, number of holders, or age.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from kvsim.display.palette import NUM_HUES, mixed
from kvsim.memory.waste import NUM_STATES, SlotState

from ..look.states import luma

if TYPE_CHECKING:
    from ..look.states import Palette, Symbols


class ColorBy(Enum):
    """Meanings of colour; the values are shown to users."""

    OWNER = "owner"
    STATE = "state"
    LAYERS = "layers"
    SHARING = "sharing"
    AGE = "age"


class UnitChange(IntEnum):
    """Most recent change of a unit."""

    TAKEN = 11
    FREED = 12
    HIT = 13
    EVICTED = 14


EMPTY: Final = NUM_STATES
"""The paint of a cell without units. Paints below it are the states of `SlotState`."""
CURSOR: Final = 9
SHARED: Final = 10
"""Held by several requests at once."""
OWNER: Final = 16
"""First paint of written slots, by the hue of the owner."""
AGES: Final = 8
AGE: Final = OWNER + NUM_HUES
"""The first paint of ages, from old to new."""
HOLDERS: Final = AGE + AGES
"""The first paint of numbers of holders."""
HOLDER_STEPS: Final = (1, 2, 4, 8, 32)
"""Largest number of holders for each paint of `HOLDERS`; one more paint is for all above."""
KIND: Final = HOLDERS + len(HOLDER_STEPS) + 1
"""First paint of slots written by a kind of layers: full attention, two windows, two states, all others."""
_KIND_HUES: Final = (2, 0, 7, 3, 5, 10)
"""Hues of the kinds of layers, none near the colour of expired slots."""
DIM: Final = 128
"""Offset from a paint to its grey, for cells of requests other than the followed one."""
KEPT: Final = KIND + len(_KIND_HUES)
"""First paint of stored copies in host memory: darker hues of their requests."""
_KEPT_SHARE: Final = 0.45
"""Share of the background in a stored copy, so that copies in transfer are conspicuous."""
NUM_PAINTS: Final = KEPT + NUM_HUES
assert NUM_PAINTS <= DIM

_HELD_BY_NONE: Final = frozenset((SlotState.FREE, SlotState.CACHED, SlotState.EXTERNAL, EMPTY, *UnitChange))
"""Paints without a grey: units without a holder, and recent changes."""
_UNWRITTEN: Final = frozenset((SlotState.RESERVED, SlotState.INTERNAL, SlotState.PADDING, SlotState.EXPIRED))
"""Paints without live tokens: the darkest grey in shade."""
_DARKEST_SHADE: Final = 0.27
_SHADES: Final = 0.29
"""Shares of black or white in the greys: of unwritten slots, and the most that written slots add."""

_IMPORTANT: Final = (SlotState.INTERNAL, SlotState.PADDING, SHARED, *UnitChange)
"""Paints that are seen in a cell of many units even if a single unit has them."""


def importance() -> list[int]:
    """Return the weight of a unit of each paint beside the most frequent paint of its cell."""
    weights = [4] * NUM_PAINTS
    for paint in (SlotState.TOKEN, *range(OWNER, AGE), *range(KIND, KEPT)):
        weights[paint] = 16  # written slots weigh more than reserved ones
    for paint in _IMPORTANT:
        weights[paint] = 1 << 20
    weights[SlotState.FREE] = 1
    return weights


def hue_of(request: int) -> int:
    """Return the number of the hue of a request, by its row in the recording: neighbours in time differ most."""
    return request % NUM_HUES


def paint_colors(palette: Palette) -> tuple[str, ...]:
    """Return the colour of every paint, with those in shade from `DIM` on."""
    states = tuple(palette.states[state] for state in SlotState)
    return _colors(
        states,
        palette.hues,
        palette.changes,
        palette.shared,
        palette.shared_by_two,
        palette.aged,
        palette.cursor,
        palette.void,
    )


@lru_cache(maxsize=8)  # called for every sample; constant until the theme changes
def _colors(
    states: tuple[str, ...],
    hues: tuple[str, ...],
    changes: tuple[str, ...],
    shared: str,
    shared_by_two: str,
    aged: str,
    cursor: str,
    void: str,
) -> tuple[str, ...]:
    colors = [void] * DIM
    colors[: len(SlotState)] = states
    colors[CURSOR], colors[SHARED] = cursor, shared
    colors[UnitChange.TAKEN : UnitChange.TAKEN + len(UnitChange)] = changes
    colors[OWNER : OWNER + NUM_HUES] = hues
    bright, steps = states[SlotState.TOKEN], len(HOLDER_STEPS)
    colors[AGE : AGE + AGES] = [mixed(aged, bright, level / (AGES - 1)) for level in range(AGES)]
    colors[HOLDERS] = mixed(bright, void, 0.6)
    colors[HOLDERS + 1 : HOLDERS + steps + 1] = [
        mixed(shared_by_two, shared, (level - 1) / (steps - 1)) for level in range(1, steps + 1)
    ]
    for number, hue in enumerate(_KIND_HUES):
        colors[KIND + number] = hues[hue]
    colors[KEPT : KEPT + NUM_HUES] = [mixed(hue, void, _KEPT_SHARE) for hue in hues]
    return (*colors, *(_shade(paint, color, void) for paint, color in enumerate(colors)))


def _shade(paint: int, color: str, void: str) -> str:
    """Return the grey of `paint` in shade, so that no meaning of a colour is left in it."""
    if paint in _HELD_BY_NONE:
        return color
    written = 0.0 if paint in _UNWRITTEN else luma(color) / 255
    ink = "#ffffff" if luma(void) < 128 else "#000000"
    return mixed(void, ink, _DARKEST_SHADE + _SHADES * written)


def paint_glyphs(symbols: Symbols) -> str:
    """Return a character for every paint, for terminals without colours."""
    glyphs = [" "] * NUM_PAINTS
    glyphs[: len(SlotState)] = symbols.states
    glyphs[CURSOR], glyphs[SHARED] = "_", "&"
    for change, glyph in zip(UnitChange, "+-=!", strict=True):
        glyphs[change] = glyph
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:NUM_HUES]
    glyphs[OWNER : OWNER + NUM_HUES] = letters
    glyphs[AGE : AGE + AGES] = "12345678"
    glyphs[HOLDERS : HOLDERS + len(HOLDER_STEPS) + 1] = "12489+"
    glyphs[KIND:KEPT] = "FWVSTX"
    glyphs[KEPT : KEPT + NUM_HUES] = letters
    return "".join(glyphs)
