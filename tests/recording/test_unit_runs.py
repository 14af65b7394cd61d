"""Lists of units survive being shortened."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.recording.unit_runs import pack, unpack

RUNS = st.tuples(st.integers(0, 50), st.integers(0, 5), st.sampled_from([1, -1])).map(
    lambda run: [run[0] + 5 + run[2] * index for index in range(run[1])]
)


@given(st.lists(RUNS, max_size=6))
def test_any_list_comes_back(runs: list[list[int]]) -> None:
    units = [unit for run in runs for unit in run]
    packed = json.loads(json.dumps(pack(np.array(units, np.int64))))
    assert unpack(packed).tolist() == units
    assert unpack(units).tolist() == units


def test_what_stands_in_a_row_is_short() -> None:
    assert pack(np.array([17, *range(1000, 1901), 5])) == [17, [1000, 1900], 5]
    assert pack(np.arange(9, 0, -1)) == [[9, 1]]
    assert pack(np.array([1, 2, 3, 4, 3, 2])) == [[1, 4], 3, 2]


@pytest.mark.parametrize("value", ["all", [True], [[1]], [[1, "2"]], [-1], [1.0], [None]])
def test_what_is_no_list_of_units(value: object) -> None:
    with pytest.raises(ValueError, match="neither a unit nor a pair"):
        unpack(value)
