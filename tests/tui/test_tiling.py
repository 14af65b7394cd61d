"""Units become cells: every unit falls into exactly one, and the picture fits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim_tui.pool.cell_shapes import keys_of_narrow_cells
from kvsim_tui.pool.levels import best_level, levels
from kvsim_tui.pool.paint import OWNER
from kvsim_tui.pool.tiling import Detail, Tiling

SIZES = {"width": st.integers(20, 220), "height": st.integers(4, 70)}


@settings(max_examples=60, deadline=None)
@given(num_units=st.integers(1, 200_000), stride=st.none() | st.integers(1, 400), **SIZES)
def test_the_coarsest_level_shows_the_whole_pool(num_units: int, stride: int | None, width: int, height: int) -> None:
    coarsest = levels(num_units, 16, width, height, stride=stride, half_blocks=True)[0]
    assert coarsest.width <= width
    assert coarsest.height <= height * (2 if coarsest.detail is Detail.HALF else 1)


PANELS = {
    "num_units": st.integers(64, 100_000),
    "width": st.sampled_from((39, 78, 80, 84, 88, 120, 160)),
    "height": st.integers(7, 48),
    "names": st.integers(0, 8),
    "half_blocks": st.booleans(),
}


@settings(max_examples=80, deadline=None)
@given(**PANELS)
def test_a_paged_pool_covers_three_fifths_of_its_panel_with_equal_cells(**panel: int) -> None:
    assert_three_fifths_are_covered(**panel)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(**PANELS)
def test_many_paged_pools_cover_three_fifths_of_their_panels(**panel: int) -> None:
    assert_three_fifths_are_covered(**panel)


def assert_three_fifths_are_covered(num_units: int, width: int, height: int, names: int, half_blocks: bool) -> None:
    """A terminal without half blocks has fewer sizes of cells to choose from, so that it may leave more empty."""
    found = levels(num_units, 16, width, height, stride=None, half_blocks=half_blocks, names=names)
    shown = found[best_level(found, height)]
    lines = height * (2 if shown.detail is Detail.HALF else 1)
    assert shown.span <= width
    assert shown.height <= lines
    if shown.detail is Detail.SLOTS:  # a few large blocks, each with room around its name
        return
    wide = shown.eighths / 8 if shown.eighths else shown.wide
    drawn = wide * shown.tall * num_units / shown.per_cell
    most = 24 * 4 * num_units  # characters of the largest block
    assert drawn >= (0.6 if half_blocks else 0.45) * min(width * lines, most)


POOLS = {"num_units": st.integers(1, 100_000), "half_blocks": st.booleans(), **SIZES}


@settings(max_examples=80, deadline=None)
@given(**POOLS)
def test_cells_of_a_pool_without_lines_are_equally_large_and_have_equally_many_units(**pool: int) -> None:
    assert_cells_are_equal(**pool)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(**POOLS)
def test_cells_of_many_pools_without_lines_are_equally_large(**pool: int) -> None:
    assert_cells_are_equal(**pool)


def assert_cells_are_equal(num_units: int, half_blocks: bool, width: int, height: int) -> None:
    for unit_tokens in (1, 16):
        for tiling in levels(num_units, unit_tokens, width, height, stride=None, half_blocks=half_blocks):
            assert len(set(np.diff(tiling.row_edges).tolist())) == 1
            if not tiling.eighths:
                assert len(set(np.diff(tiling.column_edges).tolist())) == 1
            per_cell = np.bincount(tiling.cell_of(np.arange(num_units)))
            assert set(per_cell[:-1].tolist()) <= {tiling.units_per_cell}
            assert 0 < per_cell[-1] <= tiling.units_per_cell


def test_cells_of_some_eighths_of_a_character_are_equally_wide() -> None:
    """In a row of units of changing paints, each paint has as many eighths of characters as the others."""
    for eighths in (6, 7, 9, 13):
        width = -(-10 * eighths // 8)
        tiling = Tiling(num_units=10, columns=10, rows=1, width=width, height=1, detail=Detail.PART, eighths=eighths)
        keys = keys_of_narrow_cells(tiling, OWNER + np.arange(10, dtype=np.uint8))[0]
        widths = np.zeros(256, int)
        for key in keys.tolist():
            share, first, second = (key >> 16) - 8, key & 255, key >> 8 & 255
            widths[first] += share
            widths[second] += 8 - share
        assert widths[OWNER : OWNER + 10].tolist() == [eighths] * 10
        assert [tiling.column_edges[unit] for unit in range(10)] == [unit * eighths // 8 for unit in range(10)]


def test_rows_begin_at_round_numbers_where_columns_permit_it() -> None:
    for num_units, width, height, in_a_row in ((1_599, 84, 15, 110), (1_599, 80, 8, 210), (6_000, 120, 20, 300)):
        whole = levels(num_units, 16, width, height, stride=None, half_blocks=True)[0]
        assert whole.columns * whole.per_cell % 10 == 0
        assert whole.columns * whole.per_cell == in_a_row


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
    mixes = [tiling.units_per_cell for tiling in found if tiling.detail is Detail.MIX]
    assert mixes == sorted(mixes, reverse=True)
    assert len(set(mixes)) == len(mixes)
    assert found[-1].units_per_cell == 1
    if stride is None:
        assert [tiling.detail for tiling in found if tiling.detail in (Detail.FILL, Detail.SLOTS)] == [
            Detail.FILL,
            Detail.SLOTS,
        ]


@settings(max_examples=60, deadline=None)
@given(num_units=st.integers(1, 20_000), stride=st.integers(1, 400), **SIZES)
def test_cells_of_lines_share_the_picture_without_a_rest(num_units: int, stride: int, width: int, height: int) -> None:
    for tiling in levels(num_units, 16, width, height, stride=stride, half_blocks=True):
        for edges, size in ((tiling.column_edges, tiling.width), (tiling.row_edges, tiling.height)):
            assert edges[0] == 0
            assert edges[-1] == size
            assert set(np.diff(edges).tolist()) <= {size // (len(edges) - 1), size // (len(edges) - 1) + 1}


@settings(max_examples=60, deadline=None)
@given(num_units=st.integers(2, 20_000), stride=st.none() | st.integers(1, 400), names=st.integers(1, 12), **SIZES)
def test_names_beside_the_pool_take_no_more_than_the_width(
    num_units: int, stride: int | None, names: int, width: int, height: int
) -> None:
    found = levels(num_units, 16, width, height, stride=stride, half_blocks=True, names=names)
    assert found[0].span <= width
    beside = (0, names + 2) if stride is not None else (0, len(str(num_units)) + 1)
    assert all(tiling.margin in beside for tiling in found if not tiling.separates_units)
    for tiling in found:
        if tiling.detail is Detail.SLOTS:
            assert tiling.wide >= tiling.gutter + 16 or tiling.width > width


@settings(max_examples=200, deadline=None)
@given(num_units=st.integers(2, 512), names=st.integers(1, 6), **SIZES)
def test_units_that_are_cut_apart_are_equally_large_and_have_room_for_their_numbers(
    num_units: int, names: int, width: int, height: int
) -> None:
    found = [
        tiling
        for tiling in levels(num_units, 16, width, height, stride=None, half_blocks=True, names=names)
        if tiling.separates_units
    ]
    digits = len(str(num_units))
    for tiling in found:
        assert len({*np.diff(tiling.column_edges).tolist()}) == len({*np.diff(tiling.row_edges).tolist()}) == 1
        assert tiling.span <= width
        assert tiling.height <= height
        assert tiling.margin == digits + 1 or tiling.wide >= digits + names + 2
        assert tiling.wide >= 2
        assert tiling.gap == (tiling.margin == 0)
    if num_units * 2 * (digits + names + 2) <= 0.5 * width * height and width >= 40:
        assert found, "there is room enough"
        tiling = found[0]
        assert num_units * tiling.wide * tiling.tall >= 0.5 * width * height or tiling.wide == 24 or tiling.tall == 4


def test_pools_beside_each_other_have_their_names_in_the_same_places() -> None:
    """A pool that alone would have room below its blocks has its names where the larger pool has them."""
    size = {"stride": None, "half_blocks": True, "names": 1}
    large, alone, beside = (
        next(tiling for tiling in levels(number, 16, 58, 20, most_units=most, **size) if tiling.separates_units)  # type: ignore[arg-type]
        for number, most in ((158, 0), (79, 0), (79, 158))
    )
    assert alone.gap
    assert not beside.gap
    assert beside.margin == large.margin > 0


def test_slots_have_no_inside() -> None:
    assert not any(
        tiling.detail in (Detail.FILL, Detail.SLOTS)
        for tiling in levels(5_000, 1, 80, 20, stride=100, half_blocks=True)
    )


def test_a_rectangle_keeps_its_rows() -> None:
    tiling = levels(157_000, 1, 84, 40, stride=314, half_blocks=True)[0]
    assert (tiling.columns, tiling.rows, tiling.width, tiling.height) == (84, 40, 84, 40)
    cells = tiling.cell_of(np.array([0, 314 * 12, 314 * 13]))
    assert cells.tolist() == [0, 0, tiling.columns]


def test_cells_of_lines_are_equally_wide_where_that_leaves_at_most_a_tenth_of_the_width_empty() -> None:
    for stride in range(1, 85):
        rest = 84 % stride
        shown = levels(40 * stride, 1, 84, 40, stride=stride, half_blocks=True)[0]
        assert shown.width == (84 - rest if 10 * rest <= 84 else 84)


def test_a_small_pool_is_drawn_large() -> None:
    few = levels(8, 4, 80, 14, stride=None, half_blocks=True)[-1]
    assert (few.detail, few.columns, few.width, few.height) == (Detail.SLOTS, 4, 76, 14)
    fill = levels(100, 16, 80, 14, stride=None, half_blocks=True)[-2]
    assert fill.wide >= 5


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
    many = levels(2_000, 16, 80, 14, stride=None, half_blocks=True)
    assert many[best_level(many, 14)].detail is Detail.HALF
