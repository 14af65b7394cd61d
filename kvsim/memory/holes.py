"""The free slots of one address range, and the ways to choose among them.

Nothing is merged or split here: `contiguous` does that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from itertools import chain, islice
from typing import NamedTuple, Protocol


class Hole(NamedTuple):
    """Free slots next to each other."""

    address: int
    length: int

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.length


class Holes:
    """The free slots of a range, found by address and by length."""

    def __init__(self) -> None:
        self.addresses: list[int] = []
        """Where holes begin, ascending."""
        self.length_at: dict[int, int] = {}
        """Address of a hole -> its length."""
        self.by_length: list[tuple[int, int]] = []
        """(length, address) of every hole, ascending."""

    def end(self, index: int) -> int:
        """The first address behind the hole at `addresses[index]`."""
        return self.addresses[index] + self.length_at[self.addresses[index]]

    def add(self, address: int, length: int) -> None:
        """Add a hole; nothing is merged."""
        insort(self.addresses, address)
        insort(self.by_length, (length, address))
        self.length_at[address] = length

    def pop(self, address: int) -> int:
        """Remove the hole at `address` and return its length."""
        length = self.length_at.pop(address)
        del self.addresses[bisect_left(self.addresses, address)]
        del self.by_length[bisect_left(self.by_length, (length, address))]
        return length


class Fit(Protocol):
    """A choice among holes."""

    def __call__(self, holes: Holes, num_slots: int, rover: int) -> int:
        """The address of a hole of at least `num_slots`, which there is; `rover` is the end of the last allocation."""


def first_fit(holes: Holes, num_slots: int, rover: int) -> int:  # noqa: ARG001 - every fit has the same signature
    """The lowest address."""
    return next(address for address in holes.addresses if holes.length_at[address] >= num_slots)


def best_fit(holes: Holes, num_slots: int, rover: int) -> int:  # noqa: ARG001 - every fit has the same signature
    """The smallest hole, and of equal ones the lowest address."""
    return holes.by_length[bisect_left(holes.by_length, (num_slots, -1))][1]


def next_fit(holes: Holes, num_slots: int, rover: int) -> int:
    """The first hole that reaches beyond the rover, going around the end to the lowest address."""
    addresses = holes.addresses
    start = bisect_right(addresses, rover)
    if start and holes.end(start - 1) > rover:
        start -= 1
    around = chain(islice(addresses, start, None), islice(addresses, start))
    return next(address for address in around if holes.length_at[address] >= num_slots)
