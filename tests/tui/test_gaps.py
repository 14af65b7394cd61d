"""Between two requests of a sparse load, the interface shows the pool as the last output left it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsim.memory.waste import SlotState
from kvsim.policies import Contiguous, Paged, Policy, Static
from kvsim.simulation import simulate
from kvsim.workload import Workload
from kvsim_tui.playback.session import Session
from kvsim_tui.pool.paint import ColorBy
from kvsim_tui.pool.picture import DrawnUnits, Paints

if TYPE_CHECKING:
    from collections.abc import Callable

POLICIES: dict[str, Policy] = {"paged": Paged(), "contiguous": Contiguous(), "static": Static()}
EMPTY = [SlotState.CACHED, SlotState.FREE]


@pytest.fixture(params=POLICIES, ids=str)
def session(request: pytest.FixtureRequest, make_machine: Callable[[int], Any]) -> Session:
    """Three requests, ten seconds apart."""
    workload = Workload(arrival_s=[0.0, 10.0, 20.0], prompt_tokens=[70, 50, 90], output_tokens=[5, 4, 3])
    return Session(simulate(workload, POLICIES[request.param], make_machine(30_000)))


def test_the_pool_is_empty_between_two_requests(session: Session) -> None:
    player = session.player
    player.go_to_time(5.0)
    session.show()
    assert player.gap == 0
    assert session.breakdown[EMPTY].sum() == session.capacity
    assert not len(session.replay.live_requests())
    assert session.replay.slots().sum(axis=0).tolist() == session.breakdown.tolist()
    assert (session.num_requests("running"), session.num_requests("waiting")) == (0, 0)
    player.step(0)
    session.show()
    assert player.gap is None
    assert session.breakdown[EMPTY].sum() < session.capacity
    assert len(session.replay.live_requests()) == session.num_requests("running") == 1


@pytest.mark.parametrize("by", [ColorBy.STATE, ColorBy.OWNER, ColorBy.AGE])
def test_the_picture_follows_into_a_gap_and_out_of_it(session: Session, by: ColorBy) -> None:
    states = DrawnUnits(session.replay)
    paints = Paints(session.replay, states, by)
    for time_s in (5.0, 0.01, 5.0, 6.0, 15.0, float(session.times_s[-2]), 5.0, 10.05):
        session.player.go_to_time(time_s)
        session.show()
        paints.update(states.update())
        fresh = Paints(session.replay, DrawnUnits(session.replay), by)
        for name in ("written", "rest", "whole"):
            np.testing.assert_array_equal(getattr(paints, name), getattr(fresh, name), str(time_s))


def test_playing_into_a_gap_is_a_change(session: Session) -> None:
    player = session.player
    player.go_to_time(float(session.idle.begin_s[0]) - 1e-6)
    player.playing = True
    frame = player.frame
    assert player.tick(1e-3 / player.speed)
    assert (player.frame, player.gap) == (frame, 0)
    assert not player.tick(1e-3 / player.speed)
