"""Split the slots of a pool into eight states, for every policy.

One slot holds the keys and values of one token in all layers. If layers of several kinds share the pool, a slot is a
byte. An *extent* is the memory of one sequence, written from its beginning. Five offsets, in slots, say where its
states begin and end::

    0         pad                     computed       full           requested    length
    | PADDING | TOKEN TOKEN TOKEN ... | RESERVED ... | INTERNAL ... | EXTERNAL ...|

- `pad`: end of the padding before the sequence, which makes the rows of a batch equally long.
- `computed`: end of the tokens that are computed now.
- `full`: end of the tokens that will be computed when the sequence ends.
- `requested`: end of the slots that the sequence asked for.
- `length`: end of the extent, which the allocator rounded up.

A sequence that has ended may still be written until its whole batch ends. Then `computed` exceeds `full`, and all
written slots of its row are padding.
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
    """State of a slot of the pool. The values are the indices in arrays with a number of slots per state."""

    TOKEN = 0
    """Holds the KV of a token of a live sequence. A slot that sequences share counts once."""
    RESERVED = 1
    """Allocated to a live sequence and empty. The sequence will write it before it ends."""
    INTERNAL = 2
    """Allocated to a live sequence, which will never write it."""
    PADDING = 3
    """Written or held only because all rows of a batch have the same length."""
    EXPIRED = 4
    """Held, with the KV of a token that no later step reads, because all layers' windows have passed it."""
    CACHED = 5
    """Allocatable and in no table. Holds the KV of a cached prefix, which a request can hit."""
    EXTERNAL = 6
    """Lost outside of requests: rounding has added the slot to an allocation, or the slot is free in a piece too small
    for the head of the queue.
    """
    FREE = 7
    """Allocatable, in no table and not cached."""


NUM_STATES = len(SlotState)
HELD = (SlotState.TOKEN, SlotState.RESERVED, SlotState.INTERNAL, SlotState.PADDING, SlotState.EXPIRED)
"""States of slots that live sequences have requested, without `EXTERNAL` ones, which rounding adds."""


def split_extent(
    begin: IntArray | int,
    end: IntArray | int,
    *,
    pad: IntArray | int = 0,
    full: IntArray | int,
    computed: IntArray | int,
    requested: IntArray | int,
) -> npt.NDArray[np.int64]:
    """Split the slots [begin, end) of one extent, or of many extents at once, into the eight states.

    All arguments are offsets in slots from the beginning of an extent (see the module). Arrays are broadcast to a
    common shape. The result has this shape and a last axis with the number of slots in each `SlotState`. These numbers
    add up to `end - begin`.
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
    """Numbers of slots from which `states` computes the eight states: integers, or arrays for several moments."""

    free: Any
    """Number of slots in no table, cached ones included."""
    cached: Any
    """Number of slots in no table that hold a cached prefix."""
    unusable: Any
    """Number of slots in no table that lie in pieces too small for the first request in the queue."""
    rounding: Any
    """Number of slots that rounding added to the requested ones, summed over tables."""
    written: Any
    """Slots with the KV of tokens of running sequences, expired tokens included. A shared slot counts in each table."""
    useful: Any
    """Number of slots that are written, or will be before their sequence ends, summed over tables."""
    padding: Any
    """Number of slots with padding: pad tokens, and the rows of ended sequences in a running batch."""
    shared: Any
    """Number of slots by which `written` is too high, because several tables contain a block."""
    expired: Any
    """Number of written slots whose tokens no later step reads. A shared slot counts once."""

    def states(self, capacity: int) -> npt.NDArray[np.int64]:
        """Return the number of slots in each state, for a pool of `capacity` slots, in the order of `SlotState`. The
        shape is (8,), or (8, moments) if the fields are arrays.
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
    """Number of slots of a pool in each state, at one moment."""

    slots: npt.NDArray[np.int64]
    """Number of slots in each state, in the order of `SlotState`: int64[8]."""

    def __getitem__(self, state: SlotState) -> int:
        return int(self.slots[state])

    @property
    def capacity(self) -> int:
        """Number of slots of the pool."""
        return int(self.slots.sum())

    @property
    def allocated(self) -> int:
        """Number of slots that live sequences have requested. Slots that rounding added do not count."""
        return self.capacity - self[SlotState.CACHED] - self[SlotState.FREE] - self[SlotState.EXTERNAL]

    def check(self, capacity: int) -> None:
        """Raise an `IntegrityError` if a number is negative or the numbers do not add up to `capacity`."""
        if self.capacity != capacity or (self.slots < 0).any():
            figures = " + ".join(f"{state.name.lower()} {self[state]}" for state in SlotState)
            raise IntegrityError(f"the pool has {capacity} slots, but {figures} = {self.capacity}.")
