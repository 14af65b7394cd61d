"""`kvsim fit` through the entry point."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

Run = Callable[..., tuple[int, str, str]]
SMALL = ("fit", "--model", "Meta-Llama-3-8B", "--gpu", "H200", "--num-blocks", "60", "--max-model-len", "512",
         "--users", "12", "--num-requests", "48", "--prompt-tokens", "60", "--output-tokens", "30",
         "--engine", "interpreted", "--jobs", "1")  # fmt: skip


def test_the_first_line_is_the_verdict_and_flags_are_vllms(type_command: Run, tmp_path: Path) -> None:
    code, said, complaint = type_command(*SMALL, "--points", "8", "--figure", "fit.svg")
    assert (code, complaint) == (0, "")
    lines = said.splitlines()
    assert lines[0].startswith("No: ")
    assert "of 12 users fit; " in lines[0]
    assert lines[1].startswith("Limit: memory: 60 blocks hold 9 requests of 90 tokens, and are full. Of the time, ")
    assert any(line.startswith("1  vllm serve meta-llama/Meta-Llama-3-8B --num-gpu-blocks-override ") for line in lines)
    assert "in brackets: the 80 % interval of such predictions" in said
    assert lines[-1].startswith("Tried and not much nearer: max_num_seqs ")
    assert (tmp_path / "fit.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_json_has_everything_that_was_tried(type_command: Run) -> None:
    code, said, _ = type_command(*SMALL, "--points", "6", "--json")
    assert code == 0
    document = json.loads(said)
    assert document["fits"] is False
    assert len(document["tried"]) == 6
    assert document["remedies"][0]["band"]["output_tokens_per_s"][0] <= document["remedies"][0]["output_tokens_per_s"]
    assert document["command"].startswith("vllm serve meta-llama/Meta-Llama-3-8B ")


def test_a_growing_load_needs_more_servers(type_command: Run) -> None:
    growing = (*SMALL, "--points", "20", "--load", "0.5x..1.5x", "--gpu-hour-price", "H200=2,B200=5")
    code, said, _ = type_command(*growing, "--json")
    assert code == 0
    rows = json.loads(said)["growth"]
    asked = {row["load"]: row for row in rows if row["kind"] == "as asked"}
    assert list(asked) == [0.5, 0.833, 1.167, 1.5]
    numbers = [row["servers"] for row in asked.values()]
    assert numbers == sorted(numbers)
    assert numbers[0] == 1 < numbers[-1]
    assert [row["price_per_hour"] for row in asked.values()] == [2.0 * number for number in numbers]
    for times in asked:
        prices = [row["price_per_hour"] for row in rows if row["load"] == times and row["price_per_hour"]]
        assert prices == sorted(prices)
    code, said, _ = type_command(*growing, "--points", "0")
    assert "the fewest servers for a growing load, cheapest kinds first" in said


def test_a_growing_load_that_no_number_of_servers_fits_has_a_sentence_and_no_table(type_command: Run) -> None:
    code, said, _ = type_command(*SMALL, "--points", "0", "--load", "0.5x..1.5x", "--ttft-p99", "0.0001")
    assert code == 0
    assert said.splitlines()[-1] == "No number of servers that was tried fits 0.5x, 0.833x, 1.167x, 1.5x."
    assert "the fewest servers" not in said


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--users", "2", "--load", "4x..1x"), "a range such as 1x..4x, not '4x..1x'"),
        (("--users", "2", "--gpu-hour-price", "2"), "--gpu-hour-price is for the table of a range of loads"),
        (("--users", "2", "--load", "1x..4x", "--gpu-hour-price", "-1"), "should be a price such as 2.5"),
        (("--users", "2", "--load", "1x..4x", "--gpu-hour-price", "X9=1"), "'X9'"),
        (("--users", "2", "--load", "1x..4x", "--gpu-hour-price", "H200=1,h200=2"), "has two prices of H200; give one"),
        (
            ("--prompt-tokens", "9"),
            "--prompt-tokens describes requests, but not how often they arrive; give --users N or",
        ),
        (("--users", "2", "--rate", "3"), "--users send a request after each answer, so --rate has no effect"),
        (("--users", "999999"), "999,999 users would take 3,999,996 requests in each of the runs that are tried"),
        (("--users", "999999", "--num-requests", "4"), "--users should be smaller: those of one server, not of a"),
        (("--rate", "3", "--think-time", "1"), "--think-time requires --users; give both."),
        (("--users", "2", "--swap-gib", "3"), "--swap-gib is not searched by kvsim fit"),
        (("--users", "2", "--profile", "nonsense"), "there is no profile 'nonsense'"),
        (("--users", "2", "--tpot-p99", "-1"), "--tpot-p99 should be a positive number of seconds"),
        (("--users", "2", "--arrivals", "constant"), "so --arrivals has no effect; leave one out"),
        (("--users", "2", "--burstiness", "0.5"), "so --burstiness has no effect; leave one out"),
        (("--users", "2", "--check"), "--check is not searched by kvsim fit; leave it out, or use kvsim run"),
        (("--users", "2", "--overwrite"), "--overwrite requires --figure; give both."),
        (("--users", "2", "--reserve", "max"), "--reserve has no effect with --policy paged"),
    ],
)
def test_what_makes_no_sense_is_a_sentence(type_command: Run, flags: tuple[str, ...], sentence: str) -> None:
    code, said, complaint = type_command("fit", "--model", "Meta-Llama-3-8B", "--gpu", "H200", *flags)
    assert (code, said) == (2, "")
    assert sentence in complaint


def test_drafts_are_judged_beside_the_same_load_without(type_command: Run) -> None:
    told = '{"method": "eagle3", "model": "a head", "num_speculative_tokens": 3}'
    load = "--model Llama-3.1-8B --gpu H100 --users 4 --num-requests 12 --prompt-tokens 100 --output-tokens 40"
    drafts = ("--points", "0", "--speculative-config", told, "--acceptance", "0.9")
    code, output, _ = type_command("fit", *load.split(), *drafts)
    assert code == 0
    said = " ".join(output.split())
    assert "Drafts help this load: " in said
    assert "they cost 1,271 of 28,994 blocks. Accepted: 0.9." in said
    assert "upper bound" not in said  # the time of a head was measured


def test_the_gain_of_drafts_whose_time_was_not_measured_is_an_upper_bound(type_command: Run) -> None:
    told = '{"method": "suffix", "num_speculative_tokens": 3}'
    load = "--model Llama-3.1-8B --gpu H100 --users 4 --num-requests 12 --prompt-tokens 100 --output-tokens 40"
    code, output, _ = type_command("fit", *load.split(), "--points", "0", "--speculative-config", told)
    assert code == 0
    assert "The time of drafting itself is not counted, so this is an upper bound." in " ".join(output.split())


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("0,9000,1", "Whether drafts help is unknown, because no request is served; they cost "),
        ("0,90,1", " and a TPOT of – (p50), without them "),
    ],
)
def test_drafts_that_serve_nothing_or_save_nothing_have_words(
    type_command: Run, tmp_path: Path, row: str, words: str
) -> None:
    (tmp_path / "w.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{row}\n1.9,9000,1\n")
    told = '{"method": "eagle3", "model": "a head", "num_speculative_tokens": 3}'
    machine = ("--model", "Meta-Llama-3-8B", "--gpu", "H200", "--max-model-len", "4096", "--jobs", "1")
    drafts = ("--workload", "w.csv", "--points", "0", "--speculative-config", told, "--acceptance", "0.9")
    code, output, _ = type_command("fit", *machine, *drafts)
    assert code == 0
    assert words in output
    assert "nan" not in output


def test_policies_that_serve_nothing_are_compared_without_numbers(type_command: Run, tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,9000,1\n")
    flags = ("--workload", "w.csv", "--refuse-misfits", "--max-model-len", "4096")
    code, output, _ = type_command("compare", *flags)
    assert code == 0
    assert "paged: No time passes. 0 of 1 request is served" in output
    assert "nan" not in output
