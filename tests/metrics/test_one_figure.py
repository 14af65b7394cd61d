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

FEW, MANY = 25, 600
"""Draws with every change, and with all that is slow."""
_ONLY_ONE_SAYS = ("name", "policy", "settings", "times", "extrapolates", "band", "source", "gpu", "engine", "model")
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
    recording = typed("run", *settings, "--no-band", "--json", "-o", folder)
    if isinstance(recording.exception, StalledError):
        return
    assert recording.exit_code == 0, recording.exception
    assert typed("run", *settings, "--no-band", "--json").stdout == recording.stdout
    printed = json.loads(recording.stdout)
    servers = printed.get("servers", [printed])
    for number, server in enumerate(servers):
        read = typed("info", folder / str(number) if "servers" in printed else folder, "--json")
        assert differences(server, json.loads(read.stdout)) == []
