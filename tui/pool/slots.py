"""Paints of single slots, for the finest level of detail. The slots of a unit are ordered by their states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.memory.waste import NUM_STATES, SlotState
from kvsim.replay.unfolding import NO_OWNER

from .paint import NEXT, ColorBy
from .picture import dimmed

if TYPE_CHECKING:
    from kvsim.replay.replay import Replay

    from .array_types import IndexArray, MaskArray, PaintArray

_DRAWING_ORDER = (
    SlotState.PADDING,
    SlotState.EXPIRED,
    SlotState.TOKEN,
    SlotState.RESERVED,
    SlotState.INTERNAL,
    SlotState.EXTERNAL,
    SlotState.CACHED,
    SlotState.FREE,
)
assert len(_DRAWING_ORDER) == NUM_STATES


def paints_of_slots(
    replay: Replay, units: IndexArray, written: PaintArray, color_by: ColorBy, lit: MaskArray
) -> PaintArray:
    """Return the paint of every slot of `units`: shape (units, slots of a unit).

    `written` is the paint of the written slots of each unit. Units that are not `lit` are grey.
    """
    counts = replay.slots(units)[:, _DRAWING_ORDER]
    paints = _paints_of_states(replay, units, written, color_by)[:, _DRAWING_ORDER]
    paints = dimmed(paints, np.broadcast_to(lit[:, None], paints.shape))
    slots: PaintArray = paints.ravel().repeat(counts.ravel()).reshape(len(units), replay.unit_slots)
    return slots


def _paints_of_states(replay: Replay, units: IndexArray, written: PaintArray, color_by: ColorBy) -> PaintArray:
    """Return the paint of the slots in each state, for each of `units`: shape (units, states).

    `written` has the paint of each unit's written slots.
    """
    paints = np.broadcast_to(np.arange(NUM_STATES, dtype=np.uint8), (len(units), NUM_STATES)).copy()
    owner = replay.owner[units]
    held = owner != NO_OWNER
    if color_by is ColorBy.STATE:
        return paints
    paints[held, SlotState.TOKEN] = written[held]
    is_next = written == NEXT
    paints[is_next, SlotState.FREE] = paints[is_next, SlotState.CACHED] = NEXT
    return paints
