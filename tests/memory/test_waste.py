"""The split of an extent against a walk over its slots, and the sum that must hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import IntegrityError
from kvsim.memory.waste import HELD, NUM_STATES, Breakdown, SlotState, split_extent

TOKEN, RESERVED, INTERNAL, PADDING, EXPIRED, CACHED, EXTERNAL, FREE = SlotState


def state_of(slot: int, *, pad: int, full: int, computed: int, requested: int) -> SlotState:
    """What one slot of an extent is for, as the picture in `kvsim.memory.waste` says."""
    if slot >= requested:
        return EXTERNAL
    ended = computed > full  # and is written on, because its batch goes on
    if slot < pad or (ended and slot < computed):
        return PADDING
    if slot < computed:
        return TOKEN
    if slot < full and not ended:
        return RESERVED
    return INTERNAL


@st.composite
def extents(draw: st.DrawFn) -> dict[str, int]:
    pad = draw(st.integers(0, 6))
    full = pad + draw(st.integers(0, 8))
    requested = draw(st.integers(full, full + 6))
    # Nothing is written beyond what was asked for; a row with pad slots is written from its beginning.
    computed = draw(st.integers(0, requested))
    return {"pad": pad, "full": full, "computed": computed, "requested": requested}


@settings(max_examples=100)
@given(extent=extents(), rounding=st.integers(0, 5), unit=st.integers(1, 6))
def test_every_piece_equals_a_walk_over_its_slots(extent: dict[str, int], rounding: int, unit: int) -> None:
    length = extent["requested"] + rounding
    begin = np.arange(0, length, unit)
    pieces = split_extent(begin, np.minimum(begin + unit, length), **extent)
    walked = np.zeros((len(begin), NUM_STATES), int)
    for slot in range(length):
        walked[slot // unit, state_of(slot, **extent)] += 1
    np.testing.assert_array_equal(pieces, walked)
    np.testing.assert_array_equal(split_extent(0, length, **extent), walked.sum(axis=0))


def test_the_picture_of_the_module() -> None:
    slots = split_extent(0, 16, pad=2, computed=5, full=9, requested=12)
    assert dict(zip(SlotState, slots.tolist(), strict=True)) == {
        PADDING: 2, TOKEN: 3, RESERVED: 4, INTERNAL: 3, EXTERNAL: 4, EXPIRED: 0, CACHED: 0, FREE: 0,
    }  # fmt: skip


def test_many_extents_at_once_broadcast() -> None:
    slots = split_extent(0, np.array([4, 8]), full=np.array([[3], [6]]), computed=2, requested=8)
    assert slots.shape == (2, 2, NUM_STATES)
    assert slots.sum(axis=-1).tolist() == [[4, 8], [4, 8]]
    assert slots[1, 1].tolist() == [2, 4, 2, 0, 0, 0, 0, 0]


def test_a_row_that_has_ended_is_padding_up_to_where_it_is_written() -> None:
    assert split_extent(0, 10, pad=1, full=4, computed=6, requested=10).tolist() == [0, 0, 4, 6, 0, 0, 0, 0]


def test_a_breakdown_that_adds_up_passes() -> None:
    breakdown = Breakdown(slots=np.array([5, 1, 2, 3, 9, 4, 6, 7]))
    breakdown.check(37)
    assert (breakdown[TOKEN], breakdown[FREE]) == (5, 7)
    assert breakdown.capacity == 37
    assert breakdown.allocated == sum(breakdown[state] for state in HELD) == 20


@pytest.mark.parametrize("slots", [[5, 1, 2, 3, 0, 4, 6, 6], [5, 1, 2, 3, 0, 4, 6, 8], [-1, 1, 2, 3, 0, 4, 6, 13]])
def test_a_breakdown_that_does_not_add_up_is_refused_with_every_figure(slots: list[int]) -> None:
    with pytest.raises(IntegrityError) as raised:
        Breakdown(slots=np.array(slots)).check(28)
    assert str(raised.value).startswith("the pool has 28 slots, but token ")
    for state, number in zip(SlotState, slots, strict=True):
        assert f"{state.name.lower()} {number}" in str(raised.value)
