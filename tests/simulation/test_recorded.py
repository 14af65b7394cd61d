"""A recording is what happened, from either engine: the same bytes, and right by its own check, for any settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvsim.cli import cli
from kvsim.errors import IntegrityError, StalledError
from kvsim.simulation import EngineName
from kvsim.simulation.results import FinalRows

from .drawn_settings import drawn_settings
from .test_engines import ENGINES

FEW, MANY = {2, 3, 6, 7, 8, 9, 11, 12, 14, 15, 16, 17}, 600
"""Draws with every change: of the first twenty those that together have all their flags, policies, releases and models.
And the number of all."""
SEVERAL_SERVERS = {"--replicas", "--prefill", "--decode", "--data-parallel-size", "--prefix-store-gib"}


def typed(*arguments: str | Path) -> Result:
    """What a command came to, in this process."""
    return CliRunner().invoke(cli, [*map(str, arguments)])


def recorded(settings: list[str], engine: EngineName, folder: Path) -> dict[str, bytes | str]:
    """Every file of the recordings in `folder` that a run leaves, which their check calls right; or why it stalled."""
    # Runs of several servers have no band that could be left out.
    band = [] if SEVERAL_SERVERS & set(settings) else ["--no-band"]
    result = typed("run", *settings, *band, "--engine", engine, "-o", folder)
    if isinstance(result.exception, StalledError):
        return {"stalled": str(result.exception)}
    assert result.exit_code == 0, result.exception
    for meta in folder.rglob("meta.json"):
        checked = typed("info", meta.parent, "--check")
        assert checked.exit_code == 0, checked.exception
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    "seed", [seed if seed in FEW else pytest.param(seed, marks=pytest.mark.slow) for seed in range(MANY)]
)
def test_any_settings(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of an engine that is compiled from its second slice on, and where slices are short."""
    settings, first, *others = drawn_settings(seed, tmp_path), *ENGINES
    expected = recorded(settings, first, tmp_path / first)
    assert expected
    if others:
        assert differences(expected, recorded(settings, "compiled", tmp_path / "compiled")) == []
    monkeypatch.setattr("kvsim.engine.initialization.STEPS_PER_SLICE", 50)
    monkeypatch.setattr("kvsim.engine.initialization.FIRST_ROWS", 10)
    assert differences(expected, recorded(settings, "auto", tmp_path / "auto")) == []


@pytest.mark.parametrize("command", ["run", "run --replicas 2", "compare"])
def test_a_defect_is_a_sentence_and_leaves_what_was_there(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "r"
    words = [*command.split(), "--arrivals", "poisson", "--num-requests", "6", "--prompt-tokens", "30"]
    monkeypatch.setattr("sys.argv", ["kvsim", *words])  # whose recordings they are
    assert typed(*words, "-o", folder).exit_code == 0
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    monkeypatch.setattr(FinalRows, "_numbered", lambda _, rows: rows[::-1])
    result = typed(*words, "-o", folder)
    assert isinstance(result.exception, IntegrityError)
    assert f"{folder}" in str(result.exception)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def differences(one: dict[str, bytes | str], other: dict[str, bytes | str]) -> list[str]:
    """The files that are not the same."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
