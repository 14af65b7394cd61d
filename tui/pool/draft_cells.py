"""Strip of the last slots of one request, to show speculative decoding: known tokens, drafts, and lookahead slots."""

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
"""Paint of a slot whose token is computed by a step that has not ended."""
TAKEN_BACK: Final = int(UnitChange.EVICTED)
"""Paint of a slot whose draft was wrong: this step or a later one computes it again."""
LOOKAHEAD: Final = int(SlotState.RESERVED)
"""Paint of a slot that the request holds for later tokens."""

LEGEND: Final = ((KNOWN, "known"), (UNDER_WAY, "under way"), (TAKEN_BACK, "wrong draft, written again"),
                 (LOOKAHEAD, "lookahead"))  # fmt: skip
"""Paints, and their meanings."""


class DraftSlots(NamedTuple):
    """Numbers of slots of one request after a step was scheduled. The first three follow each other in this order."""

    request: int
    known: int
    """Number of slots of known tokens."""
    under_way: int
    """Number of slots of tokens that steps under way compute: outputs and drafts."""
    lookahead: int
    """Number of further slots in the blocks that the request holds."""
    rewritten_from: int
    """First slot with a rejected draft."""
    taken_back: int
    """Number of slots with rejected drafts. The step writes these again, as far as its tokens reach."""


def slot_keys(slots: DraftSlots, width: int, *, half_blocks: bool) -> KeyArray:
    """Return the keys of one line of `width` characters, one for each of the request's last slots."""
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
