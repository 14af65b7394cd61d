"""Which request waits for which."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvsim.errors import UsageError, WorkloadError
from kvsim.importers import LengthLimits, within
from kvsim.workload import Ragged, Turns, Workload


def table(after: list[int], **more: Any) -> Workload:
    """Requests with prompts of 10, 20, 30, ... tokens and answers of 5."""
    n = len(after)
    columns: dict[str, Any] = {"arrival_s": np.zeros(n), "prompt_tokens": 10 * np.arange(1, n + 1)}
    turns = {name: more.pop(name) for name in ("pause_s", "history_tokens", "also_after") if name in more}
    return Workload(**columns | {"output_tokens": np.full(n, 5)} | more, turns=Turns(after=after, **turns))


def turns_of(workload: Workload) -> Turns:
    assert workload.turns is not None
    return workload.turns


def test_sessions_and_turns_are_counted() -> None:
    turns = turns_of(table([-1, 0, 1, -1, 0, 3]))
    assert turns.session.tolist() == [0, 0, 0, 1, 0, 1]
    assert turns.turn.tolist() == [0, 1, 2, 0, 1, 1]
    assert turns.followers() == [[1, 4], [2], [], [5], [], []]
    assert repr(turns) == "<Turns: 6 turns of 2 sessions>"


def test_a_history_is_all_there_is_where_it_is_not_said() -> None:
    assert turns_of(table([-1, 0, 1], prompt_tokens=[10, 12, 60])).history_tokens.tolist() == [0, 12, 17]


def test_turns_come_behind_those_that_they_wait_for() -> None:
    workload = table([2, -1, 1], arrival_s=[0.0, 7.0, 3.0], ids=["last", "first", "second"])
    assert list(workload.ids) == ["first", "second", "last"]
    assert turns_of(workload).after.tolist() == [-1, 0, 1]
    assert workload.arrival_s.tolist() == [7.0, 7.0, 7.0]


def test_the_first_requests_are_whole_beginnings_of_sessions() -> None:
    head = table([-1, 0, -1, 2], arrival_s=[5.0, 5.0, 1.0, 1.0]).head(3)
    assert turns_of(head).after.tolist() == [-1, 0, -1]


def test_what_waits_for_a_request_that_is_left_out_goes_too() -> None:
    workload = within(table([-1, 0, 1, -1], prompt_tokens=[10, 90, 20, 10]), LengthLimits(max_prompt_tokens=50))
    assert turns_of(workload).after.tolist() == [-1, -1]


def test_sessions_end_where_a_prompt_is_too_long() -> None:
    workload = table([-1, 0, 1, -1], prompt_tokens=[10, 90, 20, 10]).cut(50)
    assert (len(workload), turns_of(workload).after.tolist()) == (2, [-1, -1])
    assert workload.description.endswith("sessions end at 50 tokens: without 2 turns")


def test_the_rate_is_that_of_sessions() -> None:
    workload = table([-1, 0, 1, -1, 3, -1], arrival_s=[0.0, 0.0, 0.0, 1.0, 1.0, 2.0])
    assert workload.summary().rate_per_s == 1.0
    assert workload.scaled_rate(2.0).summary().rate_per_s == 2.0


def test_answers_keep_their_lengths() -> None:
    with pytest.raises(UsageError, match="answers are part of the prompts of later turns"):
        table([-1, 0]).scaled_answers(2.0)


@pytest.mark.parametrize(
    ("after", "more", "sentence"),
    [
        ([-1, 5], {}, r"request 'r1' \(row 1\): it waits for row 5, and the rows are 0 to 1; give -1"),
        ([-1, -2], {}, r"request 'r1' \(row 1\): it waits for row -2"),
        ([-1, 1], {}, r"request 'r1' \(row 1\): it waits for 'r1', and these turns wait for each other in a circle"),
        ([2, 0, 1], {}, r"request 'r0' \(row 0\): it waits for 'r2', and these turns wait for each other in a circle"),
        ([-1, 0], {"pause_s": [0, -1]}, r"request 'r1' \(row 1\): its pause_s is -1; it must be a number of seconds"),
        ([-1, 0], {"pause_s": [0, np.inf]}, r"its pause_s is inf"),
        ([-1, 0], {"history_tokens": [0, 16]}, r"its history_tokens is 16; .* at most 15, the prompt and the answer"),
        ([-1, 0], {"history_tokens": [3, 0]}, r"request 'r0' \(row 0\): its history_tokens is 3; .* at most 0"),
    ],
)  # fmt: skip
def test_turns_that_cannot_be_right_are_refused(after: list[int], more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(WorkloadError, match=sentence):
        table(after, **more)


def test_columns_of_other_lengths_are_refused() -> None:
    with pytest.raises(UsageError, match="pause_s has 3 rows; it must have 2"):
        Turns(after=[-1, 0], pause_s=[0, 0, 0])
    with pytest.raises(UsageError, match="turns has 1 rows; it must have 2"):
        Workload(arrival_s=[0, 0], prompt_tokens=[1, 1], output_tokens=[1, 1], turns=Turns(after=[-1]))


def test_a_turn_may_wait_for_several() -> None:
    also = Ragged.from_rows([[], [], [], [1], []], np.int64)
    turns = turns_of(table([-1, 0, 0, 2, -1], also_after=also))
    assert turns.num_awaited() == [0, 1, 1, 2, 0]
    assert turns.followers() == [[1, 2], [3], [3], [], []]
    some = turns.take(np.array([0, 1, 3, 4]))
    assert (some.after.tolist(), some.num_awaited()) == ([-1, 0, 1, -1], [0, 1, 1, 0])
    assert turns.history_tokens[3] > 0
    assert some.history_tokens.tolist() == [0, turns.history_tokens[1], 0, 0], "the turn that row 3 repeats is gone"
    kept = turns.without_orphans(np.array([True, False, True, True, True]))
    assert kept.tolist() == [True, False, True, False, True]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([[], [], [7]], r"also_after should name rows 0 to 2"),
        ([[1], [], []], r"of a turn that has one in after, too"),
        ([[], [2], []], r"wait for each other in a circle"),
    ],
)
def test_waiting_for_several_must_be_possible(rows: list[list[int]], sentence: str) -> None:
    with pytest.raises(WorkloadError, match=sentence):
        table([-1, 0, 1], also_after=Ragged.from_rows(rows, np.int64))
    with pytest.raises(UsageError, match="also_after should have a row for each of the 3 turns, not 2"):
        table([-1, 0, 1], also_after=Ragged.from_rows([[], []], np.int64))
