"""Contiguous caches on a clock: what moves stays itself, copies take time, and fragmentation is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvsim.memory.waste import SlotState
from kvsim.metrics import summarize, waste
from kvsim.policies import Contiguous
from kvsim.policies.settings import ContiguousSettings, ContinuousSettings, Growth, Reserve
from kvsim.recording import read, write
from kvsim.replay import Replay
from kvsim.simulation import Machine, simulate
from kvsim.steptime import StepShape, StepTime
from kvsim.workload import AllAtOnce, Uniform, Workload, generate

CAPACITY = 400
MakeMachine = Callable[[int], Machine]


@pytest.fixture(scope="module")
def workload() -> Workload:
    return generate(60, arrivals=AllAtOnce(), prompt=Uniform(low=1, high=40), output=Uniform(low=1, high=60), seed=3)


def policy(cache: ContiguousSettings) -> Contiguous:
    return Contiguous(scheduler=ContinuousSettings(max_num_seqs=32, max_model_len=128), cache=cache)


SETTINGS = [
    ContiguousSettings(reserve=Reserve.DOUBLING),
    ContiguousSettings(reserve=Reserve.DOUBLING, growth=Growth.FAIL),
    ContiguousSettings(reserve=Reserve.DOUBLING, fit="buddy"),
    ContiguousSettings(reserve=Reserve.DOUBLING, fit="next", compaction=True),
    ContiguousSettings(reserve=Reserve.DOUBLING, fit="buddy", growth=Growth.FAIL, compaction=True),
    ContiguousSettings(reserve=Reserve.ORACLE, fit="best", compaction=True),
    ContiguousSettings(reserve=Reserve.ORACLE, fit="next"),
    ContiguousSettings(reserve=Reserve.LIMIT, request_level=True),
]


@pytest.mark.parametrize("cache", SETTINGS, ids=str)
def test_every_request_is_served_and_every_slot_accounted_for(
    cache: ContiguousSettings, workload: Workload, make_machine: MakeMachine, tmp_path: Path
) -> None:
    recording = simulate(workload, policy(cache), make_machine(CAPACITY), check=True)
    assert summarize(recording).num_finished == len(workload)
    assert recording.requests.output_tokens.sum() == workload.output_tokens.sum()
    write(recording, tmp_path / "run")
    replay = Replay(read(tmp_path / "run"))
    slots = waste(recording).slots
    for frame in range(0, replay.num_frames, 7):
        replay.seek(frame)
        expected = replay.slots().sum(axis=0)
        ours = slots[frame].copy()
        # What is free and useless to the head of the queue is a matter of the whole pool, which a replay does not see.
        unusable = ours[SlotState.EXTERNAL] - expected[SlotState.EXTERNAL]
        ours[[SlotState.EXTERNAL, SlotState.FREE]] += (-unusable, unusable)
        np.testing.assert_array_equal(ours, expected, err_msg=f"frame {frame}")


class ContextMeter:
    """A clock that ticks evenly and adds up the slots that steps read."""

    label, calibrated = "even", False

    def __init__(self) -> None:
        self.context_tokens = 0

    def entry_s(self, prompt_tokens: int) -> float:
        return 0.0 * prompt_tokens

    def step_time(self, shape: StepShape) -> StepTime:
        self.context_tokens += shape.context_tokens
        return StepTime(0.0, 0.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("cache", "copies"),
    [
        (ContiguousSettings(reserve=Reserve.ORACLE), False),
        (ContiguousSettings(reserve=Reserve.ORACLE, compaction=True), True),
        (ContiguousSettings(reserve=Reserve.DOUBLING, growth=Growth.FAIL), False),
        (ContiguousSettings(reserve=Reserve.DOUBLING), True),
    ],
    ids=str,
)
def test_a_copy_costs_a_step_what_reading_and_writing_its_slots_does(
    cache: ContiguousSettings, copies: bool, workload: Workload, make_machine: MakeMachine
) -> None:
    meter = ContextMeter()
    recording = simulate(workload, policy(cache), replace(make_machine(CAPACITY), step_time=meter), check=True)
    schedule = recording.schedule
    nth = schedule.repeats.astype(np.int64)
    after = schedule.computed_before * nth + schedule.tokens * (nth * (nth + 1) // 2)
    copied_twice = meter.context_tokens - int(after.sum())
    assert (copied_twice > 0) == copies
    assert copied_twice % 2 == 0


def test_fragmentation_is_counted_and_compaction_ends_it(workload: Workload, make_machine: MakeMachine) -> None:
    fragmented = summarize(
        simulate(workload, policy(ContiguousSettings(reserve=Reserve.ORACLE)), make_machine(CAPACITY))
    )
    compacted = summarize(
        simulate(workload, policy(ContiguousSettings(reserve=Reserve.ORACLE, compaction=True)), make_machine(CAPACITY))
    )
    assert 0 < fragmented.num_fragmented_requests <= fragmented.num_fragmented_steps
    assert fragmented.num_fragmented_requests < len(workload)
    assert (compacted.num_fragmented_steps, compacted.num_fragmented_requests) == (0, 0)
    assert compacted.mean_batch > fragmented.mean_batch


def test_at_request_level_batches_do_not_overlap(workload: Workload, make_machine: MakeMachine) -> None:
    recording = simulate(
        workload, policy(ContiguousSettings(reserve=Reserve.ORACLE, request_level=True)), make_machine(CAPACITY)
    )
    requests = recording.requests
    order = np.argsort(requests.first_scheduled_s, kind="stable")
    starts, ends = requests.first_scheduled_s[order], requests.finished_s[order]
    opens = np.flatnonzero(np.diff(starts, prepend=-1) > 0)
    assert len(opens) > 2
    assert all(ends[:first].max() <= starts[first] for first in opens[1:])
