"""Packing: nothing is lost, nothing overlaps, and rows are filled as first fit decreasing fills them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import UsageError
from kvsim.memory.packing import first_fit_decreasing, largest_batch, padded

LENGTHS = st.lists(st.integers(1, 31), min_size=1, max_size=60)


def naive(lengths: list[int], row_tokens: int) -> list[list[int]]:
    rows: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        for row in rows:
            if sum(lengths[other] + 1 for other in row) + lengths[index] + 1 <= row_tokens:
                row.append(index)
                break
        else:
            rows.append([index])
    return rows


@settings(max_examples=100, deadline=None)
@given(LENGTHS)
def test_rows_are_those_of_first_fit_decreasing(lengths: list[int]) -> None:
    packing = first_fit_decreasing(lengths, 32)
    assert [list(row) for row in packing.rows] == naive(lengths, 32)
    assert packing.num_tokens == sum(lengths) + len(lengths)
    assert packing.num_slots == 32 * len(packing.rows)
    assert packing.num_tokens + packing.num_padding == packing.num_slots


@settings(max_examples=50, deadline=None)
@given(LENGTHS, st.integers(1, 70))
def test_padded_rows_are_as_wide_as_the_longest_of_their_batch(lengths: list[int], batch_size: int) -> None:
    widths = [
        max(lengths[index - index % batch_size : index - index % batch_size + batch_size]) + 1
        for index in range(len(lengths))
    ]
    assert padded(lengths, batch_size).num_slots == sum(widths)


def test_a_full_row_has_no_padding() -> None:
    packing = first_fit_decreasing([15, 7, 7], 32)
    assert (packing.rows, packing.num_padding, packing.used_percent) == (((0, 1, 2),), 0, 100)
    assert padded([15, 7, 7], 3).num_padding == 16


@pytest.mark.parametrize(("lengths", "row_tokens"), [([], 8), ([0], 8), ([8], 8)])
def test_what_cannot_be_packed_is_refused(lengths: list[int], row_tokens: int) -> None:
    with pytest.raises(UsageError):
        first_fit_decreasing(lengths, row_tokens)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        padded([3], 0)


def test_the_largest_batch_fits_to_its_end_and_one_row_more_does_not() -> None:
    rows = largest_batch(1000, 7 + 10)
    assert rows * (7 + 9) <= 1000 < (rows + 1) * (7 + 9)  # the last token is never written
    with pytest.raises(UsageError, match="at least 2"):
        largest_batch(1000, 1)
