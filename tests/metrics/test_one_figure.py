"""One run, one figure: what a run prints is what `kvsim info` reads from the recording of that run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvsim.cli import cli
from kvsim.errors import StalledError

from ..simulation.drawn_settings import drawn_settings
from ..thinned import one_of

FEW, MANY = 8, 600
"""Draws with every change, and with all that is slow."""
_ONLY_ONE_SAYS = (
    "name",
    "policy_settings",
    "settings",
    "times",
    "extrapolates",
    "band",
    "source",
    "gpu",
    "engine",
    "model",
)
"""What a run says of its settings, and a recording of where it comes from."""


def typed(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [*map(str, arguments)])


def flat(document: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def figures(document: dict[str, Any]) -> dict[str, Any]:
    """Every figure and every sentence of a document."""
    return dict(flat({name: value for name, value in document.items() if name not in _ONLY_ONE_SAYS}))


def differences(printed: dict[str, Any], recorded: dict[str, Any]) -> list[str]:
    """Figures that are not the same; where a slot's fate shows in the end alone, sums of times may round otherwise."""
    ours, theirs = figures(printed), figures(recorded)
    return [
        f"{name}: {ours.get(name)} and {theirs.get(name)}"
        for name in ours.keys() | (theirs.keys() - {"requests"})
        if not is_same(ours.get(name), theirs.get(name))
    ]


def is_same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-9)
    return bool(ours == theirs)


@pytest.mark.parametrize(
    "seed", [*range(FEW), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(FEW, MANY))]
)
def test_any_settings(seed: int, tmp_path: Path) -> None:
    settings, folder = drawn_settings(seed, tmp_path), tmp_path / "recording"
    if "--replicas" not in settings:
        settings.append("--no-band")
    recording = typed("run", *settings, "--json", "-o", folder)
    if isinstance(recording.exception, StalledError):
        return
    assert recording.exit_code == 0, recording.exception
    assert typed("run", *settings, "--json").stdout == recording.stdout
    printed = json.loads(recording.stdout)
    servers = printed.get("servers", [printed])
    for number, server in enumerate(servers):
        read = typed("info", folder / str(number) if "servers" in printed else folder, "--json")
        assert differences(server, json.loads(read.stdout)) == []


REQUESTS = (
    *("--num-requests", 25, "--arrivals", "poisson", "--rate", 60, "--prompt-tokens", "100:0.8"),
    *("--output-tokens", "30:0.6", "--shared-prefix", "3x100", "--max-model-len", 1024, "--refuse-misfits"),
)
DRAFTING = '{"method": "eagle", "model": "a draft model", "num_speculative_tokens": 3}'
FEATURES: dict[str, tuple[str | int, ...]] = {
    "plain": ("--num-blocks", 60),
    "images": ("--num-blocks", 60, "--model", "Qwen2.5-VL-7B-Instruct", "--images", "0.5@640x480,100:5"),
    "drafts": ("--num-blocks", 60, "--speculative-config", DRAFTING),
    "offload": (
        *("--vllm", "0.25.1", "--num-blocks", 130, "--max-num-seqs", 2, "--no-prefix-caching"),
        *("--kv-offloading-size", "0.2"),
    ),
    "windows": ("--model", "gemma-3-1b-it", "--num-blocks", 100, "--max-num-seqs", 4),
}


def recorded(folder: Path) -> dict[str, Any]:
    """What `kvsim info` computes from a recording."""
    result = typed("info", folder, "--json")
    assert result.exit_code == 0, result.exception
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.mark.parametrize("feature", one_of(2, FEATURES))
def test_a_comparison(feature: str, tmp_path: Path) -> None:
    compared = typed("compare", *REQUESTS, *FEATURES[feature], "--json", "-o", tmp_path / "runs")
    assert compared.exit_code == 0, compared.exception
    policies = json.loads(compared.stdout)
    assert "paged" in policies
    for policy, document in policies.items():
        document.pop("ample_output_tokens_per_s")
        assert differences(document, recorded(tmp_path / "runs" / policy)) == []


def test_a_report(tmp_path: Path) -> None:
    folders = [tmp_path / feature for feature in ("plain", "drafts")]
    for folder in folders:
        assert typed("run", *REQUESTS, *FEATURES[folder.name], "-o", folder).exit_code == 0
    reported = typed("report", *folders, "-o", tmp_path / "report")
    assert reported.exit_code == 0, reported.exception
    table = (tmp_path / "report" / "report.md").read_text()
    infos = [recorded(folder) for folder in folders]
    tokens = [f"{info['waste']['pool_percent']['token']:.1f}" for info in infos]
    assert f"| tokens, % of the pool | {' | '.join(tokens)} |" in table
    speeds = [f"{info['output_tokens_per_s']:,.0f}" for info in infos]
    assert f"| output tokens per second | {' | '.join(speeds)} |" in table


@pytest.mark.parametrize("feature", one_of(2, FEATURES, first=1))
def test_the_points_of_a_sweep(feature: str, tmp_path: Path) -> None:
    flags = (*REQUESTS, *FEATURES[feature])
    swept = typed("sweep", *flags, "--vary", "seed=0,1", "--jobs", 1, "--json", "-o", tmp_path / "sweep.parquet")
    assert swept.exit_code == 0, swept.exception
    for point in json.loads(swept.stdout)["points"]:
        folder = tmp_path / str(point["seed"])
        assert typed("run", *flags, "--seed", point["seed"], "-o", folder).exit_code == 0
        theirs = figures(recorded(folder))
        shared = theirs.keys() & point.keys()
        assert {"waste.allocated_percent.token", "ttft_s.p99", "prefix_hit_rate"} <= shared
        assert [name for name in shared if not is_same(point[name], theirs[name])] == []
