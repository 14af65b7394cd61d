"""Units become cells: every unit falls into exactly one, and the picture fits."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tui.tiling import Detail, Tiling, best_level, fit, levels

SIZES = {"width": st.integers(20, 220), "height": st.integers(4, 70)}


@settings(max_examples=60, deadline=None)
@given(num_units=st.integers(1, 20_000), stride=st.none() | st.integers(1, 400), **SIZES)
def test_the_coarsest_level_shows_the_whole_pool(num_units: int, stride: int | None, width: int, height: int) -> None:
    tiling = fit(num_units, width, height, stride)
    assert tiling.width <= width
    assert tiling.height <= height


@settings(max_examples=60, deadline=None)
@given(num_units=st.integers(1, 3_000), stride=st.none() | st.integers(1, 100), **SIZES)
def test_every_unit_falls_into_the_cell_that_lists_it(
    num_units: int, stride: int | None, width: int, height: int
) -> None:
    for tiling in levels(num_units, 16, width, height, stride=stride, half_blocks=True):
        cells = tiling.cell_of(np.arange(num_units))
        assert cells.min() >= 0
        assert cells.max() < tiling.num_cells
        for cell in {int(cells[0]), int(cells[-1]), int(cells[num_units // 2])}:
            assert np.array_equal(tiling.units_of(cell), np.flatnonzero(cells == cell))


@settings(max_examples=60, deadline=None)
@given(num_units=st.integers(1, 100_000), stride=st.none() | st.integers(1, 400), **SIZES)
def test_each_level_shows_more_than_the_one_before(num_units: int, stride: int | None, width: int, height: int) -> None:
    found = levels(num_units, 16, width, height, stride=stride, half_blocks=True)
    areas = [tiling for tiling in found if tiling.detail is Detail.AREA]
    per_cell = [tiling.across * tiling.down for tiling in areas]
    assert per_cell == sorted(per_cell, reverse=True)
    assert len(set(per_cell)) == len(per_cell)
    assert per_cell[-1] == 1
    assert [tiling.detail for tiling in found[len(areas) :]] == [Detail.FILL, Detail.SLOTS]


def test_slots_have_no_inside() -> None:
    assert all(tiling.detail is Detail.AREA for tiling in levels(5_000, 1, 80, 20, stride=100, half_blocks=True))


def test_a_rectangle_keeps_its_rows() -> None:
    tiling = fit(157_000, 84, 40, stride=314)
    assert (tiling.across, tiling.down) == (4, 13)
    assert tiling.cell_of(np.array([314 * 13])) == tiling.columns


def test_a_small_pool_is_drawn_large() -> None:
    tiling = fit(40, 80, 20, stride=10)
    assert (tiling.wide, tiling.tall) == (4, 5)
    fill, slots = levels(100, 16, 80, 14, stride=None, half_blocks=True)[-2:]
    assert (fill.wide, fill.tall, fill.height) == (5, 2, 14)
    assert (slots.wide, slots.tall) == (17, 1)
    crowded = levels(150, 16, 80, 14, stride=None, half_blocks=True)[-2]
    assert (crowded.wide, crowded.height) == (4, 8)
    few = levels(8, 4, 80, 14, stride=None, half_blocks=True)[-1]
    assert (few.wide, few.height) == (17, 12)


@settings(max_examples=60, deadline=None)
@given(num_units=st.integers(1, 200), unit_tokens=st.integers(2, 32), **SIZES)
def test_every_level_fits_the_width(num_units: int, unit_tokens: int, width: int, height: int) -> None:
    for tiling in levels(num_units, unit_tokens, max(width, 33), height, stride=None, half_blocks=True):
        assert tiling.width <= max(width, 33)


def test_the_most_detailed_level_that_shows_everything_comes_first() -> None:
    tiny = levels(8, 4, 80, 14, stride=None, half_blocks=True)
    assert tiny[best_level(tiny, 14)].detail is Detail.SLOTS
    middle = levels(1_000, 16, 80, 14, stride=None, half_blocks=True)
    assert middle[best_level(middle, 14)].detail is Detail.FILL
    large = levels(100_000, 16, 80, 14, stride=None, half_blocks=True)
    assert best_level(large, 14) == 0


def test_cells_past_the_end_have_no_units() -> None:
    tiling = Tiling(num_units=5, stride=3)
    assert tiling.num_cells == 6
    assert not len(tiling.units_of(5))
