"""How much of the prompts the prefix cache had, and why it had nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvsim.cli import cli

OFF, UNKNOWN = "prefix caching is off", "no two prompts are known to share a block of 16 tokens"
Prompts = list[tuple[int, str, int]]
"""Tokens of each prompt, the name of its prefix, and how long that is."""


def run(folder: Path, prompts: Prompts, *flags: str) -> dict[str, Any]:
    """What a run and the recording of it say of requests that come one after the other, to a pool of 20 blocks."""
    rows = ["arrival_s,prompt_tokens,output_tokens,prefix_group,prefix_tokens"]
    rows += [f"{second},{tokens},4,{prefix},{shared or ''}" for second, (tokens, prefix, shared) in enumerate(prompts)]
    (folder / "w.csv").write_text("\n".join(rows))
    arguments = ["run", "--workload", str(folder / "w.csv"), "--num-blocks", "21", "--max-model-len", "330", *flags]
    result = CliRunner().invoke(cli, [*arguments, "--json", "-o", str(folder / "run")])
    assert result.exit_code == 0, result.exception
    printed: dict[str, Any] = json.loads(result.stdout)
    recorded = json.loads(CliRunner().invoke(cli, ["info", str(folder / "run"), "--json"]).stdout)
    assert {name: recorded[name] for name in printed if name.startswith("prefix_")} == {
        name: value for name, value in printed.items() if name.startswith("prefix_")
    }
    return printed


def test_hits_by_hand(tmp_path: Path) -> None:
    found = run(tmp_path, [(80, "a", 64), (80, "a", 64), (40, "b", 32)])
    assert (found["prefix_queried_tokens"], found["prefix_hit_tokens"], found["prefix_no_hits"]) == (200, 64, "")
    assert found["prefix_hit_rate"] == pytest.approx(0.32)


@pytest.mark.parametrize(
    ("prompts", "flags", "why"),
    [
        ([(80, "a", 64), (80, "a", 64)], ["--no-prefix-caching"], OFF),
        ([(80, "a", 64), (80, "a", 64)], ["--policy", "static"], "this policy has no prefix cache"),
        ([(80, "", 0), (80, "", 0)], [], UNKNOWN),
        ([(80, "a", 64), (80, "b", 64)], [], "no two prompts share a full block of 16 tokens"),
        (
            [(80, "a", 64), (80, "b", 64), (80, "", 0)],
            [],
            "no two prompts whose hashes are known share a full block of 16 tokens",
        ),
        (
            [(80, "a", 64), (80, "b", 64), (80, "", 0)],
            ["--policy", "radix"],
            "no two prompts whose hashes are known share their first token",
        ),
        ([(80, "", 0), (80, "", 0)], ["--policy", "radix"], "no two prompts are known to share a token"),
        ([(12, "a", 12), (12, "a", 12)], [], "no prompt fills a block of 16 tokens"),
        ([(16, "a", 16), (16, "a", 16)], [], "the last token is always computed"),
        ([(80, "a", 64), (316, "b", 316), (80, "a", 64)], [], "none was in the cache when it came again"),
    ],
)
def test_no_hit_has_its_reason(tmp_path: Path, prompts: Prompts, flags: list[str], why: str) -> None:
    found = run(tmp_path, prompts, *flags)
    assert (found["prefix_hit_rate"], found["prefix_hit_tokens"]) == (0.0, 0)
    assert found["prefix_no_hits"].endswith(why)


def test_a_diagnosis_says_what_an_endless_cache_would_find(tmp_path: Path) -> None:
    run(tmp_path, [(80, "a", 64), (316, "b", 316), (80, "a", 64)])
    flags = ["--points", "0", "--jobs", "1", "--engine", "interpreted", "--json"]
    result = CliRunner().invoke(cli, ["diagnose", str(tmp_path / "run"), *flags])
    assert result.exit_code == 0, result.exception
    share = 100 * 64 / (80 + 316 + 80)
    assert json.loads(result.stdout)["prefix_hits"] == (
        f"0 %: prompts share full blocks, and none was in the cache when it came again; an endless cache would find "
        f"{share:.1f} %"
    )
