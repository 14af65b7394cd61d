"""The hosts of the machines that recordings come from, beside those that the profiles were fitted on.

Machines with one and the same GPU differ in little but their hosts. A profile keeps the pace of the two machines that
it was fitted on, which are the fastest; on a machine of which nothing is known, its host is taken from the middle.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

HOSTS: Mapping[str, float] = {
    "earlier": 0.96,
    "first": 0.99,
    "another": 1.19,
    "5b3fd3e7": 1.31,
    "fd476048": 1.31,
    "later": 1.34,
    "a350a717": 1.52,
    "d38ed9e7": 1.56,
}
"""Multiples of the time that the profiles' hosts take, by machine as recordings name it: the geometric mean over its
models and engines. `benchmarks/accuracy.py` prints them."""


def middle_host(*, without: str | None = None) -> float:
    """How many times as long as a profile's the host in the middle of all machines takes; one may be left out."""
    return median(pace for machine, pace in HOSTS.items() if machine != without)


def host_words() -> str:
    """What the middle is of, as a clause of a label."""
    span = f"{min(HOSTS.values()):.2f} to {max(HOSTS.values()):.2f}"
    return f"{middle_host():.2f} times the host time ({len(HOSTS)} machines: {span})"
