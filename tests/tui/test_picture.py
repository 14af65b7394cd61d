"""The picture of the pool: nothing is lost between units and cells, and steps lead where a fresh look leads."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.memory.waste import SlotState
from kvsim.recording import Memory, MemoryKind, Recording
from kvsim.replay import Replay
from kvsim_tui.look.stack import EIGHTHS
from kvsim_tui.playback.session import Session
from kvsim_tui.pool.canvas import Canvas
from kvsim_tui.pool.cells import Cells
from kvsim_tui.pool.levels import levels
from kvsim_tui.pool.line_lengths import LineLengths
from kvsim_tui.pool.paint import (
    EMPTY,
    FOLLOWED,
    FOLLOWED_SHARED,
    HOLDERS,
    NEXT,
    NUM_PAINTS,
    OWNER,
    SHARED,
    ColorBy,
)
from kvsim_tui.pool.picture import DrawnUnits, Paints

if TYPE_CHECKING:
    from collections.abc import Callable


@settings(max_examples=60, deadline=None)
@given(
    states=st.lists(st.integers(0, NUM_PAINTS - 1), min_size=1, max_size=400),
    later=st.lists(st.integers(0, NUM_PAINTS - 1), min_size=400, max_size=400),
    width=st.integers(5, 40),
    height=st.integers(1, 12),
)
def test_cells_conserve_units_and_follow_changes(states: list[int], later: list[int], width: int, height: int) -> None:
    before = np.array(states, np.uint8)
    after = np.array(later[: len(states)], np.uint8)
    tiling = levels(len(states), 16, width, height, stride=None, half_blocks=False)[0]
    cells = Cells(tiling, before)
    assert np.array_equal(cells.counts.sum(axis=0), np.bincount(before, minlength=NUM_PAINTS))

    cells.update(np.arange(len(states)), after)
    fresh = Cells(tiling, after)
    assert np.array_equal(cells.counts, fresh.counts)
    for name in ("first", "second", "eighths"):
        assert np.array_equal(getattr(cells, name), getattr(fresh, name))


def _one_cell(paints: list[int]) -> tuple[int, int, int]:
    cells = Cells(levels(len(paints), 16, 1, 1, stride=None, half_blocks=False)[0], np.array(paints, np.uint8))
    return int(cells.first[0]), int(cells.second[0]), int(cells.eighths[0])


def test_a_cell_shows_the_two_paints_that_matter_most_in_the_order_of_memory() -> None:
    assert _one_cell([OWNER + 1] * 6 + [OWNER + 2] * 2) == (OWNER + 1, OWNER + 2, 6)
    assert _one_cell([OWNER + 2] * 2 + [OWNER + 1] * 6) == (OWNER + 2, OWNER + 1, 2)
    assert _one_cell([OWNER] * 8)[2] == EIGHTHS


@pytest.mark.parametrize("rare", [SlotState.INTERNAL, SHARED])
def test_what_is_rare_and_important_survives_in_a_cell_of_many(rare: int) -> None:
    first, second, eighths = _one_cell([OWNER] * 30 + [OWNER + 1] * 20 + [rare])
    assert (first, second) == (OWNER, rare)
    assert eighths == EIGHTHS - 1


def test_a_cell_without_units_is_empty() -> None:
    tiling = levels(5, 16, 3, 2, stride=None, half_blocks=False)[0]
    first = Cells(tiling, np.zeros(5, np.uint8)).first
    assert np.count_nonzero(first == EMPTY) == tiling.num_cells - len(np.unique(tiling.cell_of(np.arange(5))))


@pytest.mark.parametrize("by", ColorBy)
def test_paints_kept_up_to_date_equal_paints_computed_afresh(shipped: Callable[[str], Recording], by: ColorBy) -> None:
    replay = Replay(shipped("paged"))
    states = DrawnUnits(replay)
    paints = Paints(replay, states, by)
    last = replay.num_frames - 1
    for frame in (1, 2, last // 2, last // 2 + 1, last // 2 - 7, last, 0):
        replay.seek(frame)
        paints.update(states.update())
        fresh = Paints(replay, DrawnUnits(replay), by)
        for name in ("written", "rest", "whole"):
            assert np.array_equal(getattr(paints, name), getattr(fresh, name)), (frame, name)


def test_owners_have_hues_and_what_they_have_not_written_is_reserved(tiny: Recording) -> None:
    replay = Replay(tiny)
    paints = Paints(replay, DrawnUnits(replay), ColorBy.OWNER)
    assert paints.written[:2].tolist() == [OWNER, OWNER]
    assert paints.rest[1] == SlotState.RESERVED
    assert paints.whole[2] == SlotState.FREE


@pytest.mark.parametrize("name", ["paged", "large", "static"])
def test_states_kept_up_to_date_equal_states_computed_afresh(shipped: Callable[[str], Recording], name: str) -> None:
    replay = Replay(shipped(name))
    states = DrawnUnits(replay)
    last = replay.num_frames - 1
    for frame in (1, 2, 3, last // 2, last // 2 + 1, last // 2 - 7, last - 1, last, 0):
        replay.seek(frame)
        states.update()
        fresh = DrawnUnits(replay)
        assert np.array_equal(states.dominant, fresh.dominant)
        assert np.array_equal(states.rest, fresh.rest)
        assert np.array_equal(states.fill, fresh.fill)


def test_a_large_pool_takes_little_memory_for_each_unit_that_nothing_ever_touched(tiny: Recording) -> None:
    num_units = 1 << 21
    large = replace(tiny, meta=replace(tiny.meta, pool=replace(tiny.meta.pool, num_units=num_units)))
    tracemalloc.start()
    try:
        session = Session(large)
        canvas = Canvas(
            session.replay, levels(num_units, 4, 80, 20, stride=None, half_blocks=True)[0], half_blocks=True
        )
        for frame in (3, 6, 0):
            session.player.go_to_frame(frame)
            session.show()
            canvas.update()
            canvas.draw(0, 20)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Four columns of the replay have 13 bytes, states and paints 8; the rest comes and goes.
    assert peak_bytes < 30 * num_units
    assert session.breakdown.sum() == 4 * num_units


def test_far_jumps_lead_where_steps_lead(shipped: Callable[[str], Recording]) -> None:
    replay = Replay(shipped("paged"))
    states, last = DrawnUnits(replay), replay.num_frames - 1
    for frame in (last // 2, 3, last, 0, last // 2 + 1):
        replay.seek(frame)
        states.update()
        fresh = DrawnUnits(replay)
        for name in ("dominant", "rest", "fill"):
            assert np.array_equal(getattr(states, name), getattr(fresh, name))


def test_a_partly_written_block_says_how_full_it_is(tiny: Recording) -> None:
    replay = Replay(tiny)
    states = DrawnUnits(replay)
    # `first` has 6 tokens in blocks of 4, and will write 2 more.
    assert states.fill[:3].tolist() == [8, 4, 0]
    assert states.dominant[:3].tolist() == [SlotState.TOKEN, SlotState.TOKEN, SlotState.FREE]
    assert states.rest[1] == SlotState.RESERVED


def test_a_static_batch_has_lines_and_a_paged_pool_has_none(shipped: Callable[[str], Recording]) -> None:
    static, paged = Replay(shipped("static")), Replay(shipped("paged"))
    assert LineLengths(static).length_at(0) == static.num_units // len(static.recording.requests)
    assert LineLengths(paged).length_at(0) is None


@pytest.mark.parametrize(("reserved", "length"), [([100, 100], 100), ([100, 60], None)])
def test_reservations_are_lines_if_they_are_equally_long(
    tiny: Recording, reserved: list[int], length: int | None
) -> None:
    meta = replace(tiny.meta, policy={"name": "contiguous"}, pool=replace(tiny.meta.pool, unit_tokens=1, num_units=500))
    taken = {
        "seq": np.array([0, 10]),
        "step": np.array([0, 1]),
        "kind": np.full(2, MemoryKind.APPEND),
        "request": np.array([0, 1]),
        "position": np.zeros(2, np.int64),
        "address": np.array([1, 101]),
        "length": np.array(reserved),
    }
    replay = Replay(replace(tiny, meta=meta, memory=Memory(**taken)))
    assert LineLengths(replay).length_at(0) == LineLengths(replay).length_at(99) == length


@pytest.mark.parametrize("size", [(20, 6), (7, 3)])
def test_a_followed_request_is_seen_in_every_cell_that_has_something_of_it(
    shipped: Callable[[str], Recording], size: tuple[int, int]
) -> None:
    """However many blocks a cell covers; and in no cell any other request has a colour."""
    replay = Replay(shipped("paged"))
    replay.seek(replay.num_frames // 2)
    tiling = levels(replay.num_units, 16, *size, stride=None, half_blocks=True)[0]
    canvas = Canvas(replay, tiling, half_blocks=True, color_by=ColorBy.OWNER)
    for request in replay.live_requests()[:: len(replay.live_requests()) // 8].tolist():
        canvas.followed = request
        keys = canvas.draw(0, size[1])
        paints = np.stack((keys & 0xFF, keys >> 8 & 0xFF))
        assert not ((paints >= OWNER) & (paints < HOLDERS)).any()
        units = replay.block_table(request)[1] - replay.first_unit
        seen = np.isin(paints, (FOLLOWED, FOLLOWED_SHARED)).any(axis=0)
        assert seen.sum() == len(np.unique(tiling.cell_of(units)))


@pytest.mark.parametrize("by", ColorBy)
def test_free_memory_in_pieces_too_short_for_the_queue_is_drawn_as_the_bar_counts_it(
    shipped: Callable[[str], Recording], by: ColorBy
) -> None:
    """And the map follows from frame to frame as if it were drawn afresh."""
    recording = shipped("paged")
    steps = recording.steps
    pieces = np.where(np.arange(len(steps)) % 3 == 1, steps.free_units, 0).astype(np.int32)
    replay = Replay(replace(recording, steps=replace(steps, unusable_units=pieces)))
    states = DrawnUnits(replay)
    paints = Paints(replay, states, by)
    for frame in (4, 5, 6, 7, 4):
        replay.seek(frame)
        paints.update(states.update())
        empty = states.dominant == SlotState.FREE
        assert empty.any()
        marks = {NEXT} if by is ColorBy.OWNER else set()
        assert set(paints.whole[empty].tolist()) == marks | {SlotState.EXTERNAL if frame % 3 == 1 else SlotState.FREE}
        assert np.array_equal(paints.whole, Paints(replay, DrawnUnits(replay), by).whole)
