from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from kvsim.errors import IntegrityError, UnknownNameError, UsageError
from kvsim.memory.contiguous import ALLOCATORS, ContiguousAllocator, Extent, contiguous_allocator
from kvsim.memory.holes import Hole


def naive_holes(slots: bytearray) -> list[Hole]:
    """The longest runs of free slots, found one slot at a time."""
    holes: list[Hole] = []
    for address, taken in enumerate(slots):
        if taken:
            continue
        if holes and holes[-1].end == address:
            holes[-1] = Hole(holes[-1].address, holes[-1].length + 1)
        else:
            holes.append(Hole(address, 1))
    return holes


def naive_buddies(slots: bytearray) -> list[Hole]:
    """The largest aligned, wholly free powers of two: no larger one contains them."""
    buddies = [
        Hole(address, length)
        for length in (1 << power for power in range(len(slots).bit_length()))
        for address in range(0, len(slots) - length + 1, length)
        if not any(slots[address : address + length])
    ]
    return sorted(
        inner
        for inner in buddies
        if not any(o.address <= inner.address and inner.end <= o.end and o.length > inner.length for o in buddies)
    )


class AllocatorMachine(RuleBasedStateMachine):
    """Any order of operations, compared with a model that has one byte per slot."""

    fit: str
    live = Bundle("live")

    @initialize(capacity=st.integers(1, 70))
    def start(self, capacity: int) -> None:
        self.allocator = contiguous_allocator(self.fit, capacity)
        self.slots = bytearray(capacity)
        self.rover = 0

    def rank(self, hole: Hole) -> tuple[int, int]:
        """Of all holes that are long enough, the one with the smallest rank must be used."""
        raise NotImplementedError

    def holes(self) -> list[Hole]:
        return naive_holes(self.slots)

    def rounded(self, num_slots: int) -> int:
        return num_slots

    def may_begin(self, address: int, length: int) -> bool:  # noqa: ARG002 - buddies look
        return True

    def take(self, start: int, end: int) -> None:
        assert not any(self.slots[start:end])
        self.slots[start:end] = b"\x01" * (end - start)

    @rule(target=live, num_slots=st.integers(1, 12))
    def allocate(self, num_slots: int) -> Extent | MultipleResults[Extent]:
        length = self.rounded(num_slots)
        candidates = [hole for hole in self.holes() if hole.length >= length]
        assert self.allocator.can_allocate(num_slots) == bool(candidates)
        if not candidates:
            with pytest.raises(IntegrityError, match="ask can_allocate first"):
                self.allocator.allocate(num_slots)
            return multiple()
        address = min(candidates, key=self.rank).address
        extent = self.allocator.allocate(num_slots)
        assert extent == Extent(address=address, length=length, requested=num_slots)
        self.take(address, extent.end)
        self.rover = extent.end
        return extent

    @rule(target=live, extent=consumes(live), num_slots=st.integers(1, 12))
    def extend(self, extent: Extent, num_slots: int) -> Extent:
        length = self.rounded(extent.requested + num_slots)
        end = extent.address + length
        fits = end <= len(self.slots) and not any(self.slots[extent.end : end])
        fits = fits and self.may_begin(extent.address, length)
        assert self.allocator.can_extend(extent, num_slots) == fits
        if not fits:
            with pytest.raises(IntegrityError, match="ask can_extend first"):
                self.allocator.extend(extent, num_slots)
            return extent
        grown = self.allocator.extend(extent, num_slots)
        assert grown == Extent(address=extent.address, length=length, requested=extent.requested + num_slots)
        self.take(extent.end, end)
        return grown

    @rule(extent=consumes(live))
    def free(self, extent: Extent) -> None:
        self.allocator.free(extent)
        self.slots[extent.address : extent.end] = bytes(extent.length)
        with pytest.raises(IntegrityError, match="is not allocated"):
            self.allocator.free(extent)

    @invariant()
    def integrity(self) -> None:
        self.allocator.check_integrity()

    @invariant()
    def same_as_the_model(self) -> None:
        holes = self.holes()
        assert list(self.allocator.holes()) == holes
        assert self.allocator.largest_hole == max((hole.length for hole in holes), default=0)
        assert self.allocator.num_free == self.slots.count(0)
        taken = {slot for extent in self.allocator.extents() for slot in range(extent.address, extent.end)}
        assert taken == {address for address, is_taken in enumerate(self.slots) if is_taken}


class FirstFitMachine(AllocatorMachine):
    fit = "first"

    def rank(self, hole: Hole) -> tuple[int, int]:
        return (0, hole.address)


class BestFitMachine(AllocatorMachine):
    fit = "best"

    def rank(self, hole: Hole) -> tuple[int, int]:
        return (hole.length, hole.address)


class NextFitMachine(AllocatorMachine):
    fit = "next"

    def rank(self, hole: Hole) -> tuple[int, int]:
        return (hole.end <= self.rover, hole.address)


class BuddyMachine(BestFitMachine):
    fit = "buddy"

    def holes(self) -> list[Hole]:
        return naive_buddies(self.slots)

    def rounded(self, num_slots: int) -> int:
        return next(1 << power for power in range(10) if 1 << power >= num_slots)

    def may_begin(self, address: int, length: int) -> bool:
        return address % length == 0


few = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestFirstFit = FirstFitMachine.TestCase
TestBestFit = BestFitMachine.TestCase
TestNextFit = NextFitMachine.TestCase
TestBuddy = BuddyMachine.TestCase
TestFirstFit.settings = TestBestFit.settings = TestNextFit.settings = TestBuddy.settings = few


def allocator_with_holes(fit: str, lengths: list[int]) -> ContiguousAllocator:
    """Holes of these lengths, each followed by one slot that is taken; every hole was an extent, freed in order."""
    allocator = contiguous_allocator(fit, sum(lengths) + len(lengths))
    extents = []
    for length in lengths:
        extents.append(allocator.allocate(length))
        allocator.allocate(1)
    for extent in extents:
        allocator.free(extent)
    return allocator


def test_fits_choose_different_holes() -> None:
    holes = [4, 9, 3, 6]
    assert allocator_with_holes("first", holes).allocate(3).address == 0
    assert allocator_with_holes("best", holes).allocate(3).address == 15
    roving = allocator_with_holes("next", holes)
    assert [roving.allocate(3).address for _ in range(4)] == [0, 5, 8, 11]


def test_next_fit_goes_around_the_end() -> None:
    allocator = contiguous_allocator("next", 10)
    first = allocator.allocate(4)
    allocator.allocate(4)
    allocator.free(first)
    assert allocator.allocate(3).address == 0


def test_a_pool_with_enough_slots_in_pieces_serves_nobody() -> None:
    allocator = allocator_with_holes("best", [5, 5, 5])
    assert allocator.num_free == 15
    assert not allocator.can_allocate(6)
    assert allocator.largest_hole == 5


def test_buddies_of_a_capacity_that_is_no_power_of_two() -> None:
    allocator = contiguous_allocator("buddy", 15_728)
    assert [hole.length for hole in allocator.holes()] == [8192, 4096, 2048, 1024, 256, 64, 32, 16]
    extents = [allocator.allocate(1025) for _ in range(7)]
    assert {extent.length for extent in extents} == {2048}
    assert not allocator.can_allocate(1025)
    assert allocator.can_allocate(1024)
    for extent in extents:
        allocator.free(extent)
    assert allocator.largest_hole == 8192


def test_buddies_split_and_merge() -> None:
    allocator = contiguous_allocator("buddy", 16)
    extent = allocator.allocate(3)
    assert extent == Extent(address=0, length=4, requested=3)
    assert list(allocator.holes()) == [Hole(4, 4), Hole(8, 8)]
    allocator.free(extent)
    assert list(allocator.holes()) == [Hole(0, 16)]


def test_a_buddy_grows_within_its_length_and_over_its_right_buddies() -> None:
    allocator = contiguous_allocator("buddy", 32)
    extent = allocator.allocate(3)
    extent = allocator.extend(extent, 1)
    assert (extent.length, allocator.num_free) == (4, 28)
    extent = allocator.extend(extent, 12)
    assert (extent.length, list(allocator.holes())) == (16, [Hole(16, 16)])


def test_a_right_buddy_cannot_grow_even_into_a_hole() -> None:
    allocator = contiguous_allocator("buddy", 16)
    allocator.allocate(4)
    right = allocator.allocate(4)
    assert list(allocator.holes()) == [Hole(8, 8)]
    assert not allocator.can_extend(right, 1)


def test_an_extent_that_grew_is_no_longer_the_old_one() -> None:
    allocator = contiguous_allocator("first", 8)
    old = allocator.allocate(2)
    allocator.extend(old, 1)
    with pytest.raises(IntegrityError, match="is not allocated"):
        allocator.free(old)
    with pytest.raises(IntegrityError, match="is not allocated"):
        allocator.can_extend(old, 1)


@pytest.mark.parametrize("fit", ALLOCATORS)
def test_sizes_below_one_are_refused(fit: str) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        contiguous_allocator(fit, 0)
    allocator = contiguous_allocator(fit, 8)
    extent = allocator.allocate(2)
    for num_slots in (0, -1):
        with pytest.raises(UsageError, match="ask for at least 1"):
            allocator.can_allocate(num_slots)
        with pytest.raises(UsageError, match="ask for at least 1"):
            allocator.allocate(num_slots)
        with pytest.raises(UsageError, match="ask for at least 1"):
            allocator.extend(extent, num_slots)
    allocator.check_integrity()


def test_an_unknown_fit_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match="did you mean best"):
        contiguous_allocator("bset", 8)


@pytest.mark.parametrize("fit", ALLOCATORS)
def test_damage_is_found(fit: str) -> None:
    def damaged() -> ContiguousAllocator:
        allocator = contiguous_allocator(fit, 16)
        allocator.free([allocator.allocate(4), allocator.allocate(4)][0])
        allocator.check_integrity()
        return allocator

    allocator = damaged()
    allocator.num_free += 1
    with pytest.raises(IntegrityError, match=r"free\(12, counted as 13\) \+ allocated\(4\)"):
        allocator.check_integrity()

    allocator = damaged()
    allocator._holes.pop(0)
    with pytest.raises(IntegrityError, match="begin at 0"):
        allocator.check_integrity()

    allocator = damaged()
    extent = allocator._extents[4]
    allocator._extents[4] = replace(extent, requested=1)
    with pytest.raises(IntegrityError, match="must be 1 slots long"):
        allocator.check_integrity()

    allocator = damaged()
    allocator._holes.pop(0)
    allocator._holes.add(0, 2)
    allocator._holes.add(2, 2)
    with pytest.raises(IntegrityError, match="must be one"):
        allocator.check_integrity()

    allocator = damaged()
    allocator._holes.by_length.reverse()
    with pytest.raises(IntegrityError, match="by length"):
        allocator.check_integrity()


def test_misaligned_buddies_are_found() -> None:
    allocator = contiguous_allocator("buddy", 16)
    allocator._holes.pop(0)
    for address, length in ((0, 1), (1, 4), (5, 1), (6, 2), (8, 8)):
        allocator._holes.add(address, length)
    with pytest.raises(IntegrityError, match="multiple of its length"):
        allocator.check_integrity()


@pytest.mark.parametrize("fit", ALLOCATORS)
def test_a_long_random_run_gives_every_slot_back(fit: str) -> None:
    allocator = contiguous_allocator(fit, 15_728)
    rng = random.Random(7)
    live: list[Extent] = []
    for _ in range(5_000):
        num_slots = rng.randint(1, 400)
        if allocator.can_allocate(num_slots):
            live.append(allocator.allocate(num_slots))
        else:
            allocator.free(live.pop(rng.randrange(len(live))))
    allocator.check_integrity()
    for extent in live:
        allocator.free(extent)
    allocator.check_integrity()
    assert allocator.num_free == 15_728
    assert allocator.can_allocate(8192)
