"""Time-weighted shares of the eight slot states: of the whole pool, and of the memory that requests hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.memory.waste import HELD, NUM_STATES, SlotState

if TYPE_CHECKING:
    from kvsim.metrics.slot_account import Waste
    from kvsim.recording.tables import FloatArray

PAPER_CLASSES = {
    "token": (SlotState.TOKEN,),
    "reservation": (SlotState.RESERVED,),
    "internal": (SlotState.INTERNAL, SlotState.PADDING, SlotState.EXPIRED),
    "external and others": (SlotState.EXTERNAL, SlotState.CACHED, SlotState.FREE),
}
"""Slot states by the four classes in Figure 2 of the PagedAttention paper (SOSP 2023).

The paper has neither static batches nor windows. Padding and expired tokens are memory that a live sequence holds
without needing it, so they count as internal.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WasteShares:
    """Shares of the slot states in percent, mean over time, in the order of `SlotState`.

    All are NaN if there are no slots to divide by.
    """

    pool_percent: FloatArray
    """Percentage of the pool's slots in each state: float64[8], sum 100."""
    allocated_percent: FloatArray
    """Percentage in each state of the slots that live sequences hold: float64[8], sum 100; 0 in states of free slots.

    All are NaN if no slots are held. Slots that rounding added to allocations do not count.
    """

    @property
    def paper_percent(self) -> dict[str, float]:
        """Percentage of the pool's slots in each of `PAPER_CLASSES`, sum 100."""
        return {name: float(self.pool_percent[list(states)].sum()) for name, states in PAPER_CLASSES.items()}

    def as_dict(self) -> dict[str, dict[str, float]]:
        """Return both kinds of shares by the name of the state, and those of the paper's classes."""
        names = [state.name.lower() for state in SlotState]
        return {
            "pool_percent": dict(zip(names, self.pool_percent.tolist(), strict=True)),
            "allocated_percent": dict(zip(names, self.allocated_percent.tolist(), strict=True)),
            "paper_percent": self.paper_percent,
        }


UNKNOWN_SHARES = WasteShares(pool_percent=np.full(NUM_STATES, np.nan), allocated_percent=np.full(NUM_STATES, np.nan))
"""Shares if there are no slots to count: NaN in every state."""


def waste_shares(waste: Waste) -> WasteShares:
    """Return the shares of the states, averaged over the time of `waste`."""
    return shares_of(waste.mean_slots(), waste.capacity)


def shares_of(mean_slots: FloatArray, capacity: int) -> WasteShares:
    """Return the shares of the states in a pool of `capacity` slots, from the mean number of slots in each state."""
    allocated = np.zeros(NUM_STATES)
    allocated[list(HELD)] = mean_slots[list(HELD)]
    total = allocated.sum()
    return WasteShares(
        pool_percent=100 * mean_slots / capacity,
        allocated_percent=100 * allocated / total if total else UNKNOWN_SHARES.allocated_percent,
    )


def whole_percents(*parts: float) -> list[int]:
    """Return shares as whole percentages that add up to 100; all are 0 if the shares are.

    All are rounded down, and the missing percents go to the shares that lost most.
    """
    percents = 100 * np.array(parts) / (sum(parts) or 1.0)
    whole = np.floor(percents).astype(int)
    missing = round(percents.sum()) - int(whole.sum())
    whole[np.argsort(whole - percents, kind="stable")[:missing]] += 1
    return [int(part) for part in whole]
