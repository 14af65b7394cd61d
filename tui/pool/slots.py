"""Paints of single slots, in the order of the states inside a unit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.memory.waste import NUM_STATES, SlotState
from kvsim.replay.unfolding import NO_OWNER

from .paint import ColorBy
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
"""The order of the states inside one unit, by address."""
assert len(_DRAWING_ORDER) == NUM_STATES


def paints_of_slots(
    replay: Replay, units: IndexArray, written: PaintArray, color_by: ColorBy, lit: MaskArray
) -> PaintArray:
    """Return the paint of every slot of `units`, shape (units, slots of a unit); in shade in units that are not `lit`.

    `written` is the paint of what is written in each unit.
    """
    counts = replay.slots(units)[:, _DRAWING_ORDER]
    paints = _paints_of_states(replay, units, written, color_by)[:, _DRAWING_ORDER]
    paints = dimmed(paints, np.broadcast_to(lit[:, None], paints.shape))
    slots: PaintArray = paints.ravel().repeat(counts.ravel()).reshape(len(units), replay.unit_slots)
    return slots


def _paints_of_states(replay: Replay, units: IndexArray, written: PaintArray, color_by: ColorBy) -> PaintArray:
    """Return the paint that each state has inside each of `units`: shape (units, states)."""
    paints = np.broadcast_to(np.arange(NUM_STATES, dtype=np.uint8), (len(units), NUM_STATES)).copy()
    owner = replay.owner[units]
    held = owner != NO_OWNER
    if color_by is ColorBy.STATE:
        return paints
    paints[held, SlotState.TOKEN] = written[held]
    return paints
