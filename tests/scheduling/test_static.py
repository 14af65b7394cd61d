"""Batches as `generate()` takes them: from the head of the queue, cut short where the rectangle might not fit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import UsageError
from kvsim.scheduling.sequence import Sequence
from kvsim.scheduling.settings import StaticSettings
from kvsim.scheduling.static import StaticScheduler


def queue(scheduler: StaticScheduler, *requests: tuple[int, int, int]) -> list[Sequence]:
    """Requests as (prompt, output, limit)."""
    sequences = [Sequence(row, *lengths) for row, lengths in enumerate(requests)]
    for sequence in sequences:
        scheduler.add(sequence)
    return sequences


def test_a_batch_is_full_or_takes_everybody_who_waits() -> None:
    scheduler = StaticScheduler(StaticSettings(batch_size=2), 1000)
    sequences = queue(scheduler, (3, 4, 4), (5, 2, 2), (1, 1, 1))
    batches = [scheduler.next_batch(), scheduler.next_batch()]
    assert [batch.sequences for batch in batches if batch] == [sequences[:2], sequences[2:]]
    assert scheduler.next_batch() is None


def test_the_rectangle_is_as_wide_as_the_longest_prompt_and_as_long_as_the_longest_output() -> None:
    scheduler = StaticScheduler(StaticSettings(batch_size=4), 1000)
    queue(scheduler, (3, 4, 9), (5, 2, 2))
    batch = scheduler.next_batch()
    assert batch is not None
    assert (batch.rectangle.num_rows, batch.rectangle.prompt_width, batch.rectangle.num_steps) == (2, 5, 4)
    assert not batch.rectangle.preallocated
    assert batch.rectangle.stride == 5 + 4 - 1


def test_a_static_cache_is_allocated_for_the_longest_limit() -> None:
    scheduler = StaticScheduler(StaticSettings(batch_size=4, preallocated=True), 1000)
    queue(scheduler, (3, 4, 9), (5, 2, 2))
    batch = scheduler.next_batch()
    assert batch is not None
    assert batch.rectangle.stride == 5 + 9 - 1


@pytest.mark.parametrize(("capacity", "rows"), [(2 * (6 + 10 - 1), 2), (2 * (6 + 10 - 1) - 1, 1)])
def test_a_batch_is_cut_short_exactly_where_it_might_not_fit(capacity: int, rows: int) -> None:
    """Two rows of 6 prompt tokens and at most 10 of output, the last of which is never written."""
    scheduler = StaticScheduler(StaticSettings(batch_size=4), capacity)
    queue(scheduler, (6, 1, 3), (2, 1, 10), (1, 1, 1))
    batch = scheduler.next_batch()
    assert batch is not None
    assert len(batch.sequences) == rows


@pytest.mark.parametrize(("capacity", "fits"), [(9, True), (8, False)])
def test_a_request_fits_if_it_could_be_a_batch_of_its_own(capacity: int, fits: bool) -> None:
    scheduler = StaticScheduler(StaticSettings(), capacity)
    (request,) = queue(scheduler, (6, 2, 4))
    assert scheduler.fits(request) is fits
    assert (scheduler.next_batch() is not None) is fits


@settings(max_examples=100)
@given(
    requests=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 4)), min_size=1, max_size=12),
    batch_size=st.integers(1, 5),
    capacity=st.integers(20, 120),
    preallocated=st.booleans(),
)
def test_everybody_is_served_once_in_order_within_the_memory(
    requests: list[tuple[int, int, int]], batch_size: int, capacity: int, preallocated: bool
) -> None:
    scheduler = StaticScheduler(StaticSettings(batch_size=batch_size, preallocated=preallocated), capacity)
    sequences = queue(scheduler, *((prompt, output, output + more) for prompt, output, more in requests))
    assert all(scheduler.fits(sequence) for sequence in sequences if sequence.prompt_tokens + sequence.max_tokens <= 20)
    served: list[Sequence] = []
    while (batch := scheduler.next_batch()) is not None:
        assert 1 <= len(batch.sequences) <= batch_size
        assert batch.rectangle.num_addresses <= capacity
        served += batch.sequences
    assert served == sequences[: len(served)]
    if len(served) < len(sequences):
        assert not scheduler.fits(sequences[len(served)])


def test_an_incomplete_batch_waits_for_company_until_the_oldest_runs_out_of_patience() -> None:
    scheduler = StaticScheduler(StaticSettings(batch_size=3, timeout_s=5.0), 1000)
    assert scheduler.due_s is None
    for row, arrival in enumerate((1.0, 2.0)):
        scheduler.add(Sequence(row, 4, 4, 4, arrival=arrival))
    assert scheduler.due_s == 6.0
    assert scheduler.next_batch(5.9) is None
    batch = scheduler.next_batch(6.0)
    assert batch is not None
    assert [sequence.row for sequence in batch.sequences] == [0, 1]


def test_a_full_batch_waits_for_nobody() -> None:
    scheduler = StaticScheduler(StaticSettings(batch_size=2, timeout_s=5.0), 1000)
    queue(scheduler, (4, 4, 4), (4, 4, 4))
    assert scheduler.next_batch(0.0) is not None


def test_sorted_by_length_the_oldest_gets_the_most_similar_company() -> None:
    scheduler = StaticScheduler(StaticSettings(batch_size=2, sort_by_length=True), 1000)
    queue(scheduler, (10, 4, 4), (90, 4, 4), (12, 4, 4), (80, 4, 4))
    batches = [scheduler.next_batch(), scheduler.next_batch()]
    assert [[sequence.row for sequence in batch.sequences] for batch in batches if batch] == [[0, 2], [1, 3]]


def test_without_the_guard_a_batch_is_as_large_as_it_was_told() -> None:
    settings_ = StaticSettings(batch_size=4, memory_guard=False)
    scheduler = StaticScheduler(settings_, 20)
    queue(scheduler, *[(6, 10, 10)] * 4)
    batch = scheduler.next_batch()
    assert batch is not None
    assert batch.rectangle.num_rows == 4


@pytest.mark.parametrize("timeout_s", [-1.0, float("nan"), float("inf")])
def test_a_time_out_is_a_number_of_seconds(timeout_s: float) -> None:
    with pytest.raises(UsageError, match="timeout_s should be"):
        StaticSettings(timeout_s=timeout_s)
