"""Generated sessions: growing histories, pauses, and arrivals of first turns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import UsageError
from kvsim.fitting import repeated
from kvsim.workload import Constant, LogNormal, Pauses, SharedPrefixes, Turns, Workload, converse


def turns_of(workload: Workload) -> Turns:
    assert workload.turns is not None
    return workload.turns


def test_prompts_repeat_all_that_was_said() -> None:
    workload = converse(
        2, turns=3, pauses=4.0, prompt=10, output=5, arrivals=Constant(rate_per_s=0.5),
        prefixes=SharedPrefixes(num_groups=1, tokens=100),
    )  # fmt: skip
    assert workload.prompt_tokens.tolist() == [110, 125, 140] * 2
    assert workload.arrival_s.tolist() == [0.0] * 3 + [2.0] * 3
    assert workload.prefix_tokens.tolist() == [100] * 6
    turns = turns_of(workload)
    assert turns.after.tolist() == [-1, 0, 1, -1, 3, 4]
    assert turns.pause_s.tolist() == [0.0, 4.0, 4.0] * 2
    assert turns.history_tokens.tolist() == [0, 115, 130] * 2
    assert workload.description == (
        "2 sessions of 3 turns, 0.5 a second, evenly, pauses of 4 s; prompts of 10 tokens, answers of 5 tokens; seed "
        "0, behind one of 1 prefixes of 100 tokens"
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 99), sigma=st.sampled_from([0.3, 1.0]), num_sessions=st.integers(1, 30))
def test_histories_are_what_the_turn_before_left(seed: int, sigma: float, num_sessions: int) -> None:
    drawn = LogNormal(mean_tokens=6, sigma=sigma)
    usual: dict[str, Any] = {"turns": drawn, "pauses": Pauses(mean_s=2, sigma=1), "prompt": drawn, "output": drawn}
    workload = converse(num_sessions, **usual, seed=seed)
    turns, total = turns_of(workload), workload.prompt_tokens + workload.output_tokens
    later = turns.after >= 0
    assert (turns.history_tokens[later] == total[turns.after[later]]).all()
    assert (workload.prompt_tokens > turns.history_tokens).all()
    assert int((~later).sum()) == num_sessions
    assert not turns.pause_s[~later].any()
    again = converse(num_sessions, **usual, seed=seed)
    assert again.prompt_tokens.tobytes() == workload.prompt_tokens.tobytes()
    assert turns_of(again).pause_s.tobytes() == turns.pause_s.tobytes()


def test_pauses_have_their_mean() -> None:
    drawn = Pauses(mean_s=3.0, sigma=0.7).sample(200_000, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(3.0, rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"num_sessions": 0}, "0 sessions were asked for; ask for 1 to"),
        ({"pauses": -1.0}, "the mean pause is -1.0"),
        ({"seed": -1}, "the seed is -1"),
        ({"turns": 0}, "turns is 0"),
        ({"turns": 1 << 25}, "are more than 16,777,216 requests"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments: dict[str, object], sentence: str) -> None:
    usual: dict[str, object] = {"num_sessions": 2, "turns": 2, "prompt": 10, "output": 5}
    with pytest.raises(UsageError, match=sentence):
        converse(**usual | arguments)  # type: ignore[arg-type]


def test_a_sigma_that_is_no_number_is_refused() -> None:
    with pytest.raises(UsageError, match="the sigma of the pauses is nan"):
        Pauses(mean_s=1.0, sigma=float("nan"))


def test_a_load_repeats_whole_sessions() -> None:
    workload = converse(3, turns=2, prompt=10, output=5, arrivals=Constant(rate_per_s=1.0))
    longer = repeated(workload, 9)
    assert turns_of(longer).after.tolist() == [-1, 0, -1, 2, -1, 4, -1, 6, -1, 8]
    assert longer.arrival_s.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert turns_of(repeated(workload, 3)).after.tolist() == [-1, 0, -1, 2]
