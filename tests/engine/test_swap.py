"""Host memory for what is preempted, a model: nothing is computed twice while it lasts, and copies take time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.engine import host_swap
from kvsim.engine.driver import Driver
from kvsim.engine.state import PREEMPTED, RUNNING
from kvsim.errors import BudgetError, UsageError
from kvsim.metrics import waste
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings, Order, PagedSettings
from kvsim.recording import Recording, RequestStatus
from kvsim.simulation import Machine, simulate
from kvsim.workload import LogNormal, Poisson, SharedPrefixes, Workload, generate

from ..conformance.modes import in_every_way
from .by_hand import arrived, driver_of

MakeMachine = Callable[[int], Machine]
MAX_LEN, GIB = 64, 1 << 30


def swapping(swap_gib: float, *, caching: bool = False, block_size: int = 4, **scheduler: object) -> Paged:
    return Paged(
        scheduler=ContinuousSettings(max_model_len=MAX_LEN, **scheduler),  # type: ignore[arg-type]
        cache=PagedSettings(block_size=block_size, enable_prefix_caching=caching, swap_gib=swap_gib),
    )


def busy(seed: int = 0) -> Workload:
    """Forty requests under memory pressure, some of which stop before their limit."""
    workload = generate(
        40,
        arrivals=Poisson(rate_per_s=2000.0),
        prompt=LogNormal(mean_tokens=8, sigma=0.7, maximum=20),
        output=LogNormal(mean_tokens=10, sigma=0.7, maximum=24),
        prefixes=SharedPrefixes(num_groups=3, tokens=9),
        seed=seed,
    )
    limits = np.where(np.arange(40) % 3 == 0, workload.output_tokens + 5, workload.output_tokens)
    return Workload(
        arrival_s=workload.arrival_s,
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
        max_tokens=limits,
        priority=np.arange(40) % 4,
        prefix_group=workload.prefix_group,
        prefix_tokens=workload.prefix_tokens,
        prefix_names=workload.prefix_names,
    )


def computed_twice(recording: Recording) -> int:
    """Tokens computed although they had been before: each row of a request should begin where the last ended."""
    schedule = recording.schedule
    order = np.lexsort((schedule.step, schedule.request))
    request, before = schedule.request[order], schedule.computed_before[order].astype(int)
    after = before + schedule.tokens[order].astype(int) * schedule.repeats[order]
    again = np.maximum(after[:-1] - before[1:], 0)[request[1:] == request[:-1]]
    return int(again.sum())


def swapped(recording: Recording) -> tuple[int, int]:
    """Blocks copied out and in over a recording."""
    steps = recording.steps
    assert steps.swapped_out_units is not None
    assert steps.swapped_in_units is not None
    return int(steps.swapped_out_units.sum()), int(steps.swapped_in_units.sum())


class TestByHand:
    """Two sequences in a pool for one and a half."""

    @staticmethod
    def preempted(num_host_blocks: int, *, caching: bool = False, compiled: bool = False) -> Driver:
        """An engine that has just preempted the second sequence. Ten blocks take a second over the link."""
        cache = PagedSettings(
            block_size=4, enable_prefix_caching=caching, swap_gib=num_host_blocks / GIB * 100, swap_gb_per_s=1e-6
        )
        policy = Paged(scheduler=ContinuousSettings(max_model_len=64, async_scheduling=False), cache=cache)
        driver = arrived(policy, 6, (8, 10), (7, 10), unit_bytes=100, compiled=compiled)
        while True:
            driver.schedule()
            if driver.sequence(2).status == PREEMPTED:
                return driver
            driver.update()

    @staticmethod
    def resume(driver: Driver) -> None:
        while True:
            driver.update()
            driver.schedule()
            if driver.sequence(2).status == RUNNING:
                return
            assert transfers(driver) == (0, 0)

    @in_every_way
    def test_out_and_in(self, compiled: bool) -> None:
        driver = self.preempted(4, compiled=compiled)
        assert (driver.running(), driver.blocks(2), transfers(driver)) == ([1], [], (3, 0))
        assert host_swap.transfer_s(driver.engine) == pytest.approx(3 * 100 / 1e3)
        assert driver.engine.state.num_free_host_blocks == 1
        held = int(driver.sequence(2).num_tokens) - 1
        self.resume(driver)
        assert (driver.batch()[2], driver.sequence(2).computed, transfers(driver)) == (1, held + 1, (0, 3))
        assert host_swap.transfer_s(driver.engine) == pytest.approx(3 * 100 / 1e3)
        assert driver.engine.state.num_free_host_blocks == 4

    @in_every_way
    def test_what_has_no_room_on_the_host_is_computed_again(self, compiled: bool) -> None:
        driver = self.preempted(2, compiled=compiled)
        assert (transfers(driver), driver.engine.state.num_free_host_blocks) == ((0, 0), 2)
        self.resume(driver)
        assert driver.batch()[2] == driver.sequence(2).num_tokens > 1

    @in_every_way
    def test_what_the_pool_still_holds_does_not_come_over_the_link(self, compiled: bool) -> None:
        driver = self.preempted(4, caching=True, compiled=compiled)
        assert transfers(driver) == (3, 0)
        driver.abort(1)
        driver.schedule()
        assert (driver.batch()[2], transfers(driver)) == (1, (0, 1)), "two whole blocks of the three are hit"

    @in_every_way
    def test_an_aborted_request_leaves_the_host(self, compiled: bool) -> None:
        driver = self.preempted(4, compiled=compiled)
        driver.abort(2)
        assert driver.engine.state.num_free_host_blocks == 4

    def test_a_host_that_holds_no_block(self) -> None:
        with pytest.raises(BudgetError, match="1e-09 GiB of host memory hold no block of 100 bytes"):
            driver_of(Paged(cache=PagedSettings(swap_gib=1e-9)), 6, (1, 1), unit_bytes=100)


def transfers(driver: Driver) -> tuple[int, int]:
    """Blocks that the step copies out and in."""
    state = driver.engine.state
    return int(state.num_swapped_out), int(state.num_swapped_in)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_sizes_and_speeds_are_positive(value: float) -> None:
    with pytest.raises(UsageError, match=r"swap_gib should be (at least 0|at most 999,999), not"):
        PagedSettings(swap_gib=value)
    with pytest.raises(UsageError, match=r"swap_gb_per_s should be (above 0|below 1,000,000), not"):
        PagedSettings(swap_gb_per_s=value)


@settings(max_examples=25, deadline=None)
@given(
    swap_gib=st.sampled_from([0.001, 0.005, 1.0]),
    caching=st.booleans(),
    block_size=st.sampled_from([1, 4, 8]),
    capacity=st.integers(80, 200),
    seed=st.integers(0, 50),
    scheduler=st.fixed_dictionaries(
        {
            "async_scheduling": st.booleans(),
            "order": st.sampled_from(Order),
            "max_num_batched_tokens": st.sampled_from([9, 16384]),
            "reserve_full_prompt": st.booleans(),
        }
    ),
)
def test_every_request_is_served_and_slots_add_up(
    swap_gib: float,
    caching: bool,
    block_size: int,
    capacity: int,
    seed: int,
    scheduler: dict[str, object],
    make_machine: MakeMachine,
) -> None:
    workload = busy(seed)
    policy = swapping(swap_gib, caching=caching, block_size=block_size, **scheduler)
    recording = simulate(workload, policy, make_machine(capacity), check=True)
    assert (recording.requests.status == RequestStatus.FINISHED).all()
    np.testing.assert_array_equal(recording.requests.output_tokens, workload.output_tokens)
    slots = waste(recording).slots
    assert (slots >= 0).all()
    assert (slots.sum(axis=1) == recording.meta.pool.capacity_slots).all()
    out, back = swapped(recording)
    assert back <= out
    if swap_gib == 1.0:
        assert computed_twice(recording) == 0


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_nothing_is_computed_twice_while_the_host_has_room(async_scheduling: bool, make_machine: MakeMachine) -> None:
    recomputed, kept = (
        simulate(busy(), swapping(gib, async_scheduling=async_scheduling), make_machine(140), check=True)
        for gib in (0.0, 1.0)
    )
    assert recomputed.num_preemptions > 0 < kept.num_preemptions
    assert computed_twice(recomputed) > 0 == computed_twice(kept)
    assert recomputed.steps.swapped_out_units is None
    assert swapped(kept)[0] > 0


def test_copies_take_time(make_machine: MakeMachine) -> None:
    policy = swapping(1.0)
    fast, slow = (
        simulate(busy(), Paged(scheduler=policy.scheduler, cache=cache), make_machine(140))
        for cache in (policy.cache, replace(policy.cache, swap_gb_per_s=0.001))
    )
    assert slow.duration_s > fast.duration_s
    lengthened = slow.steps.end_s - slow.steps.start_s
    copying = (slow.steps.swapped_out_units > 0) | (slow.steps.swapped_in_units > 0)  # type: ignore[operator]
    assert lengthened[copying].min() >= 4 * 131072 / 1e6, "one block of four tokens, over 0.001 GB/s"
