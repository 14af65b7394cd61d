"""Files of conversations and agents: which turn waits for which, and how long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import WorkloadError
from kvsim.importers import arriving, read_workload, write_workload
from kvsim.workload import Constant, Turns, Workload


def lines(tmp_path: Path, *rows: dict[str, Any], form: str | None = None) -> Workload:
    file = tmp_path / "talk.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_workload(file, form=form)


def turns_of(workload: Workload) -> Turns:
    assert workload.turns is not None
    return workload.turns


TALK = (
    {"id": "a", "session": "s", "arrival_s": 1.0, "prompt_tokens": 100, "output_tokens": 20, "prefix_group": "system",
     "prefix_tokens": 60},
    {"id": "x", "arrival_s": 3.0, "prompt_tokens": 50, "output_tokens": 9},
    {"id": "b", "session": "s", "pause_s": 2.5, "new_tokens": 30, "output_tokens": 10},
    {"id": "c", "after": "a", "new_tokens": 7, "output_tokens": 1, "history_tokens": 80, "max_tokens": 4},
    {"id": "d", "session": "s", "prompt_tokens": 170, "output_tokens": 3, "priority": 1},
)  # fmt: skip


def test_turns_follow_their_session_or_what_they_name(tmp_path: Path) -> None:
    workload = lines(tmp_path, *TALK)
    assert list(workload.ids) == ["a", "b", "c", "d", "x"]
    turns = turns_of(workload)
    assert turns.after.tolist() == [-1, 0, 0, 1, -1]
    assert turns.pause_s.tolist() == [0.0, 2.5, 0.0, 0.0, 0.0]
    assert turns.history_tokens.tolist() == [0, 120, 80, 160, 0]
    assert workload.prompt_tokens.tolist() == [100, 150, 87, 170, 50]
    assert workload.arrival_s.tolist() == [1.0, 1.0, 1.0, 1.0, 3.0]
    assert (workload.max_tokens.tolist(), workload.priority.tolist()) == ([20, 10, 4, 3, 9], [0, 0, 0, 1, 0])
    assert workload.prefix_tokens.tolist() == [60, 0, 0, 0, 0]


def test_a_workload_comes_back_from_its_file(tmp_path: Path) -> None:
    workload = lines(tmp_path, *TALK)
    again = turns_of(read_workload(write_workload(workload, tmp_path / "w.parquet")))
    for name in ("after", "pause_s", "history_tokens"):
        assert getattr(again, name).tolist() == getattr(turns_of(workload), name).tolist()


def test_new_arrivals_are_those_of_sessions(tmp_path: Path) -> None:
    workload = arriving(lines(tmp_path, *TALK), Constant(rate_per_s=0.5), seed=0)
    assert workload.arrival_s.tolist() == [0.0, 0.0, 0.0, 0.0, 2.0]


FIRST = {"id": "a", "session": "s", "prompt_tokens": 10, "output_tokens": 5}


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([FIRST, {"after": "z", "new_tokens": 1, "output_tokens": 1}], r"line 2: it waits for 'z', and no line"),
        ([FIRST | {"after": "a"}], r"line 1: it waits for 'a', and no line before it has this name"),
        ([FIRST, FIRST | {"id": "b", "pause_s": -1}], r"line 2: pause_s should be a number of seconds, 0 or"),
        ([FIRST, FIRST | {"id": "b", "pause_s": "soon"}], r"line 2: pause_s should be a number of seconds"),
        ([FIRST, FIRST | {"id": "b", "pause_s": 10**400}], r"line 2: pause_s should be a number of seconds"),
        ([FIRST | {"pause_s": 1}], r"line 1: pause_s is of a turn that waits for another; name that one in after"),
        ([FIRST, FIRST | {"id": "b", "history_tokens": 99}], r"line 2: history_tokens should be a whole number"),
        ([FIRST | {"new_tokens": 3}], r"line 1: it has prompt_tokens, the whole prompt, or new_tokens"),
        ([{"id": "a", "output_tokens": 3, "prompt_tokens": 1, "wait": 1}], r"line 1: there is no field 'wait'; the"),
        ([FIRST, FIRST | {"id": "b", "arrival_s": 1}], r"line 2: arrival_s is here and not in the first line"),
        ([{"prompt_tokens": 1, "output_tokens": 1}, FIRST], r"line 2: it has an id, and the first line has none"),
        ([FIRST | {"session": [1]}], r"line 1: session should be a text or a whole number"),
        ([FIRST | {"prefix_group": "p"}], r"line 1: prefix_group and prefix_tokens go together"),
        ([FIRST, FIRST], r"row 0 has this id; give another"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused(tmp_path: Path, rows: list[dict[str, Any]], sentence: str) -> None:
    with pytest.raises(WorkloadError, match=sentence):
        lines(tmp_path, *rows)


def trace(prompt: int, output: int, hashes: list[int], **more: Any) -> dict[str, Any]:
    return {"input_length": prompt, "output_length": output, "hash_ids": hashes, **more}


def test_dynamos_sessions_wait_for_the_line_before(tmp_path: Path) -> None:
    workload = lines(
        tmp_path,
        trace(1024, 100, [1, 2], session_id="a", timestamp=1000),
        trace(1536, 100, [1, 2, 3], session_id="a", delay_ms=50),
        trace(1024, 64, [9, 10], session_id="b", timestamp=1010),
        trace(1536, 64, [9, 11, 12], session_id="b", timestamp=1060),
        trace(100, 5, [20], timestamp=1020),
    )
    turns = turns_of(workload)
    assert turns.session.tolist() == [0, 0, 1, 1, 2]
    assert turns.pause_s.tolist() == [0.0, 0.05, 0.0, 0.05, 0.0]
    assert turns.history_tokens.tolist() == [0, 1124, 0, 512, 0]
    assert workload.arrival_s.tolist() == [1.0, 1.0, 1.01, 1.01, 1.02]


def test_dynamos_agents_wait_for_what_they_name(tmp_path: Path) -> None:
    workload = lines(
        tmp_path,
        trace(512, 10, [1], request_id="root", session_id="r", timestamp=0),
        trace(512, 10, [2], request_id="child", session_id="c", wait_for=["root"], delay=10.0),
        trace(512, 10, [3], request_id="other", session_id="d", wait_for=["root"]),
        trace(1024, 10, [1, 4], request_id="end", session_id="r", wait_for=["child", "other"], delay=10.0,
              tool_wait_ms=2500.0),
    )  # fmt: skip
    turns = turns_of(workload)
    assert turns.after.tolist() == [-1, 0, 0, 2]
    assert turns.pause_s.tolist() == [0.0, 0.01, 0.0, 2.51]
    assert turns.history_tokens.tolist() == [0, 0, 0, 0]
    assert turns.also_after[3].tolist() == [1]
    assert turns.num_awaited() == [0, 1, 1, 2]


def test_a_list_of_turns_is_waited_for_and_kept(tmp_path: Path) -> None:
    workload = lines(
        tmp_path,
        {"id": "a", "arrival_s": 0.0, "prompt_tokens": 100, "output_tokens": 10},
        {"id": "b", "after": "a", "new_tokens": 10, "output_tokens": 400},
        {"id": "c", "after": ["a"], "new_tokens": 10, "output_tokens": 5},
        {"id": "d", "after": ["b", "c", "b"], "pause_s": 1.0, "new_tokens": 10, "output_tokens": 5},
    )
    assert turns_of(workload).after.tolist() == [-1, 0, 0, 2]
    assert turns_of(workload).also_after[3].tolist() == [1]
    file = tmp_path / "kept.parquet"
    write_workload(workload, file)
    assert turns_of(read_workload(file)).also_after[3].tolist() == [1]
    for after in ([], ["a", 3]):
        with pytest.raises(WorkloadError, match="line 2: after should be"):
            lines(
                tmp_path,
                {"id": "a", "arrival_s": 0.0, "prompt_tokens": 100, "output_tokens": 10},
                {"id": "b", "after": after, "new_tokens": 10, "output_tokens": 5},
            )


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"wait_for": ["x"]}, r"line 2: it waits for 'x', and no line before it has this name"),
        ({"wait_for": "root"}, r"line 2: session_id and request_id should be texts, and wait_for a list of texts"),
        ({"session_id": "a", "delay": -1}, r"line 2: delay, delay_ms and tool_wait_ms should be numbers"),
    ],
)  # fmt: skip
def test_sessions_of_dynamo_that_cannot_be_right_are_refused(
    tmp_path: Path, more: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(WorkloadError, match=sentence):
        lines(tmp_path, trace(512, 9, [1], session_id="a", timestamp=0), trace(512, 9, [1], timestamp=0) | more)


def test_a_trace_without_sessions_has_no_turns(tmp_path: Path) -> None:
    workload = lines(tmp_path, trace(512, 9, [1], timestamp=0), trace(512, 9, [1], timestamp=5))
    assert workload.turns is None
    assert list(workload.ids) == ["r0", "r1"]


def test_sharegpt_gives_every_turn(tmp_path: Path) -> None:
    def talk(*tokens: int) -> dict[str, Any]:
        names = ("human", "gpt") * len(tokens)
        said = zip(names, tokens, strict=False)
        return {"conversations": [{"from": name, "value": "", "tokens": number} for name, number in said]}

    workload = lines(tmp_path, talk(10, 20, 5, 7, 3), talk(4, 6), talk(8), form="sharegpt-turns")
    assert workload.prompt_tokens.tolist() == [10, 35, 4]
    assert workload.output_tokens.tolist() == [20, 7, 6]
    assert turns_of(workload).after.tolist() == [-1, 0, -1]
    assert turns_of(workload).history_tokens.tolist() == [0, 30, 0]
    assert "without 1 that have no prompt or no answer" in workload.description


def csv(tmp_path: Path, *rows: str) -> Workload:
    file = tmp_path / "talk.csv"
    file.write_text("\n".join(rows), encoding="utf-8")
    return read_workload(file)


HEADER = "id,arrival_s,prompt_tokens,output_tokens,after,pause_s,history_tokens"


def test_columns_say_what_waits_for_what(tmp_path: Path) -> None:
    workload = csv(
        tmp_path, HEADER, "a,0,100,10,,,", "b,0,150,400,a,,", "c,0,130,5,a,0.5,64", "d,2,600,5,b;c,1,", "e,1,50,5,,,"
    )
    turns = turns_of(workload)
    assert [str(name) for name in workload.ids] == ["a", "b", "c", "e", "d"]
    assert turns.after.tolist() == [-1, 0, 0, -1, 2]
    assert turns.pause_s.tolist() == [0, 0, 0.5, 0, 1]
    assert turns.history_tokens.tolist() == [0, 110, 64, 0, 135]
    assert turns.also_after[4].tolist() == [1]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (
            ("id,prompt_tokens,output_tokens,after", "a,10,5,"),
            r"line 1: the column after needs the columns id and arrival_s",
        ),
        ((HEADER, "a,0,10,5,x,,"), r"line 2: it waits for 'x', and no line before it has this name"),
        ((HEADER, "a,0,10,5,,1,"), r"line 2: pause_s is of a turn that waits for another; name that one in after"),
        (
            (HEADER, "a,0,10,5,,,", "b,0,20,5,a,-1,"),
            r"line 3: pause_s should be a number of seconds, 0 or more, not '-1'",
        ),
        ((HEADER, "a,0,10,5,,,", "b,0,20,5,a,,21"), r"line 3: history_tokens should be a whole number from 0 to 20"),
        (
            ("arrival_s,prompt_tokens,output_tokens,pause_s", "0,10,5,1"),
            r"line 2: pause_s is of a turn.*give a column after",
        ),
    ],
)
def test_columns_that_cannot_be_right_are_refused(tmp_path: Path, rows: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(WorkloadError, match=sentence):
        csv(tmp_path, *rows)
