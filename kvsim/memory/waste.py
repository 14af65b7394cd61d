"""Split the slots of a pool into eight states, for every policy.

One slot holds the keys and values of one token in all layers. If layers of several kinds share the pool, a slot is a
byte. An *extent* is the memory of one sequence, written from its beginning::

    0        pad                     computed            full          requested    length
    | padding | token token token ... | reserved ...       | internal ... | external  |

`pad` slots come from padding a batch to a rectangle. `full` is the end of the sequence's last live token, `requested`
the requested length, and `length` the length after rounding by the allocator. A sequence that has ended, but is written
until its batch ends, has `computed` beyond `full`: all slots of its row are padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.errors import IntegrityError

IntArray = npt.NDArray[np.integer[Any]]


class SlotState(IntEnum):
    """State of a slot of the pool; also the column order of every breakdown."""

    TOKEN = 0
    """KV of a live token; shared slots count once."""
    RESERVED = 1
    """Allocated to a live sequence and not written yet, but written before it ends."""
    INTERNAL = 2
    """Allocated to a live sequence and never written."""
    PADDING = 3
    """Written or held only because the batch is a rectangle."""
    EXPIRED = 4
    """Held, with the KV of a token that no later step reads, because all windows of its block have passed it."""
    CACHED = 5
    """Free, with a cached prefix that can be hit."""
    EXTERNAL = 6
    """Free in pieces too small for the head of the queue, or allocated only by rounding up."""
    FREE = 7
    """Free and usable."""


NUM_STATES = len(SlotState)
HELD = (SlotState.TOKEN, SlotState.RESERVED, SlotState.INTERNAL, SlotState.PADDING, SlotState.EXPIRED)
"""States of slots that a live sequence holds, without the allocator's rounding."""


def split_extent(
    begin: IntArray | int,
    end: IntArray | int,
    *,
    pad: IntArray | int = 0,
    full: IntArray | int,
    computed: IntArray | int,
    requested: IntArray | int,
) -> npt.NDArray[np.int64]:
    """Split the slots [begin, end) of one extent, or of many at once, into the eight states.

    All arguments are slot offsets from the extent's beginning, and are broadcast. The result has their shape and a last
    axis of eight columns, whose sum is `end - begin`.
    """
    computed, full, requested = np.asarray(computed), np.asarray(full), np.asarray(requested)
    full = np.where(computed > full, pad, full)

    def overlap(low: Any, high: Any) -> Any:
        return np.maximum(np.minimum(end, high) - np.maximum(begin, low), 0)

    written_or_full = np.maximum(np.maximum(computed, full), pad)
    token = overlap(pad, np.minimum(computed, full))
    reserved = overlap(np.maximum(computed, pad), np.minimum(full, requested))
    padding = overlap(0, np.minimum(pad, requested)) + overlap(np.maximum(full, pad), np.minimum(computed, requested))
    internal = overlap(written_or_full, requested)
    external = overlap(requested, np.iinfo(np.int64).max)
    nothing = np.zeros_like(token)
    return np.stack(
        np.broadcast_arrays(token, reserved, internal, padding, nothing, nothing, external, nothing), axis=-1
    ).astype(np.int64, copy=False)


class SlotTotals(NamedTuple):
    """Totals over all tables, which determine the eight states; numbers of one instant, or arrays of many."""

    free: Any
    """Slots without a holder."""
    cached: Any
    """Free slots with a cached prefix."""
    unusable: Any
    """Free slots in pieces too small for the head of the queue."""
    rounding: Any
    """Slots allocated beyond the requested ones, over all tables."""
    written: Any
    """Slots with the KV of live tokens, over all tables."""
    useful: Any
    """Slots that are written before their sequence ends, over all tables."""
    padding: Any
    """Slots of padding: pad tokens, and ended rows of a batch."""
    shared: Any
    """Written slots counted more than once, because several tables contain their block."""
    expired: Any
    """Written slots whose tokens no later step reads, each counted once."""

    def states(self, capacity: int) -> npt.NDArray[np.int64]:
        """Return the slots of a pool of `capacity` by state, of shape (8,) or (8, instants), in the order of
        `SlotState`.
        """
        empty = np.asarray(self.free) - self.cached
        unusable = np.minimum(self.unusable, empty)
        slots = np.empty((NUM_STATES, *empty.shape), np.int64)
        slots[SlotState.TOKEN] = self.written - self.shared - self.expired
        slots[SlotState.RESERVED] = self.useful - self.written
        slots[SlotState.INTERNAL] = capacity - self.free + self.shared - self.useful - self.padding - self.rounding
        slots[SlotState.PADDING] = self.padding
        slots[SlotState.EXPIRED] = self.expired
        slots[SlotState.CACHED] = self.cached
        slots[SlotState.EXTERNAL] = self.rounding + unusable
        slots[SlotState.FREE] = empty - unusable
        return slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Slots of a pool at one instant, by state."""

    slots: npt.NDArray[np.int64]
    """Slots of shape (8,), in the order of `SlotState`."""

    def __getitem__(self, state: SlotState) -> int:
        return int(self.slots[state])

    @property
    def capacity(self) -> int:
        """Slots of the pool."""
        return int(self.slots.sum())

    @property
    def allocated(self) -> int:
        """Slots that no other sequence can use at this instant."""
        return self.capacity - self[SlotState.CACHED] - self[SlotState.FREE] - self[SlotState.EXTERNAL]

    def check(self, capacity: int) -> None:
        """Raise an error unless the eight states add up to `capacity`."""
        if self.capacity != capacity or (self.slots < 0).any():
            figures = " + ".join(f"{state.name.lower()} {self[state]}" for state in SlotState)
            raise IntegrityError(f"the pool has {capacity} slots, but {figures} = {self.capacity}.")
