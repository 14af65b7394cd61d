"""A few of the fuzzer's cases, the same in every run, and some kills; by hand there are as many as one likes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from tests.fuzz import flags
from tests.fuzz.cases import run_case, run_flag
from tests.fuzz.judging import impossible
from tests.fuzz.places import files_of
from tests.fuzz.seeds import ROOT, Seeds, make_seeds
from tests.thinned import one_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="a hang is noticed by an alarm"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Seeds:
    return make_seeds(tmp_path_factory.mktemp("seeds"))


@pytest.mark.parametrize("first", one_of(2, range(0, 150, 25)))
def test_whatever_is_read_there_is_a_result_or_a_sentence(seeds: Seeds, tmp_path: Path, first: int) -> None:
    wrong = []
    for number in range(first, first + 25):
        outcome = run_case(number, seeds, tmp_path / "case")
        if outcome.problem:
            wrong.append((number, outcome))
    assert not wrong, wrong


def test_every_flag_of_every_command_is_tried(seeds: Seeds) -> None:
    tried = {(" ".join(call.command), call.tried[0]) for call in flags.every(seeds) if call.tried}
    there = {(name, param.opts[-1]) for name, command in flags.commands() for param in command.params
             if isinstance(param, click.Option)}  # fmt: skip
    left_out = {(name, flag) for name, flag in there if name in flags.LEFT_OUT or f"{name} {flag}" in flags.LEFT_OUT}
    assert there == tried | left_out
    assert len(there) > 400


@pytest.mark.parametrize("first", one_of(4, range(7, 2000, 500)))
def test_a_value_that_is_hardly_right_ends_in_a_result_or_a_sentence(
    seeds: Seeds, tmp_path: Path, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # nothing is measured
    outcomes = [run_flag(number, seeds, tmp_path / "case") for number in range(first, len(flags.every(seeds)), 2000)]
    assert not [outcome for outcome in outcomes if outcome.problem]


def test_the_fuzzer_notices_what_cannot_be() -> None:
    good = {"mean_occupancy": 0.5, "ttft_s": {"mean": 1.0}, "waste": {"pool_percent": {"token": 60.0, "free": 40.0}}}
    assert impossible(good) == ""
    assert "mean_occupancy" in impossible(good | {"mean_occupancy": 1.02})
    assert "ttft_s.mean" in impossible(good | {"ttft_s": {"mean": -999.9}})
    assert "add up" in impossible(good | {"waste": {"pool_percent": {"token": 60.0, "free": 30.0}}})
    assert "external" in impossible(good | {"waste": {"pool_percent": {"external": -1.4, "free": 101.4}}})


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "import"])
def test_a_kill_leaves_what_was_there_or_all_that_is_new(command: str) -> None:
    killing = [sys.executable, "-m", "tests.fuzz.kills", "--times", "4", "--command", command]
    done = subprocess.run(killing, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{command}: 4 kills, 0 wrong" in done.stdout


@pytest.mark.slow
def test_a_disk_that_takes_nothing_keeps_what_was_there() -> None:
    writing = [sys.executable, "-m", "tests.fuzz.disks", "--times", "8", "--command", "run", "--command", "import"]
    done = subprocess.run(writing, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "16 obstacles, 0 wrong" in done.stdout


EVERY_CHANGE = """
import os, signal, sys
left = int(sys.argv.pop(1))
def hook(event, arguments):
    global left
    if event in ("os.rename", "os.mkdir", "os.rmdir", "os.remove") or (
        event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    ):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)

from kvsim.recording import read, write
recording = read("source")
sys.stdout.write("reading is done")
sys.stdout.flush()
write(recording, "out")
"""


@pytest.mark.slow
def test_a_kill_before_any_change_of_the_file_system(seeds: Seeds, tmp_path: Path) -> None:
    """A recording that replaces another, killed before each change in turn, until it is written to its end."""
    (tmp_path / "source").symlink_to(seeds.recordings[0])
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}

    def run(num_changes: int) -> int:
        return subprocess.run(
            [sys.executable, "-c", EVERY_CHANGE, str(num_changes)], cwd=tmp_path, env=environment, capture_output=True,
            check=False,
        ).returncode  # fmt: skip

    assert run(1000) == 0
    whole = files_of(tmp_path / "out")
    num_changes = 0
    while run(num_changes) != 0:
        assert files_of(tmp_path / "out") == whole, f"killed before change {num_changes}"
        num_changes += 1
        assert num_changes < 60
    assert num_changes > 5
    assert {entry.name for entry in tmp_path.iterdir()} == {"source", "out"}
