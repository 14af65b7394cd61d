"""Contiguous extents and their compaction against a model that has one byte per slot."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
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
)  # fmt: skip

from kvsim.engine.driver import Driver
from kvsim.engine.reserved import extents
from kvsim.errors import UsageError
from kvsim.policies import Contiguous
from kvsim.policies.settings import ContiguousSettings, ContinuousSettings, Reserve
from kvsim.simulation.full_check import check

from ..conformance.modes import in_every_way
from .by_hand import driver_of

FITS = ("first", "best", "next", "buddy")


class Hole(NamedTuple):
    address: int
    length: int

    @property
    def end(self) -> int:
        return self.address + self.length


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


class Model:
    """The rules of a fit, over one byte per slot."""

    def __init__(self, fit: str, capacity: int) -> None:
        self.fit, self.slots, self.rover = fit, bytearray(capacity), 0

    def holes(self) -> list[Hole]:
        return naive_buddies(self.slots) if self.fit == "buddy" else naive_holes(self.slots)

    def rounded(self, num_slots: int) -> int:
        if self.fit != "buddy":
            return num_slots
        return next(1 << power for power in range(20) if 1 << power >= num_slots)

    def find(self, length: int) -> Hole | None:
        """Of all holes that are long enough, the one with the smallest rank is used."""
        ranks = {
            "first": lambda hole: (0, hole.address),
            "best": lambda hole: (hole.length, hole.address),
            "next": lambda hole: (hole.end <= self.rover, hole.address),
            "buddy": lambda hole: (hole.length, hole.address),
        }
        return min((hole for hole in self.holes() if hole.length >= length), key=ranks[self.fit], default=None)

    def take(self, start: int, end: int) -> None:
        assert not any(self.slots[start:end])
        self.slots[start:end] = b"\x01" * (end - start)

    def allocate(self, length: int) -> int | None:
        if (hole := self.find(length)) is None:
            return None
        self.take(hole.address, hole.address + length)
        self.rover = hole.address + length
        return hole.address

    def free(self, start: int, end: int) -> None:
        self.slots[start:end] = bytes(end - start)


def driver_for(fit: str, capacity: int, *requests: tuple[int, int], compiled: bool = False, **cache: object) -> Driver:
    policy = Contiguous(
        scheduler=ContinuousSettings(async_scheduling=False),
        cache=ContiguousSettings(fit=fit, reserve=Reserve.LIMIT, **cache),  # type: ignore[arg-type]
    )
    return driver_of(policy, capacity, *requests, compiled=compiled)


def holes_of(driver: Driver) -> list[Hole]:
    engine = driver.engine
    return [Hole(engine.holes[index].address, engine.holes[index].length) for index in range(engine.state.num_holes)]


class AllocatorMachine(RuleBasedStateMachine):
    """Extents that come, grow and go in any order."""

    fit: str
    live = Bundle("live")

    @initialize(capacity=st.integers(1, 70))
    def start(self, capacity: int) -> None:
        self.model = Model(self.fit, capacity)
        self.driver = driver_for(self.fit, capacity, *[(1, 1)] * 60)
        self.engine = self.driver.engine

    @rule(target=live, num_slots=st.integers(1, 12))
    def allocate(self, num_slots: int) -> Hole | MultipleResults[Hole]:
        length = self.model.rounded(num_slots)
        assert extents.rounded_length(self.engine, num_slots) == length
        index = extents.find_hole(self.engine, length)
        address = self.model.allocate(length)
        assert (index == extents.NO_HOLE) == (address is None)
        if address is None:
            return multiple()
        assert extents.allocate(self.engine, index, length) == address
        return Hole(address, length)

    @rule(target=live, extent=consumes(live), num_slots=st.integers(1, 12))
    def extend(self, extent: Hole, num_slots: int) -> Hole:
        longer = self.model.rounded(extent.length + num_slots)
        end = extent.address + longer
        fits = end <= len(self.model.slots) and not any(self.model.slots[extent.end : end])
        fits = fits and (self.fit != "buddy" or extent.address % longer == 0)
        assert extents.can_extend(self.engine, extent.address, extent.length, longer) == fits
        if not fits:
            return extent
        extents.extend(self.engine, extent.address, extent.length, longer)
        self.model.take(extent.end, end)
        return Hole(extent.address, longer)

    @rule(extent=consumes(live))
    def free(self, extent: Hole) -> None:
        extents.free(self.engine, extent.address, extent.length)
        self.model.free(extent.address, extent.end)

    @invariant()
    def equal(self) -> None:
        assert holes_of(self.driver) == self.model.holes()
        assert self.engine.state.num_free == self.model.slots.count(0)


class FirstFitMachine(AllocatorMachine):
    fit = "first"


class BestFitMachine(AllocatorMachine):
    fit = "best"


class NextFitMachine(AllocatorMachine):
    fit = "next"


class BuddyMachine(AllocatorMachine):
    fit = "buddy"


few = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestFirstFit, TestBestFit = FirstFitMachine.TestCase, BestFitMachine.TestCase
TestNextFit, TestBuddy = NextFitMachine.TestCase, BuddyMachine.TestCase
TestFirstFit.settings = TestBestFit.settings = TestNextFit.settings = TestBuddy.settings = few


@in_every_way
@pytest.mark.parametrize("fit", FITS)
@settings(max_examples=30, deadline=None)
@given(
    actions=st.lists(st.tuples(st.integers(2, 20), st.integers(0, 9), st.integers(0, 2)), max_size=40),
    compaction=st.booleans(),
    capacity=st.integers(20, 100),
)
@example(actions=[(6, 0, 1), (6, 0, 1), (6, 0, 1), (8, 0, 0)], compaction=True, capacity=20)  # two extents slide
@example(  # buddies of 4, 8, 4 and 8 slots are put together
    actions=[(4, 0, 1), (4, 0, 1), (8, 0, 1), (4, 0, 1), (4, 0, 1), (8, 0, 1), (20, 1, 0), (8, 2, 0)],
    compaction=True,
    capacity=32,
)
def test_requests_come_and_go(
    fit: str, compiled: bool, actions: list[tuple[int, int, int]], compaction: bool, capacity: int
) -> None:
    """Admitted where the model would put them; compacted where that makes a hole, and only then."""
    requests = [(size - 1, 1) for size, _, _ in actions] or [(1, 1)]
    driver = driver_for(fit, capacity, *requests, compiled=compiled, compaction=compaction)
    model, live = Model(fit, capacity), dict[int, Hole]()
    for node, (size, pick, verb) in enumerate(actions, 1):
        if verb == 0 and live:
            left = sorted(live)[pick % len(live)]
            driver.abort(left)
            model.free(live[left].address, live.pop(left).end)
        driver.add(node)
        driver.schedule()
        length, moved = model.rounded(size), 0
        address = model.allocate(length)
        if address is None and compaction and model.slots.count(0) >= size:
            fresh, places = packed_together(fit, capacity, live)
            if fresh.find(length) is not None:
                moved = sum(requests[other - 1][0] for other in live if places[other] != live[other])
                model, live = fresh, places
                address = model.allocate(length)
        if address is None:
            assert driver.waiting() == [node]
            driver.abort(node)
        else:
            live[node] = Hole(address, length)
        assert {other: (driver.sequence(other).place, driver.sequence(other).num_units) for other in live} == live
        assert driver.engine.state.num_copied_slots == moved
        assert holes_of(driver) == model.holes()
        check(driver)


def packed_together(fit: str, capacity: int, live: dict[int, Hole]) -> tuple[Model, dict[int, Hole]]:
    """All extents slid together: the lowest first; of buddies, which must be aligned, the longest."""
    fresh, places = Model(fit, capacity), dict[int, Hole]()
    order = sorted(live, key=lambda node: (-live[node].length if fit == "buddy" else 0, live[node].address))
    for node in order:
        address = fresh.allocate(live[node].length)
        assert address is not None
        places[node] = Hole(address, live[node].length)
    return fresh, places


def driver_with_holes(fit: str, lengths: list[int]) -> Driver:
    """Holes of these lengths, each followed by one slot that is taken; every hole was an extent, freed in order."""
    driver = driver_for(fit, sum(lengths) + len(lengths), *[(1, 1)] * 20)
    places = []
    for length in lengths:
        places.append((take(driver, length), length))
        take(driver, 1)
    for address, length in places:
        extents.free(driver.engine, address, length)
    return driver


def take(driver: Driver, length: int) -> int:
    return extents.allocate(driver.engine, extents.find_hole(driver.engine, length), length)


def test_fits_choose_different_holes() -> None:
    holes = [4, 9, 3, 6]
    assert take(driver_with_holes("first", holes), 3) == 0
    assert take(driver_with_holes("best", holes), 3) == 15
    roving = driver_with_holes("next", holes)
    assert [take(roving, 3) for _ in range(4)] == [0, 5, 8, 11]


def test_of_holes_that_fit_equally_well_the_lowest_is_taken() -> None:
    assert take(driver_with_holes("best", [9, 5, 5, 7]), 5) == 10


def test_next_fit_goes_around_the_end() -> None:
    driver = driver_for("next", 10, *[(1, 1)] * 5)
    first = take(driver, 4)
    take(driver, 4)
    extents.free(driver.engine, first, 4)
    assert take(driver, 3) == 0


def test_buddies_of_a_capacity_that_is_no_power_of_two() -> None:
    driver = driver_for("buddy", 15_728, *[(1, 1)] * 8)
    assert [hole.length for hole in holes_of(driver)] == [8192, 4096, 2048, 1024, 256, 64, 32, 16]
    length = extents.rounded_length(driver.engine, 1025)
    assert length == 2048
    places = [take(driver, length) for _ in range(7)]
    assert extents.find_hole(driver.engine, length) == extents.NO_HOLE != extents.find_hole(driver.engine, 1024)
    for address in places:
        extents.free(driver.engine, address, length)
    assert max(hole.length for hole in holes_of(driver)) == 8192


def test_a_right_buddy_cannot_grow_even_into_a_hole() -> None:
    driver = driver_for("buddy", 16, (1, 1), (1, 1))
    take(driver, 4)
    right = take(driver, 4)
    assert holes_of(driver) == [Hole(8, 8)]
    assert not extents.can_extend(driver.engine, right, 4, 8)


def test_an_unknown_fit_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="fit should be one of first, best, next, buddy, not 'bset'"):
        driver_for("bset", 8, (1, 1))
