"""Turns of sessions: each arrives when the one that it waits for has ended, and finds what that one left behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.conformance import verify_recording
from kvsim.errors import UsageError
from kvsim.importers import workload_of
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.recording import Recording, find, read, write
from kvsim.recording.tables import RequestStatus
from kvsim.simulation import Replicas, measure_fleet, simulate, simulate_fleet
from kvsim.workload import Ragged, Turns, Workload

from .test_engines import STEP_TIME, assert_same, machine_of

PAGED = Paged(scheduler=ContinuousSettings(max_num_seqs=8, max_num_batched_tokens=512, max_model_len=4096))
SLOW = replace(machine_of(9_600), step_time=STEP_TIME)


@st.composite
def sessions(draw: st.DrawFn) -> Workload:
    """Sessions with branches, pauses and histories of which the client drops a part."""
    after: list[int] = []
    columns: dict[str, list[Any]] = {"arrival_s": [], "prompt_tokens": [], "output_tokens": []}
    pause_s, history = [], []
    for _ in range(draw(st.integers(1, 12))):
        row = len(after)
        before = draw(st.integers(-1, row - 1))
        there = 0 if before < 0 else columns["prompt_tokens"][before] + columns["output_tokens"][before]
        kept = there - draw(st.sampled_from([0, 0, 3, there]))
        after.append(before)
        history.append(max(kept, 0))
        pause_s.append(draw(st.sampled_from([0.0, 0.0, 0.01, 0.5])) if before >= 0 else 0.0)
        columns["arrival_s"].append(draw(st.sampled_from([0.0, 0.2, 1.0])))
        columns["prompt_tokens"].append(history[-1] + draw(st.integers(1, 40)))
        columns["output_tokens"].append(draw(st.integers(1, 30)))
    shared = draw(st.booleans()) and min(columns["prompt_tokens"])
    groups: dict[str, Any] = {"prefix_names": ["system"]} if shared else {}
    if shared:
        groups |= {"prefix_group": [0] * len(after), "prefix_tokens": [shared] * len(after)}
    return Workload(turns=Turns(after=after, pause_s=pause_s, history_tokens=history), **columns, **groups)


def conversation(num_turns: int, *, sessions: int = 1, pause_s: float = 0.5, every_s: float = 0.0) -> Workload:
    """Sessions of turns with 50 new tokens and answers of 30."""
    turn = np.tile(np.arange(num_turns), sessions)
    return Workload(
        arrival_s=np.repeat(np.arange(sessions) * every_s, num_turns),
        prompt_tokens=50 + 80 * turn,
        output_tokens=np.full(len(turn), 30),
        turns=Turns(after=np.where(turn == 0, -1, np.arange(len(turn)) - 1), pause_s=np.where(turn == 0, 0, pause_s)),
    )


@settings(max_examples=10, deadline=None)
@given(
    workload=sessions(),
    ahead=st.booleans(),
    users=st.sampled_from([None, None, 1, 2]),
    units=st.sampled_from([30, 200]),
)
def test_both_engines_give_the_same_bytes(workload: Workload, ahead: bool, users: int | None, units: int) -> None:
    scheduler = replace(PAGED.scheduler, async_scheduling=ahead, max_model_len=400)
    policy = replace(PAGED, scheduler=scheduler)
    recording = assert_same(workload, policy, machine_of(16 * units), users=users, refuse_misfits=True)
    assert_turns_wait(recording, workload)


def assert_turns_wait(recording: Recording, workload: Workload) -> None:
    """Each turn arrives when its pause is over, or at its arrival, whichever is later."""
    requests, turns = recording.requests, recording.requests.turns
    assert turns is not None
    assert workload.turns is not None
    assert sorted(turns.pause_s) == sorted(workload.turns.pause_s)
    waits = np.flatnonzero(turns.after >= 0)
    ended_s = requests.finished_s[turns.after[waits]]
    served = np.isfinite(ended_s)
    assert (requests.arrival_s[waits] - ended_s - turns.pause_s[waits])[served].min(initial=0.0) >= 0


def test_a_recording_is_checked_and_followed(tmp_path: Path) -> None:
    recording = simulate(conversation(5, sessions=6, every_s=0.1), PAGED, machine_of(3_200))
    again = read(write(recording, tmp_path / "r"))
    assert verify_recording(again).difference is None
    assert again.requests.turns is not None
    np.testing.assert_array_equal(again.requests.turns.session, recording.requests.turns.session)


def test_a_turn_hits_the_prompt_and_the_answer_before_it() -> None:
    requests = simulate(conversation(4), PAGED, SLOW).requests
    # The last token of an answer is never computed, so its block is not full.
    assert requests.cached_tokens.tolist() == [0, 79 // 16 * 16, 159 // 16 * 16, 239 // 16 * 16]
    arrival_s = requests.finished_s[:-1] + 0.5
    np.testing.assert_allclose(requests.arrival_s[1:], arrival_s, atol=0.01)


def test_a_slower_server_gets_later_turns() -> None:
    workload = conversation(4, pause_s=0.0)
    alone = simulate(workload, PAGED, SLOW).requests
    crowd = conversation(4, sessions=20, pause_s=0.0)
    crowded = simulate(crowd, PAGED, SLOW).requests
    assert crowded.turns is not None
    last = crowded.turns.turn == 3
    assert crowded.arrival_s[last].min() > 1.2 * alone.arrival_s[3]


def test_what_is_dropped_of_a_history_is_not_hit() -> None:
    turns = Turns(after=[-1, 0], history_tokens=[0, 32])
    workload = Workload(arrival_s=[0, 0], prompt_tokens=[64, 200], output_tokens=[64, 1], turns=turns)
    assert simulate(workload, PAGED, SLOW).requests.cached_tokens.tolist() == [0, 32]


def test_branches_share_and_their_own_tokens_differ() -> None:
    turns = Turns(after=[-1, 0, 0, 1])
    workload = Workload(
        arrival_s=[0, 0, 0, 0], prompt_tokens=[48, 100, 100, 200], output_tokens=[33, 29, 29, 5], turns=turns
    )
    requests = simulate(workload, PAGED, SLOW).requests
    assert requests.cached_tokens.tolist() == [0, 80, 80, 128]


def test_hashes_say_what_an_answer_was() -> None:
    """The second prompt repeats the first and another answer than the one that it waits for."""
    hashes = Ragged.from_rows([[1, 2], [1, 2, 3, 4], [1, 2, 9, 9]], np.int64)
    workload = Workload(
        arrival_s=[0, 0, 0], prompt_tokens=[32, 64, 64], output_tokens=[33, 2, 2], prompt_hashes=hashes,
        turns=Turns(after=[-1, 0, 1], history_tokens=[0, 64, 0]),
    )  # fmt: skip
    assert simulate(workload, PAGED, SLOW).requests.cached_tokens.tolist() == [0, 48, 32]


def test_the_same_arrivals_without_waiting_give_the_same_run() -> None:
    recording = simulate(conversation(5, sessions=6, every_s=0.1), PAGED, machine_of(3_200))
    fixed = workload_of(recording, waiting=False)
    again = simulate(fixed, PAGED, machine_of(3_200))
    for name in ("arrival_s", "first_token_s", "finished_s", "cached_tokens"):
        np.testing.assert_array_equal(getattr(again.requests, name), getattr(recording.requests, name), name)


def test_users_have_one_session_after_the_other() -> None:
    requests = simulate(conversation(3, sessions=6), PAGED, SLOW, users=2, think_s=1.0).requests
    assert requests.turns is not None
    session = requests.turns.session
    begin_s = np.array([requests.arrival_s[session == number].min() for number in range(6)])
    end_s = np.sort([requests.finished_s[session == number].max() for number in range(6)])
    assert begin_s[:2].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(begin_s[2:], end_s[:4] + 1.0, atol=0.01)


def test_sessions_take_users_and_no_limit_of_requests() -> None:
    with pytest.raises(UsageError, match="give users instead"):
        simulate(conversation(2), PAGED, SLOW, max_concurrency=3)


@pytest.mark.parametrize("route", ["round-robin", "shortest"])
def test_several_servers_answer_every_turn_once(route: Any) -> None:
    workload = conversation(4, sessions=5)
    runs = measure_fleet(workload, PAGED, SLOW, Replicas(number=2, route=route)).servers
    assert sum(len(run.requests) for run in runs) == len(workload)
    assert all(np.isfinite(run.requests.finished_s).all() for run in runs)


def test_the_turn_behind_a_refused_one_is_sent_at_once() -> None:
    """While its server computes for others, which would be told of the refusal later: arrivals ascend on every one."""
    workload = conversation(9, sessions=7, pause_s=0.0)
    policy = replace(PAGED, scheduler=replace(PAGED.scheduler, max_model_len=300))
    runs, _ = simulate_fleet(workload, policy, SLOW, Replicas(number=2, route="round-robin"), refuse_misfits=True)
    arrivals = [run.requests.arrival_s for run in runs]
    assert sum(map(len, arrivals)) == len(workload)
    assert sum((run.requests.status == RequestStatus.REFUSED).sum() for run in runs) > 20
    assert all((np.diff(arrival_s) >= 0).all() for arrival_s in arrivals)


def test_without_a_cache_every_token_is_computed() -> None:
    policy = replace(PAGED, cache=PagedSettings(enable_prefix_caching=False))
    assert not simulate(conversation(4), policy, SLOW).requests.cached_tokens.any()


def test_a_recording_without_turns_has_none() -> None:
    assert read(find("vllm-h200-llama-3-8b-sharegpt-pressure")).requests.turns is None


@pytest.mark.parametrize("users", [None, 1])
def test_a_turn_that_waits_for_several_comes_after_the_last(users: int | None, tmp_path: Path) -> None:
    """The branch of 400 tokens ends last, whichever is named first; the user's next session waits for all turns."""
    for first, second in ((1, 2), (2, 1)):
        turns = Turns(
            after=[-1, 0, 0, first, -1],
            pause_s=[0, 0, 0, 0.25, 0],
            also_after=Ragged.from_rows([[], [], [], [second], []], np.int64),
        )
        workload = Workload(
            arrival_s=np.zeros(5),
            prompt_tokens=[50, 80, 80, 500, 50],
            output_tokens=[10, 400, 5, 5, 5],
            turns=turns,
        )
        run = simulate(workload, PAGED, SLOW, users=users, check=True)
        requests = run.requests
        row = {name: number for number, name in enumerate(requests.id)}
        assert requests.arrival_s[row["r3"]] == pytest.approx(requests.finished_s[row["r1"]] + 0.25, abs=1e-3)
        if users:
            assert requests.arrival_s[row["r4"]] >= requests.finished_s[row["r3"]]
        write(run, tmp_path / f"{first}")
        assert len(read(tmp_path / f"{first}").requests) == 5
