"""Where the memory went on average: time-weighted shares of the eight states, against two denominators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.memory.waste import HELD, NUM_STATES, SlotState

if TYPE_CHECKING:
    from kvsim.metrics.waste import Waste
    from kvsim.recording.tables import FloatArray

PAPER_CLASSES = {
    "token": (SlotState.TOKEN,),
    "reservation": (SlotState.RESERVED,),
    "internal": (SlotState.INTERNAL, SlotState.PADDING, SlotState.EXPIRED),
    "external and others": (SlotState.EXTERNAL, SlotState.CACHED, SlotState.FREE),
}
"""The four classes of Figure 2 of the PagedAttention paper (SOSP 2023). It has no static batch and no window; padding
and what has expired is memory that a live sequence holds without a token that it needs, hence internal."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WasteShares:
    """Time-weighted mean shares in percent, in the order of `SlotState`; NaN where the denominator is nothing."""

    pool_percent: FloatArray
    """Percent of the whole pool in each state: float64[8], adding up to 100."""
    allocated_percent: FloatArray
    """Percent of the slots that live sequences asked for and hold, in each state: float64[8], adding up to 100."""

    @property
    def paper_percent(self) -> dict[str, float]:
        """Shares of the pool by `PAPER_CLASSES`, adding up to 100."""
        return {name: float(self.pool_percent[list(states)].sum()) for name, states in PAPER_CLASSES.items()}

    def as_dict(self) -> dict[str, dict[str, float]]:
        """Both denominators by the states' names, and the paper's classes."""
        names = [state.name.lower() for state in SlotState]
        return {
            "pool_percent": dict(zip(names, self.pool_percent.tolist(), strict=True)),
            "allocated_percent": dict(zip(names, self.allocated_percent.tolist(), strict=True)),
            "paper_percent": self.paper_percent,
        }


UNKNOWN_SHARES = WasteShares(pool_percent=np.full(NUM_STATES, np.nan), allocated_percent=np.full(NUM_STATES, np.nan))
"""The shares of a recording in which nothing happened."""


def waste_shares(waste: Waste) -> WasteShares:
    """The mean share of each state, every frame weighted with how long it lasted."""
    return shares_of(waste.mean_slots(), waste.capacity)


def shares_of(mean_slots: FloatArray, capacity: int) -> WasteShares:
    """The share of each state in a pool of `capacity` slots, given its slots on average."""
    allocated = np.zeros(NUM_STATES)
    allocated[list(HELD)] = mean_slots[list(HELD)]
    total = allocated.sum()
    return WasteShares(
        pool_percent=100 * mean_slots / capacity,
        allocated_percent=100 * allocated / total if total else UNKNOWN_SHARES.allocated_percent,
    )


def whole_percents(*parts: float) -> list[int]:
    """Shares of parts of one thing in whole percents that add up to 100: those rounded down most get what is left."""
    percents = 100 * np.array(parts) / (sum(parts) or 1.0)
    whole = np.floor(percents).astype(int)
    missing = round(percents.sum()) - int(whole.sum())
    whole[np.argsort(whole - percents, kind="stable")[:missing]] += 1
    return [int(part) for part in whole]
