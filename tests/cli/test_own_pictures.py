"""A command replaces the picture that it drew itself, and no other unless it is told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

FIT = ("fit", "--rate", "2", "--prompt-tokens", "50", "--output-tokens", "5", "--num-requests", "5")


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("explain", "1", "--markdown", "-o", "out"), marks=pytest.mark.slow),
        ("reproduce", "kv-per-token", "--plot", "out.svg"),
        pytest.param((*FIT, "--figure", "out.svg"), marks=pytest.mark.slow),
        ("tui", "--lesson", "1", "--screenshot", "out.svg", "--size", "80x24"),
    ],
    ids=("explain", "reproduce", "fit", "tui"),
)
def test_a_command_replaces_its_own_picture_and_no_other(
    type_command: Callable[..., tuple[int, str, str]], tmp_path: Path, command: tuple[str, ...]
) -> None:
    assert type_command(*command)[0] == 0
    written = {file: file.read_bytes() for file in tmp_path.rglob("*.svg")}
    assert type_command(*command)[0] == 0
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.svg")} == written
    for file in written:
        file.write_text("<svg>mine</svg>")
    code, _, complaint = type_command(*command)
    assert (code, "--overwrite replaces it" in complaint) == (2, True)
    assert all(file.read_text() == "<svg>mine</svg>" for file in written)
    assert type_command(*command, "--overwrite")[0] == 0
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.svg")} == written
