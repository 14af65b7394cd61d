"""`kvsim compare` with several values of one flag: each side is what `kvsim run` says of it, and a sentence leads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvsim.cli import cli
from kvsim.recording import read

FEW = ("--num-requests", "20", "--arrivals", "poisson", "--rate", "20", "--prompt-tokens", "100:0.5", "--output-tokens",
       "20", "--shared-prefix", "4x64")  # fmt: skip


def kvsim(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def document(*words: str) -> dict[str, Any]:
    result = kvsim(*words, "--json")
    assert result.exit_code == 0, result.output or result.exception
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def refused(*words: str) -> str:
    result = kvsim("compare", *FEW, *words)
    assert result.exit_code, result.output
    return f"{result.output}{result.exception}"


@pytest.mark.parametrize(
    ("flag", "words", "sides"),
    [
        ((), ("--kv-cache-dtype", "auto", "fp8"), [("--kv-cache-dtype", "auto"), ("--kv-cache-dtype", "fp8")]),
        (
            ("--vllm", "0.25.1"),
            ("--kv-offloading-size", "0", "4"),
            [("--kv-offloading-size", "0"), ("--kv-offloading-size", "4")],
        ),
        (
            ("--num-blocks", "60"),
            ("--prefix-caching", "off", "on"),
            [("--no-prefix-caching",), ("--enable-prefix-caching",)],
        ),
        ((), ("--max-num-seqs=2", "4", "8"), [("--max-num-seqs", number) for number in "248"]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_each_side_is_the_run_with_that_value(
    flag: tuple[str, ...], words: tuple[str, ...], sides: list[tuple[str, ...]]
) -> None:
    both = document("compare", *FEW, *flag, *words)
    assert len(both) == len(sides)
    for side, own in zip(both.values(), sides, strict=True):
        assert side["servers"] == [document("run", *FEW, "--no-band", *flag, *own)]


def test_a_side_of_several_servers_is_the_fleet_with_that_route() -> None:
    fleet = ("--replicas", "2", "--num-blocks", "60")
    both = document("compare", *FEW, *fleet, "--route", "round-robin", "prefix")
    for route, side in both.items():
        alone = document("run", *FEW, *fleet, "--route", route)
        assert {name: side[name] for name in alone["fleet"]} == alone["fleet"]
        assert side["servers"] == alone["servers"]
    assert both["prefix"]["prefix_hit_rate"] != both["round-robin"]["prefix_hit_rate"]


def test_a_sentence_says_what_the_second_value_changes_and_the_table_by_how_much() -> None:
    printed = kvsim("compare", *FEW, "--max-num-seqs", "1", "20").output
    assert printed.startswith("--max-num-seqs 20 instead of 1: TTFT p99 ")
    assert "\n1: The batch is full (max_num_seqs 1)" in printed
    assert "change" in printed
    assert "  for a place in the batch" in printed


def test_of_three_values_the_sentence_names_the_best() -> None:
    assert kvsim("compare", *FEW, "--max-num-seqs", "1", "2", "20").output.startswith(
        "shortest TTFT p99: --max-num-seqs 20, "
    )


def test_values_without_effect_are_said_to_have_none() -> None:
    printed = kvsim("compare", *FEW, "--max-num-seqs", "600", "700").output
    assert printed.startswith("--max-num-seqs 600 and 700: no figure of this load moves by 1 %.")


def test_different_sources_of_times_are_said() -> None:
    printed = kvsim("compare", *FEW, "--no-prefix-caching", "--kv-cache-dtype", "auto", "fp8").output
    lines = printed.strip().splitlines()
    told = next(row for row, line in enumerate(lines) if line.startswith("the sides have different sources of times"))
    assert [line.partition(" ")[0] for line in lines[told - 2 : told]] == ["auto:", "fp8:"]
    assert all("times: measured on " in line for line in lines[told - 2 : told])
    assert lines[told + 1].startswith("no prefix hits: ")


def test_each_side_is_recorded_in_a_folder_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "sides"
    both = document("compare", *FEW, "--max-num-seqs", "2", "8", "-o", str(folder))
    for name, side in both.items():
        recording = read(folder / name)
        assert recording.meta.policy["max_num_seqs"] == int(name)
        assert len(recording.requests) == side["num_finished"]


def test_the_values_of_a_flag_end_where_a_server_line_begins() -> None:
    line = ("vllm", "serve", "meta-llama/Llama-3.1-8B", "--max-model-len", "4096", "--max-num-seqs", "9")
    both = document("compare", *FEW, "--gpu", "H100", "--max-num-seqs", "2", "4", *line)
    assert [side["servers"][0]["settings"]["policy_settings"]["max_num_seqs"] for side in both.values()] == [2, 4]


def test_several_policies_may_stand_behind_one_flag() -> None:
    assert list(document("compare", *FEW, "--policy", "paged", "contiguous")) == ["paged", "contiguous"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--seed", "4", "--seed", "5"), "--seed should be given once; compare two values with --seed 4 5."),
        (("--num-blocks", "40", "40"), "--num-blocks should have different values to compare, not 40 40."),
        (("--check", "on", "off"), "Got unexpected extra arguments (on off)"),
        (
            ("--prefix-caching", "on"),
            "--prefix-caching alone is a switch; to compare both of its values, ",
        ),
        (
            ("--seed", "1", "2", "--block-size", "16", "32"),
            "--seed and --block-size both have several values, and one flag is compared; kvsim sweep --vary",
        ),
        (("--max-num-seqs", "4", "many"), "'many' is not a valid integer"),
        (("--page-size", "1", "16"), "--page-size has no effect with --policy paged: it is for radix; leave it out."),
        (("--seed", "1", "2", "--policy", "paged", "radix"), "--seed and several policies compare different things"),
        (("--seed", "1", "2", "--ladder"), "--ladder and --uniform-cache compare different things; give one."),
        (("--replicas", "2"), "policies are compared on one server; give a flag of the fleet several values"),
        (("--route", "prefix", "nowhere"), "'nowhere' is none of shortest"),
        (("--prefill", "1", "2"), "prompts are computed on some servers and decoded on others; give --decode, too."),
        (("--replicas", "2", "--vllm", "0.25.1", "0.26.0"), "two releases are compared on one server"),
        (
            ("--policy", "radix", "--vllm", "0.25.1", "0.26.0"),
            "compared under --policy paged; leave out --policy radix",
        ),
        (
            ("--route", "shortest", "prefix"),
            "--route is for several servers; give --replicas N or --data-parallel-size",
        ),
        (
            ("--replicas", "2", "3", "--route-lag", "1"),
            "--route-lag is for routers that see prefix caches; give --route",
        ),
        (("--times", "own", "--max-num-seqs", "4", "8"), "--times own changes only the times of static batches"),
        (("--policy", "paged", "--page-size", "16"), "--page-size has no effect with --policy paged: it is for radix"),
        (("--ladder", "--swap-gib", "1"), "--rate has no effect with --ladder; leave one out."),
        (("--ladder", "--times", "own"), "--times has no effect with --ladder; leave one out."),
        (("--overwrite",), "--overwrite requires -o; give both."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_compared_is_refused(words: tuple[str, ...], sentence: str) -> None:
    assert sentence in " ".join(refused(*words).split())
