"""Recordings of vLLM 0.25.1 with Llama-3-8B in two stages on two H200, made by the recording scheduler."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.conformance import verify_recording
from kvsim.experiments.validation import times_of, validate
from kvsim.machines.choice import STAGES_ERROR
from kvsim.recording import read

RECORDINGS = sorted(Path(__file__).with_name("recorded_pipeline").iterdir())
ROWS = {"throughput": "throughput", "TPOT": "TPOT, mean", "end to end": "end to end, mean", "TTFT": "TTFT, mean"}


def test_both_ways_of_scheduling_are_recorded() -> None:
    engines = [read(folder).meta.engine for folder in RECORDINGS]
    assert {engine["async_scheduling"] for engine in engines} == {True, False}
    assert {engine["pipeline_parallel_size"] for engine in engines} == {2}


@pytest.mark.parametrize("folder", RECORDINGS, ids=lambda folder: folder.name)
def test_a_recorded_pipeline_is_followed_in_every_decision(folder: Path) -> None:
    recording = read(folder)
    verdict = verify_recording(recording)
    assert verdict.equal, verdict
    assert verdict.num_steps == len(recording.steps) > 1_000
    assert (recording.steps.num_scheduled == 0).any(), "empty steps count"
    assert (verdict.num_preemptions > 0) == ("pressure" in folder.name)


@pytest.mark.parametrize("folder", RECORDINGS, ids=lambda folder: folder.name)
def test_times_of_stages_are_as_far_off_as_their_label_says(folder: Path) -> None:
    recording = read(folder)
    validation = validate(times_of(recording), recording)
    errors = {row.name: abs(row.error) for row in validation.rows}
    for figure, most in STAGES_ERROR.items():
        assert errors[ROWS[figure]] <= most, figure
        assert f"{figure} {most} %" in validation.times_from
