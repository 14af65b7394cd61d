"""Bars of characters: right to an eighth of a cell."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim_tui.look.stack import EIGHTHS, columns, stacked


def _drawn(parts: list[int], length: int) -> dict[int, int]:
    """Eighths that each layer takes in a drawn bar."""
    first, second, eighths = stacked(np.array([parts]), length)
    drawn = dict.fromkeys(range(len(parts)), 0)
    for low, high, part in zip(first[0].tolist(), second[0].tolist(), eighths[0].tolist(), strict=True):
        drawn[low] += part
        drawn[high] += EIGHTHS - part
    return drawn


@settings(max_examples=80, deadline=None)
@given(parts=st.lists(st.integers(0, 1_000), min_size=2, max_size=7), length=st.integers(1, 120))
def test_a_bar_is_always_full(parts: list[int], length: int) -> None:
    assert sum(_drawn(parts, length).values()) == length * EIGHTHS


@settings(max_examples=80, deadline=None)
@given(low=st.integers(0, 1_000), high=st.integers(1, 1_000), length=st.integers(1, 120))
def test_two_parts_share_a_bar_to_an_eighth(low: int, high: int, length: int) -> None:
    exact = low / (low + high) * length * EIGHTHS
    assert abs(_drawn([low, high], length)[0] - exact) <= 0.5


def test_a_bar_of_nothing_is_all_last_layer() -> None:
    assert _drawn([0, 0, 0], 4) == {0: 0, 1: 0, 2: 4 * EIGHTHS}


def test_columns_grow_from_the_bottom() -> None:
    assert columns(np.array([0, 4, 8]), 8, 2).tolist() == [[0, 0, 8], [0, 8, 8]]


def test_what_is_not_nothing_is_seen() -> None:
    assert columns(np.array([1, 0]), 1_000_000, 1).tolist() == [[1, 0]]
