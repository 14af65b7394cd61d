"""A recording in which no time passes: the first moment of a server. Its figures are dashes, and nothing breaks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kvsim.recording.eventlog import line

if TYPE_CHECKING:
    from pathlib import Path

Run = "Callable[..., tuple[int, str, str]]"
POOL = {"unit_tokens": 4, "num_units": 40, "first_unit": 1, "bytes_per_unit": 64}
STEP = {"prefill_tokens": 4, "decode_tokens": 0, "num_scheduled": 1, "running": 1, "waiting": 0, "preempted": 0}


@pytest.fixture
def moment(tmp_path: Path) -> Path:
    meta = {
        "format": "kvsim-recording", "version": 1, "source": "vllm", "gpu": "H200", "engine": {"name": "vllm"},
        "model": {"name": "tiny"}, "policy": {"name": "paged", "block_size": 4}, "pool": POOL,
    }  # fmt: skip
    events = [
        ["meta", meta], ["arrive", "r", 0.0, 4, 3, 0, []], ["seq"], ["append", 0, 0, [1, 2]],
        ["tokens", 0.0, [[0, 0, 4]]], ["step", STEP | {"start_s": 0.0, "free_units": 38}], ["seq"], ["output", 0, 0.0],
        ["emit", 0, 0.0, 1], ["end", 0, "finished", 0.0], ["release", 0, 2, 1],
    ]  # fmt: skip
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec" / "events.jsonl").write_bytes(b"".join(line(*event) for event in events))
    return tmp_path / "rec"


def test_rates_are_not_there_and_that_is_said(type_command: Run, moment: Path) -> None:
    code, output, complaint = type_command("info", moment.name, "--json")
    assert (code, complaint) == (0, "")
    summary = json.loads(output)
    assert summary["duration_s"] == 0
    assert [summary[name] for name in ("output_tokens_per_s", "requests_per_s", "mean_batch", "mean_waiting")] == [
        None
    ] * 4
    code, output, _ = type_command("info", moment.name)
    assert (code, "a run in which no time passes has no rates, and no means over time" in output) == (0, True)


@pytest.mark.parametrize(
    "arguments",
    [("plot", "latency"), ("plot", "waste-bars"), ("plot", "queue"), ("export",), ("tui", "--screenshot", "s.svg")],
    ids=" ".join,
)
def test_it_is_shown_or_refused_in_a_sentence(type_command: Run, moment: Path, arguments: tuple[str, ...]) -> None:
    code, _, complaint = type_command(*arguments, moment.name)
    assert (code, complaint) == (0, "") or (code == 1 and complaint.startswith("kvsim: "))
