"""Batches as `generate()` takes them: from the head of the queue, cut short where the rectangle might not fit."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.engine.clock import BATCHED, IDLE
from kvsim.engine.driver import Driver
from kvsim.engine.state import ABORTED, FINISHED
from kvsim.policies import Static
from kvsim.policies.settings import StaticSettings

from ..conformance.modes import in_every_way
from .by_hand import demand_of, driver_of


class Batch(NamedTuple):
    """A batch as it was formed."""

    rows: list[int]
    prompt_width: int
    num_steps: int
    stride: int
    start_s: float


def batches_of(capacity: int, *requests: tuple[int, ...], compiled: bool = False, **chosen: object) -> list[Batch]:
    """All batches of requests that are there at once, or arrive a second after each other if they may wait."""
    driver = driver_of(Static(scheduler=StaticSettings(**chosen)), capacity, *requests, compiled=compiled)  # type: ignore[arg-type]
    for node in range(1, len(requests) + 1):
        driver.send(node, float(node) if "timeout_s" in chosen else 0.0)
    return run(driver)


def run(driver: Driver) -> list[Batch]:
    batches = []
    while (outcome := driver.advance()) != IDLE:
        assert outcome == BATCHED
        batch = driver.engine.rectangle
        rows = [int(driver.engine.running[row]) for row in range(batch.num_rows)]
        lengths = int(batch.prompt_width), int(batch.num_steps), int(batch.stride)
        batches.append(Batch(rows, *lengths, driver.host_s))
    return batches


@in_every_way
def test_a_batch_is_full_or_takes_all_that_wait(compiled: bool) -> None:
    batches = batches_of(1000, (3, 4, 4), (5, 2, 2), (1, 1, 1), batch_size=2, compiled=compiled)
    assert [batch.rows for batch in batches] == [[1, 2], [3]]


@in_every_way
def test_the_rectangle_is_as_wide_as_the_longest_prompt_and_as_long_as_the_longest_output(compiled: bool) -> None:
    [batch] = batches_of(1000, (3, 4, 9), (5, 2, 2), batch_size=4, compiled=compiled)
    assert batch[:4] == ([1, 2], 5, 4, 5 + 4 - 1)


@in_every_way
def test_a_static_cache_is_allocated_for_the_longest_limit(compiled: bool) -> None:
    [batch] = batches_of(1000, (3, 4, 9), (5, 2, 2), batch_size=4, preallocated=True, compiled=compiled)
    assert (batch.num_steps, batch.stride) == (4, 5 + 9 - 1)


@in_every_way
@pytest.mark.parametrize(("capacity", "rows"), [(2 * (6 + 10 - 1), 2), (2 * (6 + 10 - 1) - 1, 1)])
def test_a_batch_is_cut_short_exactly_where_it_might_not_fit(capacity: int, rows: int, compiled: bool) -> None:
    """Two rows of 6 prompt tokens and at most 10 of output, the last of which is never written."""
    batches = batches_of(capacity, (6, 1, 3), (2, 1, 10), (1, 1, 1), batch_size=4, compiled=compiled)
    assert len(batches[0].rows) == rows


@pytest.mark.parametrize(("capacity", "fits"), [(9, True), (8, False)])
def test_a_request_fits_if_it_could_be_a_batch_of_its_own(capacity: int, fits: bool) -> None:
    assert demand_of((6, 2, 4)).misfits(Static(), capacity).tolist() == [not fits]
    if fits:  # what does not is refused before it is sent
        assert [batch.rows for batch in batches_of(capacity, (6, 2, 4))] == [[1]]


@in_every_way
@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 4)), min_size=1, max_size=12),
    batch_size=st.integers(1, 5),
    capacity=st.integers(21, 120),
    preallocated=st.booleans(),
    sort_by_length=st.booleans(),
)
def test_each_request_is_served_once_within_the_memory(
    requests: list[tuple[int, int, int]],
    batch_size: int,
    capacity: int,
    preallocated: bool,
    sort_by_length: bool,
    compiled: bool,
) -> None:
    known = [(prompt, output, output + more) for prompt, output, more in requests]
    batches = batches_of(
        capacity, *known, batch_size=batch_size, preallocated=preallocated, sort_by_length=sort_by_length,
        compiled=compiled,
    )  # fmt: skip
    waiting = list(range(1, len(known) + 1))
    for batch in batches:
        assert 1 <= len(batch.rows) <= batch_size
        width = max(known[node - 1][0] for node in batch.rows)
        assert batch.prompt_width == width
        assert len(batch.rows) * batch.stride <= capacity
        assert batch.rows[: 1 if sort_by_length else None] == waiting[: 1 if sort_by_length else len(batch.rows)]
        if sort_by_length:  # those most like the oldest, of equal ones the oldest
            length = known[waiting[0] - 1][0]
            alike = sorted(waiting, key=lambda node: (abs(known[node - 1][0] - length), node))
            assert batch.rows == alike[: len(batch.rows)]
        waiting = [node for node in waiting if node not in batch.rows]
    assert not waiting


@in_every_way
def test_an_incomplete_batch_waits_for_company_until_the_oldest_has_waited_long_enough(compiled: bool) -> None:
    batches = batches_of(1000, *[(4, 4)] * 5, batch_size=3, timeout_s=5.0, compiled=compiled)
    assert [batch.rows for batch in batches] == [[1, 2, 3], [4, 5]]
    assert batches[0].start_s == 3.0
    assert batches[1].start_s == pytest.approx(4.0 + 5.0)


@in_every_way
def test_alike_prompts_keep_each_other_company(compiled: bool) -> None:
    requests = (10, 4), (90, 4), (12, 4), (80, 4)
    batches = batches_of(1000, *requests, batch_size=2, sort_by_length=True, compiled=compiled)
    assert [batch.rows for batch in batches] == [[1, 3], [2, 4]]


@in_every_way
@pytest.mark.parametrize("preallocated", [False, True])
def test_without_the_guard_a_batch_is_as_large_as_it_was_told_and_may_fail(preallocated: bool, compiled: bool) -> None:
    policy = Static(scheduler=StaticSettings(batch_size=2, memory_guard=False, preallocated=preallocated))
    driver = driver_of(policy, 60, (10, 2), (10, 30), (10, 30), compiled=compiled)
    for node in (1, 2, 3):
        driver.send(node, 0.0)
    assert [batch.rows for batch in run(driver)] == [[1, 2], [3]]
    assert [driver.sequence(node).status for node in (1, 2, 3)] == [ABORTED, ABORTED, FINISHED]
    # Two rows of 30 fit: ten columns of prompts and twenty more.
    outputs = [int(driver.sequence(node).num_tokens) - 10 for node in (1, 2, 3)]
    assert outputs == ([0, 0, 30] if preallocated else [2, 21, 30])
