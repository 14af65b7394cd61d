"""Pack lists of unit addresses into short JSON. In `[17, [1000, 1900], 5]`, a pair is all addresses from first to last.

A free queue has tens of thousands of units. Most are still in their initial order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.recording.model import MAX_UNITS
from kvsim.recording.order import expanded
from kvsim.recording.tables import IntArray

_SHORTEST_RUN = 3

Packed = list[int | list[int]]


def pack(units: IntArray) -> Packed:
    """Return the addresses `units` in order. Three or more in steps of one become a pair of the first and last."""
    step = np.diff(units)
    goes_on = np.abs(step) == 1
    breaks = ~goes_on
    breaks[1:] |= goes_on[1:] & goes_on[:-1] & (step[1:] != step[:-1])  # ascending units turn to descending ones
    packed: Packed = []
    begin = 0
    for end in [*(np.flatnonzero(breaks) + 1).tolist(), len(units)]:
        run = units[begin:end].tolist()
        if len(run) >= _SHORTEST_RUN:
            packed.append([run[0], run[-1]])
        else:
            packed += run
        begin = end
    return packed


def unpack(value: object) -> IntArray:
    """Return the unit addresses in `value`, a list that may have pairs, as `pack` returns.

    Raises:
        ValueError: `value` is not such a list, or has more units than a pool can have.
    """
    # A pair is [first, last]; a single unit is both its first and its last.
    items: list[Any] = value if isinstance(value, list) else [value]
    first = _units([item[0] if _is_pair(item) else item for item in items])
    last = _units([item[1] if _is_pair(item) else item for item in items])
    lengths = np.abs(last - first) + 1
    if lengths.sum(dtype=np.float64) > MAX_UNITS:
        raise ValueError(f"a pool has at most {MAX_UNITS:,} units")
    run, within = expanded(lengths)
    units: IntArray = first[run] + np.sign(last - first)[run] * within
    return units


def _is_pair(item: object) -> bool:
    return isinstance(item, list) and len(item) == 2


def _units(items: list[Any]) -> IntArray:
    if set(map(type, items)) <= {int} and min(items, default=0) >= 0 and max(items, default=0) < 1 << 62:
        return np.array(items, np.int64)
    wrong = next(item for item in items if type(item) is not int or not 0 <= item < 1 << 62)
    raise ValueError(f"{wrong!r} is neither a unit nor a pair of units")
