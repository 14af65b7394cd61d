"""Recordings of vLLM 0.25.1 with Llama-3-8B in two stages on two H200, made by the recording scheduler."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvsim.conformance import verify_recording
from kvsim.experiments.validation import times_of, validate
from kvsim.machines import known_in
from kvsim.recording import read

RECORDINGS = sorted(Path(__file__).with_name("recorded_pipeline").iterdir())
CRASHED = "async-pressure"
"""vLLM's engine ended in it, with the error that kvsim foresees: its requests have no ends."""
ROWS = {"throughput": "throughput", "tpot": "TPOT, mean", "e2e": "end to end, mean", "ttft": "TTFT, mean"}


def test_both_ways_of_scheduling_are_recorded() -> None:
    engines = [read(folder).meta.engine for folder in RECORDINGS]
    assert {engine["async_scheduling"] for engine in engines} == {True, False}
    assert {engine["pipeline_parallel_size"] for engine in engines} == {2}


@pytest.mark.parametrize("folder", RECORDINGS, ids=lambda folder: folder.name)
def test_a_recorded_pipeline_is_followed_in_every_decision(folder: Path) -> None:
    recording = read(folder)
    verdict = verify_recording(recording)
    assert verdict.equal, verdict
    assert verdict.num_steps == len(recording.steps) > 300
    assert (recording.steps.num_scheduled == 0).any() or "pressure" in folder.name, "empty steps count"
    assert (verdict.num_preemptions > 0) == ("pressure" in folder.name)


def test_times_of_stages_are_as_far_off_as_their_label_says() -> None:
    recordings = [read(folder) for folder in RECORDINGS if folder.name != CRASHED]
    validations = [validate(times_of(recording), recording) for recording in recordings]
    known = known_in(validations[0].times_from)
    assert known is not None
    assert known.recordings == tuple(f"recorded_pipeline/{recording.name}" for recording in recordings)
    for figure, name in ROWS.items():
        errors = [abs(row.error) for each in validations for row in each.rows if row.name == name]
        assert known.median[figure] == pytest.approx(np.median(errors), abs=0.051), figure
        assert known.worst[figure] == pytest.approx(max(errors), abs=0.051), figure
