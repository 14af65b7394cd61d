"""The pool by owner: whose memory it is, what is shared, and what is folded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.memory.waste import SlotState
from kvsim.recording import find, read
from kvsim_tui.facts.owners import Owner, OwnerGroup, holdings, largest_owner, owners_line, units_of
from kvsim_tui.look.stack import EIGHTHS
from kvsim_tui.playback.session import Session
from kvsim_tui.pool.free_queue import next_units
from kvsim_tui.pool.paint import FOLLOWED, FOLLOWED_SHARED, NEXT, PARTLY
from kvsim_tui.widgets.below_pool import BelowPool
from kvsim_tui.widgets.owner_lines import (
    OwnerLine,
    fitting_lines,
    line_of_request,
    lines_of_group,
    without_split_groups,
)
from kvsim_tui.widgets.owner_strips import MAX_IN_PHYSICAL_ORDER, OwnerStrips
from kvsim_tui.widgets.pool_view import PoolView

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.recording import Recording
    from kvsim_tui.app import KvsimApp

HELD = [SlotState.TOKEN, SlotState.RESERVED, SlotState.INTERNAL, SlotState.PADDING, SlotState.EXPIRED]
SIZES = [(80, 24), (120, 40), (200, 60)]


@pytest.fixture(scope="module")
def prefixes() -> Recording:
    return read(find("vllm-h200-llama-3-8b-pressure-prefixes"))


def lines_of(app: KvsimApp) -> list[str]:
    """Return the lines of the pool by owner."""
    strips = app.query_one(OwnerStrips)
    return [strips.render_line(y).text for y in range(strips.size.height)]


@pytest.mark.parametrize("name", ["paged", "static", "offload"])
def test_holdings_are_all_that_is_held_the_largest_first(shipped: Callable[[str], Recording], name: str) -> None:
    recording = shipped(name)
    session = Session(recording, at_s=0.5 * recording.duration_s)
    found = holdings(session)
    assert sum(one.size for one in found) == session.replay.slots()[session.replay.refs > 0].sum()
    tokens = [one.num_tokens for one in found]
    assert tokens == sorted(tokens, reverse=True), "strips are in the order of the figures beside them"
    assert sorted(owner.request for one in found for owner in one.owners) == sorted(
        request for request in session.replay.live_requests().tolist() if len(session.replay.block_table(request)[1])
    )


def test_requests_that_share_blocks_are_one_holding_and_each_block_counts_once(prefixes: Recording) -> None:
    session = Session(prefixes, at_s=5.0)
    found, refs = holdings(session), session.replay.refs
    assert sum(one.size for one in found) == session.replay.slots()[refs > 0].sum()
    assert sum(one.num_shared for one in found) == (refs > 1).sum()
    holder: dict[int, int] = {}
    for nth, one in enumerate(found):
        for owner in one.owners:
            units = session.replay.block_table(owner.request)[1] - session.replay.first_unit
            for unit in units[refs[units] > 1].tolist():
                assert holder.setdefault(unit, nth) == nth
    assert max(len(one.owners) for one in found) > 1


@pytest.mark.parametrize("size", SIZES)
async def test_no_request_is_left_out_of_the_strips(
    make_app: Callable[..., KvsimApp], shipped: Callable[[str], Recording], size: tuple[int, int]
) -> None:
    app = make_app(shipped("paged"), at_s=5.0, by_owner=True)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        session = next(iter(app.playback.sessions()))
        found = holdings(session)
        lines = lines_of(app)
        assert re.match(rf"{len(found)} requests(:| hold) {(session.replay.refs > 0).sum():,} blocks", lines[0])
        largest = max((owner for one in found for owner in one.owners), key=lambda owner: owner.num_tokens)
        assert f"most {session.request_name(largest.request)}: {largest.num_tokens:,}" in lines[0]
        assert "0.5% free" in lines[0]
        names = [session.request_name(one.owners[0].request) for one in found]
        shown = [name for name in names if any(f" {name} " in line for line in lines)]
        assert shown == names[: len(shown)], "the largest are shown"
        if len(shown) < len(names):
            rest = found[len(shown) :]
            tokens = sum(one.owners[0].num_tokens for one in rest)
            first, last = (session.request_name(one.owners[0].request) for one in (rest[0], rest[-1]))
            words = rf"{len(rest)} more +{tokens:,} ({first}: {rest[0].num_tokens} … {last}: |mean [\d,]+)"
            assert any(re.search(words, line) for line in lines)


async def test_a_panel_of_one_line_says_how_many_requests_hold_the_pool(
    make_app: Callable[..., KvsimApp], shipped: Callable[[str], Recording]
) -> None:
    app = make_app(shipped("paged"), at_s=5.0, by_owner=True)
    async with app.run_test(size=(60, 16)) as pilot:
        strips = app.query_one(OwnerStrips)
        strips.styles.height = 1 + strips.styles.gutter.height
        await pilot.pause()
        session = next(iter(app.playback.sessions()))
        assert [line.split(" requests")[0] for line in lines_of(app)] == [str(len(session.replay.live_requests()))]
        assert "1 cell" not in app.query_one(BelowPool).render_line(0).text


async def test_a_group_is_one_shape_around_what_it_shares(
    make_app: Callable[..., KvsimApp], prefixes: Recording
) -> None:
    app = make_app(prefixes, at_s=5.0, by_owner=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        session = next(iter(app.playback.sessions()))
        largest = next(one for one in holdings(session) if len(one.owners) > 1)
        text = "\n".join(lines_of(app))
        assert f"╭{len(largest.owners)} share" in text
        assert f"{largest.shared[SlotState.TOKEN]:,}" in text


@pytest.mark.parametrize("size", SIZES)
async def test_who_holds_most_is_told_with_what_it_shares_and_what_comes_free(
    make_app: Callable[..., KvsimApp], prefixes: Recording, size: tuple[int, int]
) -> None:
    app = make_app(prefixes, at_s=5.0, by_owner=True)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        session = next(iter(app.playback.sessions()))
        owners = [owner for one in holdings(session) for owner in one.owners]
        most = max(owners, key=lambda owner: owner.num_tokens)
        shared = session.replay.block_table(most.request)[1] - session.replay.first_unit
        shared = shared[session.replay.refs[shared] > 1]
        tokens = int(session.replay.slots(shared)[:, SlotState.TOKEN].sum())
        name, lines = session.request_name(most.request), lines_of(app)
        assert most.num_tokens == most.own_tokens + tokens == session.replay.computed(np.array([most.request]))[0]
        assert re.search(rf"most {name}: {most.num_tokens:,}( tokens)? \({tokens:,} shared\)", lines[0])
        assert "free" in lines[0]
        assert "freed when it ends" in str(app.query_one(OwnerStrips).border_title)
        saved = int(session.replay.refs.sum() - (session.replay.refs > 0).sum())
        below = app.query_one("#below")
        assert f"shared, saves {saved:,} blocks" in below.render_line(0).text  # type: ignore[attr-defined]
        assert not any(re.search(r"\b1 more", line) for line in lines)


def test_no_group_is_parted_that_fits_a_column() -> None:
    none = np.zeros(len(SlotState), np.int64)
    alone = OwnerLine("a", "1", none)
    pair = OwnerGroup(owners=(), num_shared=1, shared=none)
    group = [OwnerLine("2 share", "1", none, edge="╭", group=pair), *[OwnerLine("b", "1", none, edge="│")] * 3]
    lines = without_split_groups([alone] * 3 + group + [alone], 5)
    assert [line.name for line in lines] == ["a"] * 3 + [""] * 2 + ["2 share", "b", "b", "b", "a"]
    assert without_split_groups(group, 3) == group, "it does not fit"


async def test_many_requests_are_shown_by_owner_first_and_v_changes_it(
    make_app: Callable[..., KvsimApp], shipped: Callable[[str], Recording], tiny: Recording
) -> None:
    for recording, at_s in ((shipped("paged"), 5.0), (tiny, 1.0)):
        app = make_app(recording, at_s=at_s, by_owner=True)
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.pause()
            many = len(next(iter(app.playback.sessions())).replay.live_requests()) > MAX_IN_PHYSICAL_ORDER
            assert app.query_one(OwnerStrips).display is many
            assert app.query_one(PoolView).display is not many
            await pilot.press("v")
            await pilot.pause()
            assert app.query_one(OwnerStrips).display is not many
            assert app.query_one(PoolView).display is many


async def test_a_click_on_a_strip_follows_its_request(
    make_app: Callable[..., KvsimApp], shipped: Callable[[str], Recording]
) -> None:
    app = make_app(shipped("paged"), at_s=5.0, by_owner=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        session = next(iter(app.playback.sessions()))
        second = holdings(session)[1].owners[0].request
        await pilot.click("#owners", offset=(4, 3))
        await pilot.pause()
        assert session.followed == second
        assert any(f">{session.request_name(second)} " in line for line in lines_of(app))


async def test_a_followed_request_has_its_own_strip_in_a_folded_group(
    make_app: Callable[..., KvsimApp], prefixes: Recording
) -> None:
    none = np.zeros(len(SlotState), np.int64)
    owners = tuple(
        Owner(request=row, num_units=1, num_shared=1, slots=none, shared_tokens=0) for row in range(9, -1, -1)
    )
    group = OwnerGroup(owners=owners, num_shared=1, shared=none)
    app = make_app(prefixes, at_s=5.0, by_owner=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        strips = app.query_one(OwnerStrips)
        for row in (0, 1):
            strips.session.followed = row
            assert strips.session.request_name(row) in [
                line.name for line in lines_of_group(strips.session, group, ("", "", ""), 3)
            ]


def test_the_smallest_request_has_a_strip_if_it_is_followed_and_takes_no_column_if_not(
    shipped: Callable[[str], Recording],
) -> None:
    session = Session(shipped("paged"), at_s=8.0)
    found = holdings(session)
    smallest = found[-1].owners[0].request
    for room, columns in ((len(found) // 2 - 1, 2), (9, 3), (len(found), 1)):
        for followed in (None, smallest):
            session.followed = followed
            lines, num_columns = fitting_lines(session, found, room=room, most_columns=3, edges=("", "", ""))
            assert len(lines) <= room * num_columns
            assert num_columns == columns
            assert (smallest in [line.request for line in lines]) is (followed is not None or columns == 1)
            assert sum(len(line.owners) for line in lines) == len(found)


def test_memory_of_layers_with_slots_of_several_sizes_is_told_in_bytes() -> None:
    session = Session(read(find("vllm-h200-gemma-3-4b-windows")), at_s=6.0)
    found = holdings(session)
    lines, _ = fitting_lines(session, found, room=40, most_columns=1, edges=("", "", ""))
    assert all(re.fullmatch(r"\+?[\d.]+ MiB", line.figure) for line in lines)
    largest = largest_owner(found)
    assert largest is not None
    name = session.request_name(largest.request)
    assert f"most {name}: {largest.num_tokens / 2**20:.0f} MiB" in owners_line(session, found, 200, "·")


async def test_what_asks_for_places_shows_physical_order(
    make_app: Callable[..., KvsimApp], shipped: Callable[[str], Recording]
) -> None:
    for keys in (["z"], ["o"], ["slash", "number_sign", "1", "7", "enter"]):
        app = make_app(shipped("paged"), at_s=5.0, by_owner=True)
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.press(*keys)
            await pilot.pause()
            assert app.query_one(PoolView).display, keys
            assert not app.query_one(OwnerStrips).display, keys


def test_slots_of_owners_are_in_states_of_held_memory(shipped: Callable[[str], Recording]) -> None:
    found = holdings(Session(shipped("paged"), at_s=5.0))
    in_all = np.sum([owner.slots for one in found for owner in one.owners], axis=0)
    assert in_all.sum() == in_all[HELD].sum()


@pytest.mark.parametrize("size", SIZES)
async def test_no_group_is_parted_and_every_group_is_there(
    make_app: Callable[..., KvsimApp], prefixes: Recording, size: tuple[int, int]
) -> None:
    app = make_app(prefixes, at_s=4.0, by_owner=True)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        strips = app.query_one(OwnerStrips)
        groups = [one for one in holdings(app.playback.session) if one.num_shared]
        shown = lines_of(app)[1:]
        columns = [[line[begin:] for line in shown] for begin in range(0, strips.size.width, strips._column_width)]
        edges = ["".join(line[:1] for line in column).strip() for column in columns]
        found = [group for column in edges for group in column.replace(" ", "").split("╭")[1:]]
        assert len(found) == len(groups)
        assert all(re.fullmatch("│*╰", group) for group in found)
        assert not any(column.startswith(("│", "╰")) for column in edges)


async def test_bars_of_unequal_requests_are_unequal(
    make_app: Callable[..., KvsimApp], shipped: Callable[[str], Recording]
) -> None:
    app = make_app(shipped("paged"), at_s=5.0, by_owner=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        strips = app.query_one(OwnerStrips)
        owners = [one.owners[0] for one in holdings(app.playback.session)][:10]
        most = max(int(owner.slots.sum()) for owner in owners)
        lengths = []
        for owner in owners:
            bar = list(strips._bar(line_of_request(strips.session, owner, " "), 23, most))
            void = app.symbols.palette.void
            filled = [
                app.symbols.right.index(cell.text) if cell.style.bgcolor.get_truecolor().hex == void else EIGHTHS
                for cell in bar
                if cell.style is not None and cell.style.bgcolor is not None
            ]
            lengths.append(sum(filled))
        expected = [owner.slots.sum() / most * 23 * EIGHTHS for owner in owners]
        assert np.abs(np.array(lengths) - expected).max() <= 1


async def test_physical_order_tells_who_holds_most_and_where(
    make_app: Callable[..., KvsimApp], prefixes: Recording
) -> None:
    app = make_app(prefixes, at_s=5.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        session = app.playback.session
        most = largest_owner(holdings(session))
        assert most is not None
        name, units = session.request_name(most.request), units_of(session, most.request)
        assert len(units) == most.num_units
        places = 1 + int((np.diff(units) != 1).sum())
        begin = f"{name} holds most: {most.num_tokens:,} tokens ({most.shared_tokens:,} shared)"
        assert re.search(rf"{re.escape(begin)}.* at {places} places", app.query_one(BelowPool).render_line(0).text)
        assert f"colour: {name} and state" in str(app.query_one(PoolView).border_title)


async def test_the_followed_request_has_a_colour_in_physical_order_and_without_one_the_largest(
    make_app: Callable[..., KvsimApp], prefixes: Recording
) -> None:
    app = make_app(prefixes, at_s=5.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        screen, session, pool = app.playback, app.playback.session, app.query_one(PoolView)
        largest = largest_owner(holdings(session))
        assert largest is not None
        other = next(row for row in session.replay.live_requests().tolist() if row != largest.request)
        waiting = int(session.replay.waiting_requests()[0])
        for followed, marked in ((None, largest.request), (other, other), (waiting, None)):
            screen.follow(followed)
            await pilot.pause()
            paints, refs = pool._canvas._paints.whole, session.replay.refs
            own = [] if marked is None else units_of(session, marked)
            assert np.array_equal(np.flatnonzero(np.isin(paints, (FOLLOWED, FOLLOWED_SHARED))), own)
            assert (refs[paints == FOLLOWED_SHARED] > 1).all()
            assert pool.marked_name == (None if marked is None else session.request_name(marked))
            key = " ".join(app.query_one(BelowPool).render_line(y).text for y in range(6))
            assert ("holds nothing now" in key) == (marked is None)


def test_the_next_free_units_are_those_that_are_allocated_next(prefixes: Recording) -> None:
    session = Session(prefixes, at_s=0.5)
    replay = session.replay
    expected, frame = next_units(replay, 40).tolist(), replay.frame
    free = set(np.flatnonzero(replay.refs == 0).tolist())
    assert len(expected) == 40
    assert set(expected) <= free
    held = list[int]()
    while len(set(held)) < 10:
        replay.seek(replay.frame + 1)
        held += [unit for unit in np.flatnonzero(replay.refs > 0).tolist() if unit in free and unit not in held]
    replay.seek(frame)
    assert set(held) <= set(expected) or set(held[:10]) & set(expected)
    replay.seek(replay.num_frames - 1)
    assert not len(next_units(replay))


async def test_the_head_of_the_free_queue_is_marked_and_told(
    make_app: Callable[..., KvsimApp], prefixes: Recording
) -> None:
    for at_s, size in ((0.5, (120, 40)), (4.0, (120, 40)), (4.0, (80, 24))):
        app = make_app(prefixes, at_s=at_s)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            replay = app.playback.session.replay
            units = next_units(replay)
            paints = app.query_one(PoolView)._canvas._paints.whole
            assert np.array_equal(np.flatnonzero(paints == NEXT), np.sort(units))
            below = app.query_one(BelowPool)
            text = " ".join(below.render_line(y).text for y in range(below.size.height))
            assert f"{(replay.refs == 0).sum():,} blocks free" in text
            assert re.search(rf"next: (block )?{units[0] + replay.first_unit:,}\b", text)
            assert re.search("■ (allocated )?next", text)


async def test_a_partly_written_block_has_its_own_colour_where_a_block_has_one(
    make_app: Callable[..., KvsimApp], shipped: Callable[[str], Recording]
) -> None:
    app = make_app(shipped("paged"), at_s=5.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        replay = app.playback.session.replay
        written = replay.slots()[:, SlotState.TOKEN]
        paints = app.query_one(PoolView)._canvas._paints.whole
        assert (paints == PARTLY).any()
        partly = (written > 0) & (written <= 14) & ~np.isin(paints, (FOLLOWED, FOLLOWED_SHARED, SlotState.INTERNAL))
        assert np.array_equal(paints == PARTLY, partly)
