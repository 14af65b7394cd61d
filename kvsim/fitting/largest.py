"""Search for the largest load that fits a server, by bisection."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvsim.fitting.goal import TOO_SHORT
from kvsim.fitting.outcome import evaluate

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.fitting.goal import Goal
    from kvsim.fitting.offered_load import Load
    from kvsim.fitting.searched_server import SearchedServer
    from kvsim.simulation import EngineName

_CLOSE = 0.04
"""Relative precision with which the largest load is searched for."""
_MOST_TIMES = 16
"""Largest load tried, as a multiple of the requested one."""


class Largest(NamedTuple):
    """Largest load that fits a server: a number of users, or a factor on the arrival rate of an open loop."""

    size: float | None
    """Number of users, or factor on the arrival rate.

    Infinity if every load that was tried fits. None if not even one user, or a sixteenth of the arrivals, fits.
    """
    is_lower_bound: bool
    """True if the next larger load that was tried misses no condition, but its rate has not settled."""


def largest_load(server: SearchedServer, load: Load, goal: Goal, *, engine: EngineName = "auto") -> Largest:
    """Return the largest load that fits `server`. A load whose output rate has not settled does not fit."""
    unsettled = set[float]()

    def fits(size: float) -> bool:
        misses = goal.misses(evaluate(server, scaled(load, size), engine=engine))
        if TOO_SHORT in misses:
            unsettled.add(size)
        return not misses

    size, above = _between(fits, load)
    return Largest(size, above in unsettled)


def _between(fits: Callable[[float], bool], load: Load) -> tuple[float | None, float]:
    """Return the largest size that fits (see `Largest.size`), and the next larger size that was tried. If every size
    that was tried fits, the second one was not tried.
    """
    start = float(load.users or 1)

    if fits(start):
        low, high = start, 2 * start
        while fits(high):
            low, high = high, 2 * high
            if high > _MOST_TIMES * start:
                return float("inf"), high
    else:
        high, low = start, start / 2
        while not fits(low):
            high, low = low, low / 2
            if low < (1 if load.users else 1 / _MOST_TIMES):
                return None, high
    while high - low > max(_CLOSE * high, 1.0 if load.users else 0.0):
        middle = round((low + high) / 2) if load.users else (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low, high


def scaled(load: Load, size: float) -> Load:
    """Return the load with `size` users, or with the arrival rate multiplied by `size`."""
    return load.of_users(max(round(size), 1)) if load.users else load.at_rate(size)
