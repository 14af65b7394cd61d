"""Paints: the numbers that the arrays of a picture contain, and the colour or character of each number.

A paint stands for what a cell shows, such as a state or the hue of an owner. The user chooses what colour means: owner,
state, kind of layers, number of holders, or age.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.display.palette import NUM_HUES, luma, mixed
from kvsim.memory.waste import NUM_STATES, SlotState

if TYPE_CHECKING:
    from ..look.states import Palette, Symbols


class ColorBy(Enum):
    """Meanings of colour. The values are shown to users."""

    OWNER = "owner"
    STATE = "state"
    LAYERS = "layers"
    SHARING = "sharing"
    AGE = "age"


class UnitChange(IntEnum):
    """Paints of units that have just changed."""

    TAKEN = 11
    FREED = 12
    HIT = 13
    EVICTED = 14


EMPTY: Final = NUM_STATES
"""Paint of a cell without units. Smaller numbers are the states of `SlotState`."""
LOADING_HUED: Final = 9
"""Paint of a host block that is being copied back to the GPU, for maps in colours.

It is not green, which is the colour of cached memory.
"""
SHARED: Final = 10
"""Paint of written slots that several requests hold."""
OWNER: Final = 16
"""First of the paints of written slots by owner, one per hue."""
AGES: Final = 8
"""Number of paints for the age of a unit."""
AGE: Final = OWNER + NUM_HUES
"""First of the paints for ages; the first is for the units held longest, the last for the newest."""
HOLDERS: Final = AGE + AGES
"""First of the paints for numbers of holders, see `HOLDER_STEPS`."""
HOLDER_STEPS: Final = (1, 2, 4, 8, 32)
"""Largest number of holders for each paint from `HOLDERS` on. One more paint is for larger numbers."""
KIND: Final = HOLDERS + len(HOLDER_STEPS) + 1
"""First of the paints for kinds of layers: full attention, two for windows, two for states, one for all others."""
_NUM_KINDS: Final = 6
DIM: Final = 128
"""Offset from a paint to its grey version, for other requests than the one that alone is in colour."""
KEPT: Final = KIND + _NUM_KINDS
"""First of the paints of host blocks during a store, one per hue, darker than the hues of owners."""
_KEPT_SHARE: Final = 0.35
"""Share of the background in the colours from `KEPT` on."""
FOLLOWED: Final = KEPT + NUM_HUES
"""Paint of the followed request if the recording has more requests than hues."""
FOLLOWED_SHARED: Final = FOLLOWED + 1
"""Paint of units that the followed request shares with others, if `FOLLOWED` is in use."""
PARTLY: Final = FOLLOWED + 2
"""Paint of a partly written unit, in cells that show a unit in one colour."""
NEXT: Final = FOLLOWED + 3
"""Paint of the free units that will be allocated next."""
NUM_PAINTS: Final = FOLLOWED + 4
assert NUM_PAINTS <= DIM

_NEVER_GREY: Final = frozenset((SlotState.FREE, SlotState.CACHED, SlotState.EXTERNAL, EMPTY, *UnitChange))
"""Paints that stay as they are while other requests are grey: of units that no request holds, and of recent changes."""
_UNWRITTEN: Final = frozenset((SlotState.RESERVED, SlotState.INTERNAL, SlotState.PADDING, SlotState.EXPIRED))
"""Paints of held slots without live tokens, which get the darker grey."""
_SHADES_ON_DARK: Final = (0.34, 0.56)
_SHADES_ON_LIGHT: Final = (0.28, 0.48)
"""Shares of black in the two greys of light themes: of unwritten and of written slots.

`_SHADES_ON_DARK` has the shares of white in the greys of dark themes.
"""

_IMPORTANT: Final = (SlotState.INTERNAL, SlotState.PADDING, SHARED, *UnitChange)
"""Paints that a cell of many units shows even if a single unit has them."""


WRITTEN: Final = np.array((SlotState.TOKEN, *range(OWNER, AGE), *range(KIND, KEPT), FOLLOWED, PARTLY))
"""Paints of slots in which a token is written."""


ALWAYS_SHOWN_WEIGHT: Final = 16
"""Paints of at least this weight are shown in a cell even if their share of it is under half an eighth."""


def importance() -> list[int]:
    """Return the weight of each paint, in the order of their numbers.

    The second paint of a cell is the one with the largest product of its weight and its number of units.
    """
    weights = [4] * NUM_PAINTS
    for paint in WRITTEN.tolist():
        weights[paint] = ALWAYS_SHOWN_WEIGHT  # written slots weigh more than reserved ones
    for paint in _IMPORTANT:
        weights[paint] = 1 << 20
    weights[PARTLY] = ALWAYS_SHOWN_WEIGHT // 2  # in a cell of many units, a single one would look like many
    weights[FOLLOWED] = weights[FOLLOWED_SHARED] = 1 << 25
    weights[NEXT] = 1 << 24
    weights[SlotState.FREE] = 1
    return weights


def hue_of(request: int) -> int:
    """Return the index of a request's hue, 0 to `NUM_HUES` - 1. `request` is its row in the recording.

    Successive requests have very different hues.
    """
    return request % NUM_HUES


@lru_cache(maxsize=8)  # called for every sample of a legend; the result changes only with the theme
def paint_colors(palette: Palette) -> tuple[str, ...]:
    """Return the colour of every paint, then from index `DIM` on the greys of all paints."""
    void, bright, steps = palette.void, palette.states[SlotState.TOKEN], len(HOLDER_STEPS)
    colors = [void] * DIM
    colors[: len(SlotState)] = [palette.states[state] for state in SlotState]
    colors[LOADING_HUED], colors[SHARED] = palette.cursor, palette.shared
    colors[UnitChange.TAKEN : UnitChange.TAKEN + len(UnitChange)] = palette.changes
    colors[OWNER : OWNER + NUM_HUES] = palette.hues
    colors[AGE : AGE + AGES] = [mixed(palette.aged, bright, level / (AGES - 1)) for level in range(AGES)]
    colors[HOLDERS] = mixed(bright, void, 0.6)
    colors[HOLDERS + 1 : HOLDERS + steps + 1] = [
        mixed(palette.shared_by_two, palette.shared, (level - 1) / (steps - 1)) for level in range(1, steps + 1)
    ]
    colors[KIND : KIND + _NUM_KINDS] = palette.kinds
    colors[KEPT : KEPT + NUM_HUES] = [mixed(hue, void, _KEPT_SHARE) for hue in palette.hues]
    colors[FOLLOWED], colors[FOLLOWED_SHARED] = palette.followed, mixed(palette.followed, "#ffffff", 0.45)
    colors[PARTLY], colors[NEXT] = mixed(bright, palette.states[SlotState.RESERVED], 0.5), palette.next_free
    return (*colors, *(_shade(paint, color, void) for paint, color in enumerate(colors)))


def _shade(paint: int, color: str, void: str) -> str:
    """Return the grey version of `paint`, which tells only whether slots are written."""
    if paint in _NEVER_GREY:
        return color
    ink, shades = ("#ffffff", _SHADES_ON_DARK) if luma(void) < 128 else ("#000000", _SHADES_ON_LIGHT)
    return mixed(void, ink, shades[paint not in _UNWRITTEN])


def paint_glyphs(symbols: Symbols) -> str:
    """Return a character for every paint, for terminals without colours."""
    glyphs = [" "] * NUM_PAINTS
    glyphs[: len(SlotState)] = symbols.states
    glyphs[LOADING_HUED], glyphs[SHARED] = "_", "&"
    for change, glyph in zip(UnitChange, "+-=!", strict=True):
        glyphs[change] = glyph
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:NUM_HUES]
    glyphs[OWNER : OWNER + NUM_HUES] = letters
    glyphs[AGE : AGE + AGES] = "12345678"
    glyphs[HOLDERS : HOLDERS + len(HOLDER_STEPS) + 1] = "12489+"
    glyphs[KIND:KEPT] = "FWVSTX"
    glyphs[KEPT : KEPT + NUM_HUES] = letters
    glyphs[FOLLOWED:NUM_PAINTS] = "@%hn"
    return "".join(glyphs)
