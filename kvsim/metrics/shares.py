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
"""Four classes of Figure 2 of the PagedAttention paper (SOSP 2023).

The paper has neither static batches nor windows. Padding and expired tokens are memory that a live sequence holds
without needing it, so they count as internal.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WasteShares:
    """Time-weighted mean shares in percent, in the order of `SlotState`; NaN if the denominator is 0."""

    pool_percent: FloatArray
    """Percent of the whole pool in each state: float64[8], sum 100."""
    allocated_percent: FloatArray
    """Percent of the slots that live sequences requested and hold, in each state: float64[8], sum 100."""

    @property
    def paper_percent(self) -> dict[str, float]:
        """Shares of the pool by `PAPER_CLASSES`, sum 100."""
        return {name: float(self.pool_percent[list(states)].sum()) for name, states in PAPER_CLASSES.items()}

    def as_dict(self) -> dict[str, dict[str, float]]:
        """Return both kinds of shares by state name, and the paper's classes."""
        names = [state.name.lower() for state in SlotState]
        return {
            "pool_percent": dict(zip(names, self.pool_percent.tolist(), strict=True)),
            "allocated_percent": dict(zip(names, self.allocated_percent.tolist(), strict=True)),
            "paper_percent": self.paper_percent,
        }


UNKNOWN_SHARES = WasteShares(pool_percent=np.full(NUM_STATES, np.nan), allocated_percent=np.full(NUM_STATES, np.nan))
"""Shares of a recording without events."""


def waste_shares(waste: Waste) -> WasteShares:
    """Return the time-weighted mean share of each state."""
    return shares_of(waste.mean_slots(), waste.capacity)


def shares_of(mean_slots: FloatArray, capacity: int) -> WasteShares:
    """Return the share of each state in a pool of `capacity` slots, from the mean slots."""
    allocated = np.zeros(NUM_STATES)
    allocated[list(HELD)] = mean_slots[list(HELD)]
    total = allocated.sum()
    return WasteShares(
        pool_percent=100 * mean_slots / capacity,
        allocated_percent=100 * allocated / total if total else UNKNOWN_SHARES.allocated_percent,
    )


def whole_percents(*parts: float) -> list[int]:
    """Round shares to whole percents that add up to 100. Parts that lose most by rounding down get the missing
    percents.
    """
    percents = 100 * np.array(parts) / (sum(parts) or 1.0)
    whole = np.floor(percents).astype(int)
    missing = round(percents.sum()) - int(whole.sum())
    whole[np.argsort(whole - percents, kind="stable")[:missing]] += 1
    return [int(part) for part in whole]
