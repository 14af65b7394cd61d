"""What a step changes is seen, and said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.policies import Contiguous, Paged
from kvsim.policies.settings import ContiguousSettings, ContinuousSettings, Reserve
from kvsim.replay import Replay
from kvsim.simulation import Machine, simulate
from kvsim.workload import generate
from kvsim_tui.app import KvsimApp
from kvsim_tui.facts.last_step import last_step
from kvsim_tui.facts.telling import begin_story, gap_of, story_of, story_of_comparison
from kvsim_tui.lessons import Guided, find_lesson
from kvsim_tui.look.wording import duration
from kvsim_tui.playback.compared_runs import ComparedRuns
from kvsim_tui.playback.run_events import EventKind
from kvsim_tui.playback.session import Session
from kvsim_tui.pool.legend_entries import sharing
from kvsim_tui.pool.paint import UnitChange
from kvsim_tui.pool.unit_changes import changes_between
from kvsim_tui.screens.compare_runs import Compare
from kvsim_tui.widgets.below_pool import BelowPool
from kvsim_tui.widgets.pool_view import PoolView

from .test_app import screen_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.recording import Recording


def test_a_step_takes_and_frees(tiny: Recording) -> None:
    replay = Replay(tiny)
    assert changes_between(replay, -1, 0).taken.tolist() == [0, 1]
    assert changes_between(replay, 0, 1).taken.tolist() == [2, 3]
    preempting = changes_between(replay, 1, 2)
    assert sorted(preempting.freed.tolist()) == [2, 3]
    assert not len(preempting.taken)
    units, paints = changes_between(replay, 1, 2).lights
    assert dict(zip(units.tolist(), paints.tolist(), strict=True)) == {2: UnitChange.FREED, 3: UnitChange.FREED}


@pytest.mark.parametrize("name", ["paged", "large"])
def test_what_is_taken_and_freed_adds_up_to_what_is_held(shipped: Callable[[str], Recording], name: str) -> None:
    replay = Replay(shipped(name))
    last = replay.num_frames - 1
    for before, after in ((0, 1), (last // 3, last // 3 + 40), (last // 2, last // 2 + 1), (-1, last // 2)):
        replay.seek(max(before, 0))
        held = int((replay.refs > 0).sum()) if before >= 0 else 0
        replay.seek(after)
        changes = changes_between(replay, before, after)
        # A unit that is hit while nobody holds it is held from then on; one that is shared was held already.
        least = held + len(changes.taken) - len(changes.freed)
        assert least <= int((replay.refs > 0).sum()) <= least + len(changes.hit)


def test_the_last_step_says_whom_it_preempted_and_what_that_costs(tiny: Recording) -> None:
    session = Session(tiny)
    session.player.go_to_frame(2)
    session.show()
    words = [text for _, text in last_step(session, 60)]
    assert words[0] == "short of blocks: second preempted, lost 2 blocks, 5 tokens"
    assert "2 blocks freed" in words
    session.player.go_to_frame(1)
    session.show()
    assert [text for _, text in last_step(session, 60)] == ["second admitted", "2 blocks taken"]


def test_a_request_in_a_pool_without_blocks_is_preempted_for_room_to_grow(
    make_machine: Callable[[int], Machine],
) -> None:
    work = generate(8, prompt=20, output=20, seed=1)
    policy = Contiguous(
        scheduler=ContinuousSettings(max_model_len=64), cache=ContiguousSettings(reserve=Reserve.DOUBLING)
    )
    session = Session(simulate(work, policy, make_machine(100)))
    session.player.go_to_frame(int(np.flatnonzero(session.recording.steps.preempted)[0]))
    session.show()
    assert last_step(session, 80)[0][1].startswith("no room to grow: ")


def test_sharing_is_counted() -> None:
    guided = Guided(find_lesson("5"))
    guided.show(guided.captions[2].frame)
    refs = guided.sessions[0].replay.refs
    held = (refs > 0).sum()
    assert (
        sharing(guided.sessions[0]) == f"sharing ×{refs.sum() / held:.1f}, with {held} blocks in place of {refs.sum()}"
    )
    assert sharing(guided.sessions[0]).endswith("20 blocks in place of 50")


def test_the_story_of_a_pool_that_is_full(shipped: Callable[[str], Recording]) -> None:
    session = Session(shipped("paged"))
    story = story_of(session)
    steps = session.recording.steps
    assert steps.preempted[story.frame] > 0
    assert not steps.preempted[: story.frame].any()
    assert story.parts[0].startswith("whole run: pool full from ")
    assert story.parts[1] == f"{int(steps.preempted.sum())} preemptions"


def test_the_story_of_a_batch_is_its_padding(shipped: Callable[[str], Recording]) -> None:
    story = story_of(Session(shipped("static")))
    assert story.parts[0].endswith("of the pool is padding on average")


def test_a_queue_before_a_pool_that_never_runs_short_names_the_limit(make_machine: Callable[[int], Machine]) -> None:
    work = generate(60, prompt=60, output=20, seed=1)
    policy = Paged(scheduler=ContinuousSettings(max_num_seqs=4, max_model_len=256))
    parts = story_of(Session(simulate(work, policy, make_machine(20_000)))).parts
    assert parts[0].startswith("whole run: the pool never runs short: at most ")
    assert parts[2] == "held back by max_num_seqs 4"


def test_playing_begins_shortly_before_the_most_telling_moment(shipped: Callable[[str], Recording]) -> None:
    session = Session(shipped("paged"))
    story = begin_story(session, playing=True)
    assert session.player.playing
    assert 0 < session.times_s[story.frame] - session.player.clock_s <= session.player.speed * 1.001
    assert session.followed is not None


async def test_what_has_changed_is_lit_up_and_goes_out(tiny: Recording) -> None:
    app = KvsimApp(Session(tiny), clock=lambda: 0.0, flash_s=60)
    async with app.run_test(size=(80, 24)) as pilot:
        pool = app.query_one(PoolView)
        await pilot.press("right")
        lit = pool._canvas._paints.whole.copy()
        assert np.flatnonzero(lit == UnitChange.TAKEN).tolist() == [2, 3]
        assert "2 blocks taken" in app.query_one(BelowPool).render_line(1).text
        pool._flash.flash_s = 0.0
        pool._put_out()
        assert not (pool._canvas._paints.whole == UnitChange.TAKEN).any()


async def test_o_changes_what_colour_means(tiny: Recording) -> None:
    app = KvsimApp(Session(tiny), clock=lambda: 0.0)
    async with app.run_test(size=(80, 24)) as pilot:
        pool = app.query_one(PoolView)
        seen = []
        for _ in range(4):
            seen.append(pool.color_by.value)
            await pilot.press("o")
        assert seen == ["owner", "state", "age", "owner"], "nothing can be shared without a prefix cache"


def test_the_story_of_a_comparison_is_its_factor(three_runs: list[Recording]) -> None:
    comparison = ComparedRuns(three_runs)
    fast, near, slow = comparison.lanes
    story = story_of_comparison(comparison)
    for number, rival in enumerate((near, slow), 1):
        factor = rival.session.player.duration_s / fast.session.player.duration_s
        assert f"{rival.label} ×{factor:,.1f}" in story.parts[0]
        assert gap_of(comparison, number).in_full.endswith(f"×{factor:,.1f}")
        assert f"{rival.label} ×{factor:,.1f}" in story.shorter[0]
        assert f"{rival.label.removesuffix(' batches')} ×{factor:,.1f}" in story.shorter[1]
    assert story.parts[0].startswith(f"{fast.label} ")
    assert gap_of(comparison, 0).in_full == f"{duration(fast.session.player.duration_s)}, the fastest"


async def test_c_keeps_the_moment_and_the_followed_request(three_runs: list[Recording]) -> None:
    app = KvsimApp(Session(three_runs[0], at_s=0.3), clock=lambda: 0.0, runs=lambda: three_runs, flash_s=0)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("n")
        followed = app.playback.followed_name
        moment_s = app.playback.player.clock_s
        await pilot.press("c")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert isinstance(app.playback, Compare)
        assert app.playback.player.clock_s == moment_s
        assert app.playback.followed_name == followed
        assert not app.playback.player.playing
        await pilot.press("right", "right", "c")
        assert not isinstance(app.playback, Compare)
        assert app.playback.player.clock_s > moment_s


def test_a_story_of_preemptions_follows_the_request_that_is_preempted(shipped: Callable[[str], Recording]) -> None:
    session = Session(shipped("paged"))
    story = begin_story(session, playing=False)
    assert session.followed in session.events.rows_at(story.frame, EventKind.PREEMPTED)
    assert not len(session.replay.block_table(session.followed)[1]), "so the colours of all others can be seen"


def test_a_story_of_a_static_batch_follows_no_request_so_that_padding_is_seen(
    shipped: Callable[[str], Recording],
) -> None:
    session = Session(shipped("static"))
    begin_story(session, playing=False)
    assert session.followed is None


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_axis_of_time_says_what_its_marks_mean(
    shipped: Callable[[str], Recording], size: tuple[int, int]
) -> None:
    app = KvsimApp(Session(shipped("paged"), at_s=9.5), clock=lambda: 0.0, flash_s=0)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()

        def title() -> str:
            return next(line for line in screen_text(app).splitlines() if "paused" in line)

        assert "■ preempted" in title()
        await pilot.press("n")
        await pilot.pause()
        if size[0] > 80:  # where there is room for both, and for those that wait
            assert f"━ {app.playback.followed_name} holds memory" in title()
