"""The slots of units by state, from what stands in the units: at one frame, or at many at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.memory.waste import NUM_STATES, SlotState, split_extent
from kvsim.replay.unfolding import NO_OWNER

if TYPE_CHECKING:
    from kvsim.recording.tables import IntArray

Numbers = npt.NDArray[np.int64]


class Seen(NamedTuple):
    """What stands in some units, at one frame or several; all arrays have one shape."""

    owner: IntArray
    """The row of the request that holds the unit; `NO_OWNER` where it is free."""
    position: IntArray
    """The unit's place in the table of its owner."""
    is_shared: npt.NDArray[np.bool_]
    """Whether several requests hold it."""
    is_cached: npt.NDArray[np.bool_]
    """Whether it keeps a prefix, being free."""
    computed: Numbers
    """Tokens that the owner has computed; anything where there is none."""


def slots_of_units(seen: Seen, *, unit_tokens: int, pad: Numbers, full: Numbers, requested: Numbers) -> Numbers:
    """The slots of each unit by state: the shape of `seen` and a last axis of eight, which add up to `unit_tokens`.

    Args:
        seen: what stands in the units.
        unit_tokens: slots of a unit.
        pad: slots of padding in front of the tokens of each request, by its row.
        full: place behind the last live token of each request, by its row.
        requested: slots that were asked for each request, by its row.
    """
    slots = np.zeros((*seen.owner.shape, NUM_STATES), np.int64)
    slots[..., SlotState.FREE] = np.where(seen.is_cached, 0, unit_tokens)
    slots[..., SlotState.CACHED] = np.where(seen.is_cached, unit_tokens, 0)
    held = seen.owner != NO_OWNER
    requests, begin = seen.owner[held].astype(np.int64), seen.position[held].astype(np.int64) * unit_tokens
    end = begin + unit_tokens
    slots[held] = split_extent(
        begin,
        end,
        pad=pad[requests],
        full=full[requests],
        # Only full units are ever shared, whichever request counts as their owner.
        computed=np.where(seen.is_shared[held], end, seen.computed[held]),
        requested=requested[requests],
    )
    return slots
