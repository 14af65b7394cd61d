"""Flags of loads, through `kvsim run`: more of a recorded load, users, ramps, days, and the names of vllm bench."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from kvsim.cli.workload_flags import DEFAULT_WORKLOAD

if TYPE_CHECKING:
    from pathlib import Path

Run = Callable[..., tuple[int, str, str]]
FEW = ("run", "--num-requests", "20", "--engine", "interpreted", "--no-band", "--json")
LENGTHS = ("--prompt-tokens", "50", "--output-tokens", "5")


def document(type_command: Run, *flags: str) -> Any:
    code, said, complaint = type_command(*FEW, *flags)
    assert code == 0, complaint
    return json.loads(said)


def test_twice_the_load_comes_twice_as_fast_and_longer_answers_are_longer(type_command: Run) -> None:
    once, twice = document(type_command), document(type_command, "--load", "2x")
    assert twice["output_tokens"] == once["output_tokens"]
    assert twice["duration_s"] < once["duration_s"]
    longer = document(type_command, "--answers", "2x")
    assert longer["output_tokens"] == 2 * once["output_tokens"]


def test_names_of_vllm_bench_serve_mean_what_they_mean_there(type_command: Run) -> None:
    ours = document(type_command, "--arrivals", "poisson", "--rate", "50", *LENGTHS)
    theirs = document(type_command, "--arrivals", "poisson", "--request-rate", "50", "--random-input-len", "50",
                      "--random-output-len", "5")  # fmt: skip
    assert ours == theirs
    assert document(type_command, "--num-prompts", "20", "--burstiness", "1", "--rate", "50", *LENGTHS)
    at_once = document(type_command, "--request-rate", "inf", *LENGTHS)
    assert at_once == document(type_command, "--arrivals", "at-once", *LENGTHS)
    bursts = document(type_command, "--arrivals", "gamma", "--rate", "50", *LENGTHS)
    assert bursts == document(type_command, "--burstiness", "0.25", "--rate", "50", *LENGTHS)
    users = document(type_command, "--users", "4", "--arrivals", "at-once", *LENGTHS)
    assert users == document(type_command, "--max-concurrency", "4", "--arrivals", "at-once", *LENGTHS)
    assert users == document(type_command, "--users", "2", "--load", "2x", "--arrivals", "at-once", *LENGTHS)
    varied = document(type_command, "--random-range-ratio", "0.5", *LENGTHS[:2], "--random-output-len", "40")
    assert 20 * 20 <= varied["output_tokens"] <= 20 * 60


def test_arrivals_of_which_few_are_sent_at_once(type_command: Run) -> None:
    """Like `vllm bench serve` with a rate and a limit: a client that keeps requests back, not users in a loop."""
    free = document(type_command, "--request-rate", "50", *LENGTHS)
    limited = document(type_command, "--request-rate", "50", "--max-concurrency", "1", *LENGTHS)
    loose = document(type_command, "--request-rate", "50", "--max-concurrency", "20", *LENGTHS)
    slow = document(type_command, "--request-rate", "2", "--max-concurrency", "4", *LENGTHS)
    assert loose["duration_s"] == free["duration_s"]
    assert limited["duration_s"] > free["duration_s"]
    assert slow["duration_s"] > 4 * free["duration_s"], "a limit never hurries arrivals"
    code, _, said = type_command("run", "--users", "4", "--rate", "2", *LENGTHS)
    assert code != 0
    assert "--max-concurrency" in said


def test_a_ramp_and_a_day(type_command: Run, tmp_path: Path) -> None:
    ramp = document(type_command, "--ramp", "4", "--rate", "10", *LENGTHS)
    assert ramp["duration_s"] > 20 / 10 * 1.2, "later than at the full rate"
    (tmp_path / "day.csv").write_text("minute,rate_per_s\n0,1\n1,5\n2,1\n", encoding="utf-8")
    code, said, _ = type_command("run", "--rate-profile", "day.csv", *LENGTHS, "--engine", "interpreted", "--no-band")
    assert code == 0
    assert "All 360 requests are served" in said, "as many as the profile has: three a second for two minutes"


def test_drawn_lengths_are_cut_and_counted(type_command: Run) -> None:
    code, said, _ = type_command(
        *FEW[:-1], "--arrivals", "at-once", "--prompt-tokens", "300:1", "--max-model-len", "400"
    )
    assert code == 0
    assert "; cut at 400 tokens: " in said
    assert "All 20 requests are served" in said


def test_any_csv(type_command: Run, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("Timestamp;Input Tokens;completion-tokens\n10,5;40;4\n12;50;5\n", encoding="utf-8")
    (tmp_path / "b.csv").write_text("when,in,out\n1.5,40,4\n3,50,5\n", encoding="utf-8")
    (tmp_path / "c.csv").write_text("time_ms,prompt,output\n1500,40,4\n3000,50,5\n", encoding="utf-8")
    (tmp_path / "d.csv").write_text(
        "date,prompt,output\n2026-11-22T10:00:01.5,40,4\n2026-11-22T10:00:03,50,5\n", encoding="utf-8"
    )
    named = ("--columns", "arrival_s=when,prompt_tokens=in,output_tokens=out")
    for file, flags in (("a.csv", ()), ("b.csv", named), ("c.csv", ()), ("d.csv", ())):
        code, said, complaint = type_command("import", file, *flags, "--json")
        assert code == 0, complaint
        found = json.loads(said)
        assert (found["num_requests"], found["mean_prompt_tokens"], found["mean_output_tokens"]) == (2, 45, 4.5)
        assert found["duration_s"] == pytest.approx(1.5)
    assert type_command("run", "--workload", "b.csv", *named, "--engine", "interpreted")[0] == 0
    code, _, complaint = type_command("run", "--workload", "b.csv")
    assert code == 1
    assert "'when,in,out' begins no known format; a CSV file has the columns arrival_s, prompt_tokens" in complaint
    assert "lines such as 0.5,200,100" in complaint
    assert "--columns arrival_s=...,prompt_tokens=...,output_tokens=..." in complaint


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--load", "twice"), "--load should be how many times as much, such as 2x"),
        (("--answers", "0x"), "--answers should be how many times as much"),
        (
            ("--load", "2x", "--arrivals", "at-once"),
            "--load makes requests arrive faster, and these arrive all at once",
        ),
        (("--ramp", "0", "--rate", "3"), "--ramp should be a positive number of seconds"),
        (("--ramp", "3", "--arrivals", "gamma"), "leave --arrivals out"),
        (("--rate-profile", "x.csv", "--rate", "3"), "--rate-profile states the rate at every time"),
        (("--burstiness", "1", "--arrivals", "constant"), "--burstiness is of gamma arrivals"),
        (("--random-range-ratio", "0.5", "--prompt-tokens", "9:1"), "--random-range-ratio should be a share"),
        (
            ("--workload", DEFAULT_WORKLOAD, "--columns", "arrival_s"),
            "--columns should be pairs such as arrival_s=timestamp",
        ),
        (("--columns", "a=b", "--arrivals", "at-once"), "--columns requires --workload; give both."),
        (("--think-time", "1"), "--think-time requires --users; give both."),
        (("--spawn-rate", "1"), "--spawn-rate requires --users; give both."),
    ],
)
def test_what_contradicts_itself_is_a_sentence(type_command: Run, flags: tuple[str, ...], sentence: str) -> None:
    code, said, complaint = type_command("run", *flags)
    assert (code, said) == (2, "")
    assert sentence in complaint


@pytest.mark.parametrize(
    ("content", "sentence"),
    [("a,b\n1,2\n", "the header is 'a,b'; a profile has one of time_s, minute, hour and one of rate_per_s"),
     ("hour,rate_per_s\n0,x\n", "line 2: rate_per_s should be a finite number")],
)  # fmt: skip
def test_a_day_that_is_none_is_a_sentence(type_command: Run, tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "day.csv").write_text(content, encoding="utf-8")
    code, _, complaint = type_command("run", "--rate-profile", "day.csv")
    assert code == 1
    assert sentence in complaint


def test_sessions_are_run_told_of_and_fitted(kvsim: Any, tmp_path: Path) -> None:
    flags = ("--sessions", "12", "--turns", "4", "--pause", "0.5", "--rate", "4", "--num-blocks", "500")
    talks = str(tmp_path / "talks")
    said = kvsim("run", *flags, "--no-band", "-o", talks).stdout
    assert "12 sessions of 4 turns, 4 a second (Poisson), pauses of 0.5 s" in said
    assert "turns of sessions" in said
    turns = json.loads(kvsim("run", *flags, "--no-band", "--json").stdout)["turns"]
    assert [turn["num_requests"] for turn in turns] == [12] * 4
    assert json.loads(kvsim("info", talks, "--json").stdout)["turns"] == turns
    assert "computed again" in kvsim("info", talks).stdout
    again = json.loads(kvsim("run", "--workload", talks, "--no-band", "--json").stdout)
    assert again["turns"] == turns
    fit = ("fit", "--gpu", "H100", "--model", "Llama-3.1-8B", "--turns", "3", "--prompt-tokens", "50")
    fit += ("--sessions", "12", "--users", "4", "--points", "1", "--output-tokens", "20", "--jobs", "1")
    users = json.loads(kvsim(*fit, "--json").stdout)
    assert users["load"]["users"] == 4


def test_a_rate_of_sessions_is_named_so(kvsim: Any) -> None:
    flags = ("--rate", "2", "--sessions", "12", "--turns", "3", "--prompt-tokens", "50", "--output-tokens", "20")
    said = kvsim("fit", "--gpu", "H100", "--model", "Llama-3.1-8B", *flags, "--points", "0", "--jobs", "1").stdout
    assert "2 sessions a second" in said
