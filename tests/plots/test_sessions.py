"""The figure of sessions, asked for its data and its words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kvsim.errors import RecordingError, UsageError
from kvsim.metrics.session_turns import session_turns
from kvsim.plots.everything import figure_of, plans
from kvsim.plots.sessions_over_time import sessions
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings
from kvsim.recording import Recording
from kvsim.simulation import Machine, simulate
from kvsim.workload import Constant, converse

from .test_figures import words_on

POLICY = Paged(scheduler=ContinuousSettings(max_num_seqs=8, max_model_len=2048))


@pytest.fixture(scope="module")
def talks(make_machine: Callable[[int], Machine]) -> Recording:
    workload = converse(
        20, turns=4, pauses=1.0, prompt=60, output=40, arrivals=Constant(rate_per_s=8.0), seed=1
    )  # fmt: skip
    return simulate(workload, POLICY, make_machine(1600))


def test_bars_are_the_mean_prompts_of_turns(talks: Recording) -> None:
    turns = session_turns(talks)
    bars = sessions(talks).axes[1].patches
    found, lost, new = (np.array([bar.get_height() for bar in bars[4 * kind : 4 * kind + 4]]) for kind in range(3))  # type: ignore[attr-defined]
    prompts = talks.requests.prompt_tokens
    for number in range(4):
        rows = turns.turn == number + 1
        assert found[number] == pytest.approx(turns.hit_tokens[rows].mean())
        assert lost[number] == pytest.approx(turns.lost_tokens[rows].mean())
        assert found[number] + lost[number] + new[number] == pytest.approx(prompts[rows].mean())
    assert lost.sum() > 0


def test_each_eviction_that_hurt_is_marked(talks: Recording) -> None:
    turns = session_turns(talks)
    marks = sessions(talks).axes[0].get_lines()[0]
    known = np.isfinite(turns.evicted_s)
    assert known.any()
    assert sorted(np.asarray(marks.get_xdata())) == pytest.approx(sorted(turns.evicted_s[known]))
    # Rows have the numbers of `kvsim info`.
    drawn = sorted(zip(np.asarray(marks.get_xdata()), np.asarray(marks.get_ydata()), strict=True))
    assert drawn == sorted(zip(turns.evicted_s[known], turns.session[known], strict=True))
    hurt = int((turns.lost_tokens > 0).sum())
    assert f"of the histories is computed again, in {hurt} turns" in words_on(sessions(talks))


def test_with_room_every_history_is_found(make_machine: Callable[[int], Machine]) -> None:
    talks = simulate(converse(50, turns=2, prompt=30, output=20), POLICY, make_machine(160_000))
    picture = sessions(talks)
    assert "Every turn finds its whole history in the prefix cache" in words_on(picture)
    assert picture.axes[0].get_title(loc="left") == "sessions over time, 40 of 50"
    number_of = picture.axes[0].yaxis.get_major_formatter()
    assert [number_of(row, None) for row in (-1, 0, 39, 40)] == ["", "0", "49", ""]
    assert "0 were computed again" in picture.alt_text


def test_it_is_drawn_where_there_are_sessions(talks: Recording, paged: Recording) -> None:
    assert "sessions" in {plan.kind for plan in plans([talks])}
    assert "sessions" not in {plan.kind for plan in plans([paged])}
    with pytest.raises(RecordingError, match="has no sessions"):
        figure_of("sessions", [paged])
    with pytest.raises(UsageError, match="a figure of sessions shows one recording, and 2 were given"):
        figure_of("sessions", [talks, talks])
