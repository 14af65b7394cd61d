"""Static batches on a clock: when they start, and what happens when they run out of memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvsim.metrics import summarize
from kvsim.policies import Static
from kvsim.policies.settings import StaticSettings
from kvsim.recording import Recording, RequestStatus, read, write
from kvsim.simulation import Machine, simulate
from kvsim.workload import AllAtOnce, Constant, Fixed, Uniform, Workload, generate

MakeMachine = Callable[[int], Machine]


def run(workload: Workload, machine: Machine, **settings: object) -> Recording:
    return simulate(workload, Static(scheduler=StaticSettings(**settings)), machine, check=True)  # type: ignore[arg-type]


def test_batches_fill_up_while_there_is_time(make_machine: MakeMachine) -> None:
    workload = generate(8, arrivals=Constant(rate_per_s=0.1), prompt=Fixed(tokens=5), output=Fixed(tokens=2), seed=0)
    machine = make_machine(1000)
    assert summarize(run(workload, machine, batch_size=4)).peak_batch == 1
    patient = run(workload, machine, batch_size=4, timeout_s=100.0)
    assert summarize(patient).peak_batch == 4
    assert patient.requests.first_scheduled_s[0] == pytest.approx(workload.arrival_s[3])
    hasty = run(workload, machine, batch_size=4, timeout_s=15.0)
    assert hasty.requests.first_scheduled_s[:4] == pytest.approx([15.0, 15.0, 35.0, 35.0])


def test_sorting_by_length_saves_padding(make_machine: MakeMachine) -> None:
    workload = generate(64, arrivals=AllAtOnce(), prompt=Uniform(low=1, high=400), output=Fixed(tokens=20), seed=0)
    machine = make_machine(8000)
    plain, alike = (
        summarize(run(workload, machine, batch_size=8, sort_by_length=sort_by_length)).waste.as_dict()
        for sort_by_length in (False, True)
    )
    assert alike["allocated_percent"]["padding"] < plain["allocated_percent"]["padding"] / 2


@pytest.mark.parametrize("preallocated", [False, True])
def test_a_batch_that_runs_out_of_memory_fails_as_a_whole(
    preallocated: bool, make_machine: MakeMachine, tmp_path: Path
) -> None:
    workload = Workload(arrival_s=np.zeros(3), prompt_tokens=[10] * 3, output_tokens=[2, 30, 30])
    settings = {"batch_size": 2, "memory_guard": False, "preallocated": preallocated}
    recording = run(workload, make_machine(60), **settings)
    assert recording.requests.status.tolist() == [RequestStatus.ABORTED, RequestStatus.ABORTED, RequestStatus.FINISHED]
    # Two rows of 30 fit: ten columns of prompts and twenty more.
    assert recording.requests.output_tokens.tolist() == ([0, 0, 30] if preallocated else [2, 21, 30])
    write(recording, tmp_path / "run")
    assert summarize(read(tmp_path / "run")).num_aborted == 2
    guarded = run(workload, make_machine(60), **settings | {"memory_guard": True})
    assert (guarded.requests.status == RequestStatus.FINISHED).all()
