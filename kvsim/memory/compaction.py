"""Sliding extents together, so that the free slots between them become one hole."""

from __future__ import annotations

from typing import NamedTuple

from kvsim.memory.contiguous import ContiguousAllocator, Extent, contiguous_allocator


class Compacted(NamedTuple):
    """What a range would look like with its extents side by side; the range itself is as it was."""

    allocator: ContiguousAllocator
    """A new one with the same capacity and fit."""
    moved: dict[Extent, Extent]
    """Extents that have another address now: the old one and the new."""


def compacted(allocator: ContiguousAllocator, fit: str) -> Compacted:
    """Plan the compaction of `allocator`, which has the fit of this name.

    Extents keep their order, so that those below the first hole stay where they are. Buddies must begin at a multiple
    of their length, so the longest go first.
    """
    fresh = contiguous_allocator(fit, allocator.capacity)
    live = sorted(allocator.extents(), key=lambda extent: -extent.length) if fit == "buddy" else allocator.extents()
    moved = {}
    for extent in live:
        new = fresh.allocate(extent.requested)
        if new.address != extent.address:
            moved[extent] = new
    return Compacted(fresh, moved)
