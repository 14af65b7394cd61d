"""The panel of the whole radix tree: what each node holds, who locks it, what goes first, what a retraction gave up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvsim.policies import Radix, RadixSettings, SGLangSettings
from kvsim.recording import Recording
from kvsim.simulation import simulate
from kvsim.workload import Workload
from kvsim_tui.dialogs.tree_page import RadixTreeScreen
from kvsim_tui.facts.tree import in_tree_units
from kvsim_tui.facts.tree_nodes import has_tree, tree_at
from kvsim_tui.playback.session import Session

from .test_snapshots import SvgExtension, _draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from syrupy.assertion import SnapshotAssertion

NUM_REQUESTS, PREFIX = 12, 40


@pytest.fixture(params=[1, 4], ids="pages of {}".format)
def recording(request: pytest.FixtureRequest, make_machine: Callable[[int], Any]) -> Recording:
    """Requests behind two prefixes, answers longer than expected, and too little memory for all."""
    numbers = range(NUM_REQUESTS)
    workload = Workload(
        arrival_s=[0.001 * number for number in numbers],
        prompt_tokens=[PREFIX + 8 + 5 * number for number in numbers],
        output_tokens=[60 + 7 * (number % 4) for number in numbers],
        max_tokens=[100] * NUM_REQUESTS,
        prefix_group=[number % 2 for number in numbers],
        prefix_names=("a", "b"),
        prefix_tokens=[PREFIX] * NUM_REQUESTS,
    )
    scheduler = SGLangSettings(
        context_length=256, max_running_requests=6, schedule_conservativeness=0.01, retract_decode_steps=4
    )
    policy = Radix(scheduler=scheduler, cache=RadixSettings(page_size=request.param))
    return simulate(workload, policy, make_machine(500), engine="interpreted")


def test_runs_tile_the_paths_of_requests_and_what_is_cached_at_every_moment(recording: Recording) -> None:
    session = Session(recording)
    assert has_tree(session)
    for frame in range(0, session.replay.num_frames, 5):
        session.player.go_to_frame(frame)
        session.show()
        tree, replay = tree_at(session), session.replay
        unlocked = sum(node.num_units for node in tree.nodes if node.num_holders == 0)
        assert unlocked == int(replay.cached.sum())
        for row in replay.live_requests().tolist():
            on_path = [node for node in tree.nodes if row in node.holders]
            assert sum(node.num_units for node in on_path) == in_tree_units(session, row)
        for node in tree.nodes:
            assert len(node.holders) == node.num_holders
            assert all(child.begin == node.begin + node.num_units for child in node.children)
            assert all(child.num_holders <= node.num_holders for child in node.children)


def test_a_retraction_says_what_it_gave_up(recording: Recording) -> None:
    assert recording.requests.preemptions.sum() > 0
    session = Session(recording, at_s=float(recording.duration_s))
    retraction = tree_at(session).last_retraction
    assert retraction is not None
    assert recording.requests.preemptions[retraction.request] > 0
    assert retraction.num_own > 0
    assert tree_at(Session(recording)).last_retraction is None


@pytest.mark.parametrize("size", [(80, 24), (200, 60)], ids="{0[0]}x{0[1]}".format)
async def test_the_panel(
    make_app: Callable[..., Any], recording: Recording, snapshot: SnapshotAssertion, size: tuple[int, int]
) -> None:
    app = make_app(recording, at_s=0.6 * float(recording.duration_s))
    assert await _draw(app, size, "t") == snapshot.use_extension(SvgExtension)


async def test_t_opens_and_closes_it(
    make_app: Callable[..., Any], recording: Recording, shipped: Callable[[str], Recording]
) -> None:
    async with make_app(recording).run_test() as pilot:
        await pilot.press("t")
        assert isinstance(pilot.app.screen, RadixTreeScreen)
        await pilot.press("escape")
        assert not isinstance(pilot.app.screen, RadixTreeScreen)
    async with make_app(shipped("paged")).run_test() as pilot:
        await pilot.press("t")
        assert not isinstance(pilot.app.screen, RadixTreeScreen)
