"""A few hundred cases of the fuzzer, the same in every run, and some kills; by hand there are as many as one likes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.fuzz.cases import impossible, run_case
from tests.fuzz.kills import digest
from tests.fuzz.seeds import ROOT, Seeds, make_seeds

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="a hang is noticed by an alarm"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Seeds:
    return make_seeds(tmp_path_factory.mktemp("seeds"))


@pytest.mark.parametrize("first", range(0, 150, 25))
def test_whatever_is_read_there_is_a_result_or_a_sentence(seeds: Seeds, tmp_path: Path, first: int) -> None:
    wrong = []
    for number in range(first, first + 25):
        outcome = run_case(number, seeds, tmp_path / "case")
        if outcome.problem:
            wrong.append((number, outcome))
    assert not wrong, wrong


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
    killing = [sys.executable, "-m", "tests.fuzz.kills", "--kills", "4", "--command", command]
    done = subprocess.run(killing, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{command}: 4 kills, 0 wrong" in done.stdout


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
    whole = digest(tmp_path / "out")
    num_changes = 0
    while run(num_changes) != 0:
        assert digest(tmp_path / "out") == whole, f"killed before change {num_changes}"
        num_changes += 1
        assert num_changes < 60
    assert num_changes > 5
    assert {entry.name for entry in tmp_path.iterdir()} == {"source", "out"}
