"""What turns found of their histories, and the evictions that took the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvsim
from kvsim.errors import RecordingError
from kvsim.metrics.session_turns import by_turn
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings
from kvsim.workload import Turns, Workload, converse

POLICY = Paged(scheduler=ContinuousSettings(max_num_seqs=8, max_model_len=2048))


def run_of(workload: Workload, num_blocks: int) -> kvsim.Run:
    return kvsim.simulate(workload, POLICY, kvsim.machine("H200", "Meta-Llama-3-8B", num_blocks=num_blocks))


def stolen() -> Workload:
    """A session pauses, and another request takes the memory of its first turn meanwhile."""
    return Workload(
        arrival_s=[0.0, 0.0, 1.0], prompt_tokens=[320, 400, 480], output_tokens=[17, 2, 2], ids=["one", "two", "thief"],
        turns=Turns(after=[-1, 0, -1], pause_s=[0.0, 3.0, 0.0]),
    )  # fmt: skip


def test_the_eviction_that_hurt_a_turn_is_named() -> None:
    run = run_of(stolen(), 32)
    turns, names = run.turns, run.requests.id.tolist()
    two = names.index("two")
    assert turns.turn[two] == 2
    assert turns.history_tokens[two] == 337
    assert turns.hit_tokens[two] + turns.lost_tokens[two] == 336
    assert turns.lost_tokens[two] > 0
    assert names[turns.evicted_for[two]] == "thief"
    assert 1.0 <= turns.evicted_s[two] < 3.0
    others = np.arange(len(names)) != two
    assert not turns.lost_tokens[others].any()
    assert np.isnan(turns.evicted_s[others]).all()
    assert (turns.evicted_for[others] == -1).all()


def test_with_room_nothing_is_lost() -> None:
    turns = run_of(stolen(), 200).turns
    assert not turns.lost_tokens.any()
    assert turns.hit_tokens.tolist() == [0, 0, 336]


def test_hits_and_losses_are_the_history_in_full_blocks() -> None:
    workload = converse(30, turns=5, pauses=2.0, prompt=60, output=50, arrivals=kvsim.workload.Constant(rate_per_s=4.0))
    run = run_of(workload, 120)
    turns = run.turns
    computed = np.where(turns.after < 0, 0, turns.history_tokens - 1) // 16 * 16
    assert (turns.hit_tokens + turns.lost_tokens == computed).all()
    hurt = turns.lost_tokens > 0
    assert hurt.any()
    assert not hurt.all()
    assert (turns.evicted_for[hurt] >= 0).all()
    assert (turns.evicted_s[hurt] <= run.requests.first_scheduled_s[hurt]).all()
    ended_s = run.requests.finished_s[turns.after[hurt]]
    assert (turns.evicted_s[hurt] >= ended_s - 1e-9).mean() > 0.9
    table = by_turn(run.requests, 16)
    assert [row.turn for row in table] == ["1", "2", "3", "4", "5"]
    assert [row.num_requests for row in table] == [30] * 5
    assert sum(row.lost_tokens for row in table) == turns.lost_tokens.sum()
    assert sum(row.hit_tokens for row in table) == turns.hit_tokens.sum()


def test_long_sessions_end_in_one_row() -> None:
    run = run_of(converse(1, turns=12, prompt=10, output=5), 100)
    assert [(row.turn, row.num_requests) for row in by_turn(run.requests, 16)][-2:] == [("7", 1), ("8+", 5)]


def test_a_table_of_another_library() -> None:
    columns: Any = run_of(stolen(), 32).turns.to_arrow()
    assert columns.column_names[:4] == ["request", "session", "turn", "after"]
    assert columns["lost_tokens"].to_pylist()[0] == 0


def test_without_sessions_there_are_no_turns() -> None:
    run = run_of(Workload(arrival_s=[0.0], prompt_tokens=[9], output_tokens=[2]), 20)
    assert by_turn(run.requests, 16) == []
    with pytest.raises(RecordingError, match="has no sessions: none of its requests waits for another"):
        _ = run.turns


@pytest.mark.parametrize("model", ["gemma-3-4b-it", "gpt-oss-20b"])
def test_with_several_groups_the_eviction_is_named_too(model: str) -> None:
    """Layers with windows have blocks of their own, which are evicted like the others."""
    talks = converse(25, turns=4, pauses=2.0, prompt=150, output=60, arrivals=kvsim.workload.Constant(rate_per_s=4.0))
    machine = kvsim.machine("H200", model, num_blocks=400)
    policy = Paged(scheduler=ContinuousSettings(max_num_seqs=8, max_model_len=4096))
    run = kvsim.simulate(talks, policy, machine, engine="interpreted")
    assert run.meta.pool.groups
    turns = run.turns
    hurt, named = turns.lost_tokens > 0, ~np.isnan(turns.evicted_s)
    assert hurt.sum() > 5
    assert (named <= hurt).all()
    assert named.sum() > 0.8 * hurt.sum()
    assert (turns.evicted_s[named] <= run.requests.first_scheduled_s[named]).all()
    assert (turns.evicted_for[named] != turns.request[named]).all()
