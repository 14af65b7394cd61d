"""`kvsim verify` as somebody at a terminal, or a script, meets it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvsim.recording.unit_runs import unpack

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    Run = Callable[..., subprocess.CompletedProcess[str]]

GRANITE = "vllm-h200-granite-350m-gsm8k"
GOLDEN = Path(__file__).resolve().parent.parent / "conformance" / "golden"


def test_a_shipped_recording_is_equal(kvsim: Run) -> None:
    done = kvsim("verify", GRANITE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{GRANITE}: all 130 steps equal (6,337 allocations, 0 preemptions)\n"


def test_json_is_for_machines(kvsim: Run) -> None:
    done = kvsim("verify", GRANITE, "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["equal"], document["num_steps"], document["difference"]) == (0, True, 130, None)


def test_a_difference_is_shown_with_both_sides_and_fails(kvsim: Run, repository: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(repository / "traces" / GRANITE, folder)
    meta = json.loads((folder / "meta.json").read_text())
    first, second, *others = unpack(meta["initial_free"]).tolist()
    meta["initial_free"] = [second, first, *others]
    (folder / "meta.json").write_text(json.dumps(meta))
    done = kvsim("verify", folder)
    assert (done.returncode, done.stderr) == (1, "")
    assert "0 steps equal (0 allocations, 0 preemptions), then a difference at step 0" in done.stdout
    line = next(line for line in done.stdout.splitlines() if "memory[0]" in line)
    assert line.split() == [">", "memory[0]", "r0[0]", "gets", str(first), "r0[0]", "gets", str(second)]
    shown = json.loads(kvsim("verify", folder, "--json").stdout)["difference"]["lines"]
    sides = {"recorded": f"r0[0] gets {first}", "simulated": f"r0[0] gets {second}"}
    assert {"label": "memory[0]", **sides, "differs": True} in shown


def test_the_oracle_is_compared_record_by_record(kvsim: Run) -> None:
    done = kvsim("verify", "--oracle", GOLDEN / "009.jsonl.gz", GOLDEN / "009.json")
    assert done.returncode == 0
    assert "steps equal" in done.stdout
    other = kvsim("verify", "--oracle", GOLDEN / "009.jsonl.gz", GOLDEN / "010.json")
    assert other.returncode == 1
    assert "then a difference at meta, line 1" in other.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("verify", "no-such-recording"), 2, "there is no recording"),
        (("verify", "hf-h200-granite-350m-batch500"), 1, "only a paged one"),
        (("verify", "--oracle", "none.jsonl", GOLDEN / "009.json"), 1, "none.jsonl does not exist"),
        (("verify", "--oracle", GOLDEN / "009.jsonl.gz", "none.json"), 1, "none.json does not exist"),
        (("verify", "--oracle", GOLDEN / "009.json", GOLDEN / "009.json"), 1, "009.json, line 1: expected meta"),
        (("verify",), 2, "Missing argument"),
    ],
)
def test_misuse_is_one_sentence(kvsim: Run, arguments: tuple[str | Path, ...], code: int, words: str) -> None:
    done = kvsim(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
