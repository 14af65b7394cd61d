"""Compaction: everything is still there, side by side, and what need not move stays."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.memory.compaction import compacted
from kvsim.memory.contiguous import Extent, contiguous_allocator

FITS = ["first", "best", "next", "buddy"]


@pytest.mark.parametrize("fit", FITS)
@settings(max_examples=60, deadline=None)
@given(actions=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 9), st.booleans()), max_size=40))
def test_extents_keep_their_size_and_nothing_overlaps(fit: str, actions: list[tuple[int, int, bool]]) -> None:
    allocator = contiguous_allocator(fit, 100)
    live: list[Extent] = []
    for size, pick, give_back in actions:
        if give_back and live:
            allocator.free(live.pop(pick % len(live)))
        elif allocator.can_allocate(size):
            live.append(allocator.allocate(size))
    before = list(allocator.extents())
    fresh, moved = compacted(allocator, fit)
    fresh.check_integrity()
    assert list(allocator.extents()) == before, "a plan changes nothing"
    assert sorted(moved.get(extent, extent).address for extent in live) == [e.address for e in fresh.extents()]
    assert all(new.requested == old.requested and new.address != old.address for old, new in moved.items())
    assert fresh.num_free == allocator.num_free
    assert fresh.largest_hole >= allocator.largest_hole
    if fit != "buddy":
        assert fresh.largest_hole == fresh.num_free, "one hole is left"
        assert all(new.address < old.address for old, new in moved.items()), "everything slides down"


def test_what_lies_below_the_first_hole_is_not_copied() -> None:
    allocator = contiguous_allocator("first", 30)
    first, second, third = (allocator.allocate(10) for _ in range(3))
    allocator.free(second)
    _, moved = compacted(allocator, "first")
    assert list(moved) == [third]
    assert moved[third].address == first.end
