"""`kvsim export`: every target once; what the files hold is proved beside the exporters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsim.cli.export import _ENDINGS
from kvsim.exporters import EXPORTERS

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., subprocess.CompletedProcess[str]]
PRESSURE = "vllm-h200-llama-3-8b-sharegpt-pressure"


def test_the_targets_of_the_help_are_those_that_there_are() -> None:
    assert set(_ENDINGS) == set(EXPORTERS)


@pytest.mark.parametrize("target", _ENDINGS)
def test_every_target_writes_under_the_name_it_prints(kvsim: Run, tmp_path: Path, target: str) -> None:
    done = kvsim("export", PRESSURE, "--to", target, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{PRESSURE}{_ENDINGS[target]}\n"
    assert [path.name for path in tmp_path.iterdir()] == [done.stdout.strip()]


def test_a_target_that_cannot_be_written(kvsim: Run, tmp_path: Path) -> None:
    done = kvsim("export", PRESSURE, "-o", "no/trace", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "kvsim: cannot write no/trace: No such file or directory; choose a folder that exists and may be written.\n"
    )
