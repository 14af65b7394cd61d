"""Contiguous reservations: who gets how much, what grows, moves or gives up, and when a batch is closed."""

from __future__ import annotations

import pytest

from kvsim.engine.driver import Driver
from kvsim.engine.reserved import reservations
from kvsim.memory.waste import SlotState
from kvsim.policies import Contiguous
from kvsim.policies.settings import ContiguousSettings, ContinuousSettings, Growth, Reserve
from kvsim.simulation.full_check import breakdown, check

from ..conformance.modes import in_every_way
from .by_hand import arrived, demand_of, driver_of

CAPACITY, MAX_LEN = 64, 24
LENGTHS = (
    (Reserve.MAX, 3, 2, 9, MAX_LEN),
    (Reserve.LIMIT, 3, 2, 9, 12),
    (Reserve.LIMIT, 20, 2, 9, MAX_LEN),
    (Reserve.POW2, 3, 1, 9, 4),
    (Reserve.POW2, 3, 2, 9, 5),
    (Reserve.POW2, 3, 5, 9, 11),
    (Reserve.POW2, 3, 8, 9, 11),
    (Reserve.POW2, 17, 6, 9, MAX_LEN),
    (Reserve.ORACLE, 3, 5, 5, 7),
    (Reserve.ORACLE, 3, 1, 1, 3),
    (Reserve.DOUBLING, 3, 5, 9, 4),
    (Reserve.DOUBLING, 4, 5, 9, 8),
    (Reserve.DOUBLING, 17, 5, 9, MAX_LEN),
)


def policy(reserve: Reserve = Reserve.MAX, fit: str = "first", **cache: object) -> Contiguous:
    return Contiguous(
        scheduler=ContinuousSettings(async_scheduling=False, max_model_len=MAX_LEN),
        cache=ContiguousSettings(reserve=reserve, fit=fit, **cache),  # type: ignore[arg-type]
    )


def held(driver: Driver) -> dict[int, range]:
    """The slots that each running sequence holds."""
    extents = {node: driver.sequence(node) for node in driver.running()}
    return {node: range(int(each.place), int(each.place + each.num_units)) for node, each in extents.items()}


def step(driver: Driver) -> None:
    driver.schedule()
    check(driver)
    driver.update()


@in_every_way
@pytest.mark.parametrize(("reserve", "prompt", "output", "limit", "slots"), LENGTHS)
def test_what_each_kind_of_reservation_asks_for(
    reserve: Reserve, prompt: int, output: int, limit: int, slots: int, compiled: bool
) -> None:
    driver = arrived(policy(reserve), CAPACITY, (prompt, output, limit), compiled=compiled)
    driver.schedule()
    assert held(driver) == {1: range(slots)}
    assert driver.engine.state.num_free == CAPACITY - slots
    check(driver)


def test_an_oracle_has_room_for_the_step_in_which_a_stop_is_noticed_late() -> None:
    """A stop that only the output reveals comes when the next token is scheduled already, and written."""
    driver = arrived(policy(Reserve.ORACLE), CAPACITY, (3, 5, 9))
    driver.schedule()
    assert held(driver) == {1: range(3 + 5)}


@pytest.mark.parametrize("fit", ["first", "best", "next", "buddy"])
@pytest.mark.parametrize("reserve", [each for each in Reserve if each is not Reserve.DOUBLING])
def test_what_fits_is_what_an_empty_pool_admits(reserve: Reserve, fit: str) -> None:
    for capacity in (5, 15, 16, 17, 24, 31):
        for prompt in range(1, MAX_LEN, 3):
            misfits = demand_of((prompt, 3)).misfits(policy(reserve, fit), capacity)
            driver = arrived(policy(reserve, fit), capacity, (prompt, 3))
            driver.schedule()
            assert (driver.running() == [1]) == (not misfits[0])


@in_every_way
def test_a_failed_admission_leaves_no_trace(compiled: bool) -> None:
    driver = arrived(policy(), 40, (3, 4), (3, 4), compiled=compiled)
    driver.schedule()
    assert held(driver) == {1: range(MAX_LEN)}
    assert (driver.waiting(), driver.engine.state.num_free) == ([2], 40 - MAX_LEN)
    assert len(driver.changes()) == 1


def test_free_slots_in_pieces_are_unusable_only_for_a_head_that_they_would_serve_together() -> None:
    requests = [(4, 4), (4, 4), (4, 4), (12, 4), (12, 5)]
    driver = driver_of(policy(Reserve.LIMIT), 24, *requests)
    for node in (1, 2, 3):
        driver.add(node)
    driver.schedule()
    driver.abort(1)
    driver.abort(3)
    unusable = [reservations.unusable_slots(driver.engine, driver.sequence(head)) for head in (2, 4, 5)]
    assert unusable == [0, 16, 0], "it fits; 16 slots are free, in two holes of 8; 17 would not fit in one piece either"


def test_the_rounding_of_buddies_is_external() -> None:
    driver = arrived(policy(Reserve.LIMIT, "buddy"), CAPACITY, (6, 5))
    step(driver)
    driver.schedule()
    slots = breakdown(driver)
    assert [slots[state] for state in SlotState] == [7, 3, 1, 0, 0, 0, 5, CAPACITY - 16]


@in_every_way
def test_doubling_grows_in_place_where_there_is_room(compiled: bool) -> None:
    driver = arrived(policy(Reserve.DOUBLING), CAPACITY, (3, 9), compiled=compiled)
    for slots in (4, 4, 8, 8, 8, 8, 16):
        driver.schedule()
        check(driver)
        assert (held(driver), driver.engine.state.num_copied_slots) == ({1: range(slots)}, 0)
        driver.update()


@in_every_way
def test_doubling_moves_what_is_hemmed_in_and_counts_the_copy_once(compiled: bool) -> None:
    driver = arrived(policy(Reserve.DOUBLING), CAPACITY, (3, 9), (2, 9), compiled=compiled)
    step(driver)
    step(driver)
    driver.schedule()
    check(driver)
    assert held(driver) == {1: range(8, 16), 2: range(4, 8)}
    assert driver.engine.state.num_copied_slots == 4
    driver.update()
    driver.schedule()
    assert (held(driver)[2], driver.engine.state.num_copied_slots) == (range(16, 24), 4)


@in_every_way
def test_doubling_that_must_not_move_gives_up_where_it_is_hemmed_in(compiled: bool) -> None:
    driver = arrived(policy(Reserve.DOUBLING, growth=Growth.FAIL), CAPACITY, (3, 9), (2, 9), compiled=compiled)
    step(driver)
    step(driver)
    driver.schedule()
    check(driver)
    assert (driver.preempted(), held(driver)) == ([2], {1: range(8)}), "there is room now"
    assert driver.engine.state.num_copied_slots == 0


@in_every_way
def test_doubling_ends_at_the_longest_sequence(compiled: bool) -> None:
    driver = arrived(policy(Reserve.DOUBLING), CAPACITY, (15, 9), compiled=compiled)
    for _ in range(3):
        step(driver)
    assert held(driver) == {1: range(MAX_LEN)}


@in_every_way
@pytest.mark.parametrize("fit", ["first", "best", "next"])
def test_compaction_serves_the_head_that_fragmentation_kept_waiting(fit: str, compiled: bool) -> None:
    requests = [(4, 4), (4, 4), (4, 4), (12, 4)]
    driver = driver_of(policy(Reserve.LIMIT, fit, compaction=True), 24, *requests, compiled=compiled)
    for node in (1, 2, 3):
        driver.add(node)
    step(driver)
    driver.abort(1)
    driver.abort(3)
    driver.add(4)
    driver.schedule()
    check(driver)
    assert held(driver) == {2: range(8), 4: range(8, 24)}
    assert driver.engine.state.num_copied_slots == 4, "only what was written has to be copied"


@in_every_way
def test_at_request_level_a_batch_is_closed_from_its_second_step_to_its_end(compiled: bool) -> None:
    requests = [(4, 4), (4, 4), (4, 4)]
    driver = driver_of(policy(Reserve.LIMIT, request_level=True), CAPACITY, *requests, compiled=compiled)
    driver.add(1)
    driver.add(2)
    step(driver)
    assert driver.running() == [1, 2]
    driver.add(3)
    step(driver)
    assert driver.running() == [1, 2]
    driver.abort(1)
    step(driver)
    assert driver.running() == [2]
    driver.abort(2)
    step(driver)
    assert driver.running() == [3]
