"""One contiguous address range, handed out in extents: first fit, best fit, next fit and buddy.

This is how servers kept the KV cache before paging: a sequence gets one extent, reserved when it is admitted. What a
sequence puts into its extent, and whether it asked for more than it needs, is not known here.

    allocator = contiguous_allocator("best", capacity)
    if allocator.can_allocate(num_slots):
        extent = allocator.allocate(num_slots)
        ...
        allocator.free(extent)
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

from kvsim.errors import IntegrityError, UnknownNameError, UsageError
from kvsim.memory.holes import Hole, Holes, best_fit, first_fit, next_fit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsim.memory.holes import Fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Allocated slots next to each other."""

    address: int
    length: int
    """How many slots are held: `requested`, or more where the allocator rounds up."""
    requested: int

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.length


class ContiguousAllocator:
    """Extents cut to measure from the slots 0 to `capacity - 1`; freed ones merge with the holes on both sides.

    Callers ask `can_allocate` before they `allocate` and `can_extend` before they `extend`, and free what is live:
    anything else is a defect of theirs and an `IntegrityError`. Sizes below 1 are a `UsageError`.
    """

    def __init__(self, capacity: int, fit: Fit = first_fit) -> None:
        if capacity < 1:
            raise UsageError(f"a range of {capacity} slots cannot hold anything; it must have at least 1.")
        self.capacity = capacity
        """Slots in the range, free or not."""
        self.num_free = capacity
        """Free slots, in holes of any length."""
        self._fit = fit
        self._rover = 0
        self._extents: dict[int, Extent] = {}
        self._holes = Holes()
        self._add_holes(0, capacity)

    @property
    def largest_hole(self) -> int:
        """Slots in the largest hole, 0 if nothing is free."""
        return self._holes.by_length[-1][0] if self._holes.by_length else 0

    def holes(self) -> Iterator[Hole]:
        """The holes in address order."""
        return (Hole(address, self._holes.length_at[address]) for address in self._holes.addresses)

    def extents(self) -> Iterator[Extent]:
        """The live extents in address order."""
        return (self._extents[address] for address in sorted(self._extents))

    def can_allocate(self, num_slots: int) -> bool:
        """Whether some hole is long enough."""
        _check_size(num_slots)
        return self._rounded(num_slots) <= self.largest_hole

    def allocate(self, num_slots: int) -> Extent:
        """Take at least `num_slots` out of one hole."""
        length = self._rounded(num_slots)
        if not self.can_allocate(num_slots):
            raise IntegrityError(
                f"{num_slots} slots need a hole of {length}, but {self.num_free} free slots have at most "
                f"{self.largest_hole} in one; ask can_allocate first."
            )
        address = self._fit(self._holes, length, self._rover)
        extent = Extent(address=address, length=length, requested=num_slots)
        self._take(address, extent.end)
        self._extents[address] = extent
        self._rover = extent.end
        return extent

    def free(self, extent: Extent) -> None:
        """Give a live extent back."""
        self._check_live(extent)
        del self._extents[extent.address]
        self._release(extent.address, extent.length)
        self.num_free += extent.length

    def can_extend(self, extent: Extent, num_slots: int) -> bool:
        """Whether a live extent can have `num_slots` more without moving: the hole behind it is long enough."""
        _check_size(num_slots)
        self._check_live(extent)
        end = extent.address + self._rounded(extent.requested + num_slots)
        free_up_to = extent.end
        while free_up_to < end and free_up_to in self._holes.length_at:
            free_up_to += self._holes.length_at[free_up_to]
        return free_up_to >= end

    def extend(self, extent: Extent, num_slots: int) -> Extent:
        """Grow a live extent in place by `num_slots`; the returned extent replaces it."""
        if not self.can_extend(extent, num_slots):
            raise IntegrityError(f"{extent} cannot grow by {num_slots} slots in place; ask can_extend first.")
        requested = extent.requested + num_slots
        grown = replace(extent, requested=requested, length=self._rounded(requested))
        self._take(extent.end, grown.end)
        self._extents[extent.address] = grown
        return grown

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless extents and holes cover every slot exactly once and the books agree."""
        address = 0
        pieces: list[Extent | Hole] = [*self.extents(), *self.holes()]
        for piece in sorted(pieces, key=attrgetter("address")):
            if piece.address != address or piece.length < 1:
                raise IntegrityError(
                    f"{piece} must have at least 1 slot and begin at {address}, where the one before ends."
                )
            address = piece.end
        free, allocated = sum(hole.length for hole in self.holes()), sum(extent.length for extent in self.extents())
        if not address == self.capacity == free + allocated or free != self.num_free:
            raise IntegrityError(
                f"free({free}, counted as {self.num_free}) + allocated({allocated}) must be capacity({self.capacity})."
            )
        for extent in self.extents():
            if extent.length != self._rounded(extent.requested):
                raise IntegrityError(f"{extent} must be {self._rounded(extent.requested)} slots long.")
        if self._holes.by_length != sorted((length, address) for address, length in self._holes.length_at.items()):
            raise IntegrityError(f"the holes by length, {self._holes.by_length}, are not those by address.")
        self._check_holes()

    def _rounded(self, num_slots: int) -> int:
        """How many slots are held for `num_slots` requested."""
        return num_slots

    def _take(self, start: int, end: int) -> None:
        """Take [start, end) out of the holes, the first of which begins at `start`."""
        address = start
        while address < end:
            address += self._holes.pop(address)
        self._add_holes(end, address)
        self.num_free -= end - start

    def _add_holes(self, start: int, end: int) -> None:
        """Make [start, end) holes; what is next to it is not free."""
        if start < end:
            self._holes.add(start, end - start)

    def _release(self, address: int, length: int) -> None:
        """Make an extent a hole, merged with those next to it."""
        holes = self._holes
        if address + length in holes.length_at:
            length += holes.pop(address + length)
        before = bisect_left(holes.addresses, address) - 1
        if before >= 0 and holes.end(before) == address:
            address = holes.addresses[before]
            length += holes.pop(address)
        holes.add(address, length)

    def _check_holes(self) -> None:
        for hole, next_hole in pairwise(self.holes()):
            if hole.end == next_hole.address:
                raise IntegrityError(f"{hole} and {next_hole} touch; they must be one.")

    def _check_live(self, extent: Extent) -> None:
        live = self._extents.get(extent.address)
        if live != extent:
            raise IntegrityError(f"{extent} is not allocated; at its address there is {live or 'no extent'}.")


def _check_size(num_slots: int) -> None:
    if num_slots < 1:
        raise UsageError(f"{num_slots} slots were asked for; ask for at least 1.")


class BuddyAllocator(ContiguousAllocator):
    """Extents rounded up to powers of two, each at a multiple of its length, split from and merged into larger ones.

    A capacity that is no power of two is managed as the largest powers of two that fill it: 13 slots as 8, 4 and 1.
    The smallest hole that will do is used, and of equal ones the one with the lowest address.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, best_fit)

    def can_extend(self, extent: Extent, num_slots: int) -> bool:
        """Whether a live extent can have `num_slots` more without moving: over free buddies to its right."""
        grows_right = extent.address % self._rounded(extent.requested + num_slots) == 0
        return super().can_extend(extent, num_slots) and grows_right

    def _rounded(self, num_slots: int) -> int:
        return 1 << (num_slots - 1).bit_length()

    def _add_holes(self, start: int, end: int) -> None:
        while start < end:
            longest = 1 << (end - start).bit_length() - 1
            aligned = start & -start or longest
            length = min(longest, aligned)
            self._holes.add(start, length)
            start += length

    def _release(self, address: int, length: int) -> None:
        while self._holes.length_at.get(address ^ length) == length:
            self._holes.pop(address ^ length)
            address &= ~length
            length *= 2
        self._holes.add(address, length)

    def _check_holes(self) -> None:
        pieces: list[Extent | Hole] = [*self.extents(), *self.holes()]
        for piece in pieces:
            if piece.length & (piece.length - 1) or piece.address % piece.length:
                raise IntegrityError(f"{piece} must be a power of two long and begin at a multiple of its length.")
        for hole in self.holes():
            if self._holes.length_at.get(hole.address ^ hole.length) == hole.length:
                raise IntegrityError(
                    f"{hole} and its buddy at {hole.address ^ hole.length} are free; they must be one."
                )


ALLOCATORS: dict[str, Callable[[int], ContiguousAllocator]] = {
    "first": partial(ContiguousAllocator, fit=first_fit),
    "best": partial(ContiguousAllocator, fit=best_fit),
    "next": partial(ContiguousAllocator, fit=next_fit),
    "buddy": BuddyAllocator,
}
"""Name of a fit -> what makes an allocator of a given capacity."""


def contiguous_allocator(fit: str, capacity: int) -> ContiguousAllocator:
    """An empty allocator of `capacity` slots with the fit of this name, one of `ALLOCATORS`.

    Raises:
        UnknownNameError: there is no such fit.
        UsageError: `capacity` is below 1.
    """
    if fit not in ALLOCATORS:
        raise UnknownNameError("fit", fit, ALLOCATORS)
    return ALLOCATORS[fit](capacity)
