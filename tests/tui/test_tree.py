"""What the inspector says of a slot in a radix tree: the run that it is in, who locks it, whether it can be evicted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsim.policies import Radix, RadixSettings, SGLangSettings
from kvsim.recording import Recording
from kvsim.simulation import simulate
from kvsim.workload import Workload
from kvsim_tui.facts.tree import tree_lines
from kvsim_tui.playback.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable

PREFIX = 16


def recording_of(make_machine: Callable[[int], Any], page_size: int) -> Recording:
    """Two requests with one prefix, the second while the first puts out its answer."""
    workload = Workload(
        arrival_s=[0.0, 0.05], prompt_tokens=[24, 32], output_tokens=[40, 4], max_tokens=[40, 4],
        prefix_group=[0, 0], prefix_names=("a",), prefix_tokens=[PREFIX, PREFIX],
    )  # fmt: skip
    policy = Radix(scheduler=SGLangSettings(context_length=128), cache=RadixSettings(page_size=page_size))
    return simulate(workload, policy, make_machine(512), engine="interpreted")


def units_of(session: Session, request: int) -> list[int]:
    positions, addresses = session.replay.block_table(request)
    return (addresses[np.argsort(positions)] - session.replay.first_unit).tolist()


@pytest.mark.parametrize("page_size", [1, 4])
def test_runs_of_the_tree(make_machine: Callable[[int], Any], page_size: int) -> None:
    recording = recording_of(make_machine, page_size)
    begin_s = float(recording.requests.first_token_s[1])
    session = Session(recording, at_s=begin_s + 1e-4)
    assert [*session.replay.live_requests()] == [0, 1]
    units = units_of(session, 0)
    shared = dict(tree_lines(session, units[0]))
    assert shared["locked by"] == "2 requests"
    assert f"tokens 1 to {PREFIX}" in shared["node in the tree"]
    own = dict(tree_lines(session, units[PREFIX // page_size]))
    assert own["locked by"] == "1 request"
    assert f"tokens {PREFIX + 1} to 24" in own["node in the tree"]
    assert dict(tree_lines(session, units[-1]))["in the tree"].startswith("not yet")
    free = next(unit for unit in range(session.replay.num_units) if not session.replay.refs[unit])
    assert tree_lines(session, free) == []


def test_what_can_be_evicted_and_for_how_long_it_was_not_used(make_machine: Callable[[int], Any]) -> None:
    recording = recording_of(make_machine, 1)
    session = Session(recording, at_s=float(recording.duration_s))
    session.player.go_to_frame(session.replay.num_frames - 1)
    session.show()
    cached = np.flatnonzero(session.replay.cached)
    lines = dict(tree_lines(session, int(cached[0])))
    assert lines["locked by"] == "no request: it can be evicted"
    assert lines["given up"].endswith("ago")
    assert "slots, tokens 1 to" in lines["node in the tree"]


def test_a_cache_without_a_tree_says_nothing(tiny: Recording) -> None:
    assert tree_lines(Session(tiny), 1) == []
