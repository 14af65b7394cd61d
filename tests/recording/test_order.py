"""Sorting by counting gives what sorting by comparing gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvsim.recording.order import expanded, is_new, stable_order


@given(st.sampled_from([1, 2, 100, 1 << 16, (1 << 16) + 1, 1 << 20, (1 << 31) - 1]), st.data())
def test_a_stable_order_is_that_of_argsort(bound: int, data: st.DataObject) -> None:
    keys = np.array(data.draw(st.lists(st.integers(0, bound - 1), max_size=30)), np.int32)
    keys = np.concatenate((keys, keys[::2]))
    assert stable_order(keys, bound).tolist() == np.argsort(keys, kind="stable").tolist()


@given(st.lists(st.integers(0, 3), max_size=20))
def test_new_values_and_units_of_extents(values: list[int]) -> None:
    array = np.array(values, np.int32)
    assert is_new(array).tolist() == [index == 0 or value != values[index - 1] for index, value in enumerate(values)]
    run, offset = expanded(array)
    assert list(zip(run.tolist(), offset.tolist(), strict=True)) == [
        (index, nth) for index, length in enumerate(values) for nth in range(length)
    ]
