"""Strip of the last slots of one request: known tokens, those under way, those taken back, and lookahead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kvsim.memory.waste import SlotState

from .brush import GLYPH, half_keys, keys_of
from .paint import EMPTY, UnitChange

if TYPE_CHECKING:
    from .array_types import KeyArray

KNOWN: Final = int(SlotState.TOKEN)
UNDER_WAY: Final = int(UnitChange.TAKEN)
"""Paint of a slot whose token a step under way computes."""
TAKEN_BACK: Final = int(UnitChange.EVICTED)
"""Paint of a slot whose draft was wrong: the step computes it again, or a later one will."""
LOOKAHEAD: Final = int(SlotState.RESERVED)
"""Paint of a slot that is held for later tokens."""

LEGEND: Final = ((KNOWN, "known"), (UNDER_WAY, "under way"), (TAKEN_BACK, "wrong draft, written again"),
                 (LOOKAHEAD, "lookahead"))  # fmt: skip
"""Paints, and their meanings."""


class DraftSlots(NamedTuple):
    """Slots of one request after a step was scheduled, from the first on."""

    request: int
    known: int
    """Slots of tokens that are known."""
    under_way: int
    """Slots behind these, of tokens that steps under way compute: outputs and drafts."""
    lookahead: int
    """Slots behind all of these, in blocks that the request holds."""
    rewritten_from: int
    """First slot of the drafts that were taken back."""
    taken_back: int
    """Slots of drafts that turned out wrong: the step writes them again, as far as its tokens reach."""


def slot_keys(slots: DraftSlots, width: int, *, half_blocks: bool) -> KeyArray:
    """Return the keys of one line of `width` characters, one for each of the last slots of the request."""
    end = slots.known + slots.under_way + slots.lookahead
    paints = np.full(end, KNOWN, np.uint8)
    paints[slots.known :] = UNDER_WAY
    paints[slots.known + slots.under_way :] = LOOKAHEAD
    paints[slots.rewritten_from : slots.rewritten_from + slots.taken_back] = TAKEN_BACK
    line = np.full(width, EMPTY, np.uint8)
    shown = paints[-width:]
    line[: len(shown)] = shown
    keys: KeyArray = half_keys(np.stack((line, line)))[0] if half_blocks else keys_of(GLYPH, line[None], EMPTY)[0]
    return keys
