"""Speculative decoding, which is modelled: tokens are conserved, and the rate means what it says."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.engine import speculation
from kvsim.engine.driver import Driver
from kvsim.engine.state import FINISHED, PREEMPTED
from kvsim.errors import UsageError
from kvsim.metrics import waste
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.recording import RequestStatus
from kvsim.simulation import Machine, simulate
from kvsim.workload import LogNormal, Poisson, Workload, generate

from ..conformance.modes import in_every_way
from .by_hand import arrived

MakeMachine = Callable[[int], Machine]
MakeWorkload = Callable[..., Workload]
MAX_LEN = 64


def speculative(
    num_tokens: int, rate: float, *, block_size: int = 4, caching: bool = True, **scheduler: object
) -> Paged:
    return Paged(
        scheduler=ContinuousSettings(**{"max_model_len": MAX_LEN, "async_scheduling": False} | scheduler),  # type: ignore[arg-type]
        cache=PagedSettings(
            block_size=block_size,
            num_speculative_tokens=num_tokens,
            acceptance_rate=rate,
            enable_prefix_caching=caching,
        ),
    )


def busy(seed: int = 0) -> Workload:
    """Thirty requests, more than the memory of the tests holds at once."""
    return generate(
        30,
        arrivals=Poisson(rate_per_s=2000.0),
        prompt=LogNormal(mean_tokens=8, sigma=0.7, maximum=20),
        output=LogNormal(mean_tokens=10, sigma=0.7, maximum=24),
        seed=seed,
    )


def step(driver: Driver) -> dict[int, int]:
    driver.schedule()
    batch = driver.batch()
    driver.update()
    return batch


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.7, 1.0])
def test_the_rate_is_that_of_guesses_whose_predecessors_were_right(rate: float) -> None:
    right = speculation.right_drafts(rate, seed=1)
    reached = [np.count_nonzero(right >= count) for count in range(5)]
    for before, after in pairwise(reached):
        assert after == pytest.approx(rate * before, abs=0.01 * len(right))


def test_a_seed_decides() -> None:
    one, again, other = (speculation.right_drafts(0.5, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_a_step_scheduled_ahead_cannot_know(make_workload: MakeWorkload, make_machine: MakeMachine) -> None:
    policy = speculative(2, 0.5, async_scheduling=True)
    with pytest.raises(UsageError, match=r"synchronous scheduling only: .* \(--no-async-scheduling\)"):
        simulate(make_workload((0.0, 4, 4)), policy, make_machine(100))


@pytest.mark.parametrize("num_tokens", [1, 2, 5])
@pytest.mark.parametrize("outputs", [1, 2, 13, 20])
def test_accepting_everything_divides_the_decode_steps(
    num_tokens: int, outputs: int, make_workload: MakeWorkload, make_machine: MakeMachine
) -> None:
    recording = simulate(make_workload((0.0, 9, outputs)), speculative(num_tokens, 1.0), make_machine(200), check=True)
    # The prompt's own step yields the first output.
    assert len(recording.steps) == 1 + -(-(outputs - 1) // (num_tokens + 1))
    assert recording.requests.output_tokens.tolist() == [outputs]


def test_accepting_nothing_takes_as_many_steps_and_more_slots(
    make_workload: MakeWorkload, make_machine: MakeMachine
) -> None:
    workload = make_workload((0.0, 9, 12))
    off, on = (simulate(workload, speculative(num, 0.0), make_machine(200), check=True) for num in (0, 3))
    assert len(on.steps) == len(off.steps)
    assert on.steps.decode_tokens[1:].tolist() == [4] * 11
    assert off.steps.decode_tokens[1:].tolist() == [1] * 11
    # Nine tokens and three drafted after them fill three blocks; then four are computed and three follow.
    assert (off.steps.free_units - on.steps.free_units)[:2].tolist() == [0, 1]
    assert waste(on).held.max() == (9 + 11 + 3 + 3 + 3) // 4 * 4


@in_every_way
def test_what_was_rejected_is_written_again_in_the_same_blocks(compiled: bool) -> None:
    driver = arrived(speculative(3, 0.0, max_model_len=8192), 19, (8, 6), compiled=compiled)
    step(driver)
    sequence = driver.sequence(1)
    assert (sequence.computed, sequence.num_tokens, sequence.drafts, driver.blocks(1)) == (8, 9, 3, [1, 2, 3])
    assert step(driver) == {1: 4}
    assert (sequence.computed, sequence.num_tokens, sequence.rejected, driver.blocks(1)) == (9, 10, 3, [1, 2, 3, 4])
    assert driver.engine.tables[sequence.place].num_cached == 2, "a block of drafts is nothing that others may hit"


@in_every_way
def test_no_more_is_accepted_than_was_verified(compiled: bool) -> None:
    driver = arrived(speculative(5, 1.0, max_num_batched_tokens=3), 19, (2, 20), compiled=compiled)
    step(driver)
    assert step(driver) == {1: 3}
    assert (driver.sequence(1).num_tokens - 2, driver.sequence(1).drafts) == (4, 5)


@in_every_way
def test_a_preempted_sequence_loses_its_drafts(compiled: bool) -> None:
    driver = arrived(speculative(3, 0.0), 6, (5, 9), (5, 9), compiled=compiled)
    for _ in range(10):
        driver.schedule()
        if driver.sequence(2).status == PREEMPTED:
            break
        driver.update()
    driver.update()
    assert (driver.sequence(1).drafts, driver.sequence(2).drafts, driver.sequence(2).status) == (3, 0, PREEMPTED)


@in_every_way
def test_an_answer_ends_where_it_should_whatever_was_right(compiled: bool) -> None:
    driver = arrived(speculative(5, 1.0), 30, (8, 6), compiled=compiled)
    step(driver)
    step(driver)
    assert (driver.sequence(1).num_tokens, driver.sequence(1).status) == (14, FINISHED)


@settings(max_examples=25, deadline=None)
@given(
    num_tokens=st.integers(0, 5),
    rate=st.sampled_from([0.0, 0.4, 0.8, 1.0]),
    block_size=st.sampled_from([1, 4, 16]),
    capacity=st.integers(120, 300),
    seed=st.integers(0, 50),
    max_num_batched_tokens=st.sampled_from([9, 64, 16384]),
    long_prefill_token_threshold=st.sampled_from([0, 2]),
)
def test_each_request_gets_its_tokens_and_slots_add_up(
    num_tokens: int, rate: float, block_size: int, capacity: int, seed: int, make_machine: MakeMachine, **others: object
) -> None:
    workload = busy(seed)
    policy = speculative(num_tokens, rate, block_size=block_size, **others)  # type: ignore[arg-type]
    recording = simulate(workload, policy, make_machine(capacity), check=True)
    assert (recording.requests.status == RequestStatus.FINISHED).all()
    np.testing.assert_array_equal(recording.requests.output_tokens, workload.output_tokens)
    slots = waste(recording).slots
    assert (slots >= 0).all()
    assert (slots.sum(axis=1) == recording.meta.pool.capacity_slots).all()
