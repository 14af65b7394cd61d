"""What the recording scheduler writes of models with several KV-cache groups, inside vLLM's own engine.

Windows, latents, chunks and recurrent states, short of memory and with shared prefixes.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvsim.conformance import verify_recording
from kvsim.metrics import waste
from kvsim.recording import Recording, find, read, write
from kvsim.replay import Replay
from kvsim.replay.unfolding import NO_OWNER

from ..vllm_engine.recordings import BROKEN, GROUPED, RETAINING, Live, in_main
from .test_logs import steps_of_the_engine


@pytest.fixture(params=[*GROUPED, Path(RETAINING)], ids=lambda file: file.stem)
def workload(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture
def recording(workload: Path, live: Live, tmp_path: Path) -> Recording:
    return read(Path(shutil.copytree(live.log(workload), tmp_path / workload.stem)))


def table_of(replay: Replay, request: int, group: int, length: int) -> list[int]:
    """The table of a request as the engine tells it: null blocks where there is no unit."""
    table = np.zeros(length, int)
    position, address = replay.block_table(request, group)
    table[position] = address
    return list(table.tolist())


def test_every_table_is_the_one_that_the_engine_had(workload: Path, live: Live, recording: Recording) -> None:
    replay, engine = Replay(recording), steps_of_the_engine(workload, live)
    names = recording.requests.id
    assert len(recording.steps) == len(engine)
    for step, said in enumerate(engine):
        replay.seek(step)
        live = replay.live_requests()
        assert [names[row] for row in live] == said["running"]
        for row in live:
            for group, told in enumerate(said["blocks"][names[row]]):
                assert table_of(replay, int(row), group, len(told)) == told
        assert int((replay.owner == NO_OWNER).sum()) == said["free"] == recording.steps.free_units[step]
        keyed = set(said["keyed"])
        assert set((np.flatnonzero(replay.cached) + replay.first_unit).tolist()) <= keyed


@in_main
def test_stepping_backward_shows_what_stepping_forward_did(recording: Recording) -> None:
    replay, afresh = Replay(recording), Replay(recording)
    for frame in range(replay.num_frames - 1, -1, -7):
        replay.seek(frame)
        afresh.seek(0)
        afresh.seek(frame)
        for name in ("owner", "position", "refs", "cached", *["group"] * (len(recording.meta.pool.groups) > 1)):
            held = replay.owner != NO_OWNER
            ours, theirs = getattr(replay, name), getattr(afresh, name)
            assert np.array_equal(ours[held] if name == "group" else ours, theirs[held] if name == "group" else theirs)


@in_main
def test_what_is_not_touched_looks_as_before(recording: Recording) -> None:
    replay = Replay(recording)
    before = replay.slots()
    for frame in range(1, replay.num_frames):
        replay.seek(frame)
        now, touched = replay.slots(), replay.changed_units(frame - 1, frame)
        changed = np.flatnonzero((now != before).any(axis=1))
        assert np.isin(changed, touched).all()
        before = now
    (states,), (owners,) = replay.states_at([replay.num_frames // 2])
    assert states.tolist() == replay.slots().argmax(axis=1).tolist()
    assert owners.tolist() == replay.owner.tolist()


@in_main
def test_the_account_of_every_frame_is_that_of_its_units(recording: Recording) -> None:
    replay = Replay(recording)
    account = waste(replay)
    assert (account.slots.sum(axis=1) == account.capacity).all()
    for frame in range(replay.num_frames):
        replay.seek(frame)
        np.testing.assert_array_equal(replay.slots().sum(axis=0), account.slots[frame])


def test_a_log_verifies_and_packs(recording: Recording, tmp_path: Path) -> None:
    verdict = verify_recording(recording)
    assert verdict.equal, verdict
    packed = read(write(recording, tmp_path / "packed"))
    assert packed.meta.pool == recording.meta.pool
    assert verify_recording(packed) == verdict


@in_main
def test_a_block_that_is_let_go_too_late_is_noticed(recording: Recording) -> None:
    groups = recording.meta.pool.groups
    if not any(group.window for group in groups):
        pytest.skip("no window to be off by one")
    wider = tuple(replace(group, window=group.window + group.block_size) if group.window else group for group in groups)
    meta = replace(recording.meta, pool=replace(recording.meta.pool, groups=wider))
    assert not verify_recording(replace(recording, meta=meta)).equal


@in_main
def test_a_scheduler_that_takes_another_block_is_found_out(live: Live) -> None:
    recording = read(live.log(BROKEN))
    verdict = verify_recording(recording)
    assert not verdict.equal
    assert 0 < verdict.num_steps < len(recording.steps)
    assert verdict.difference is not None
    assert any(line.label.startswith("memory") for line in verdict.difference.lines if line.differs)


@pytest.mark.parametrize("name", ["vllm-h200-gemma-3-4b-windows", "vllm-h200-granite-h-350m-states"])
def test_a_real_engine_is_followed_block_by_block(name: str) -> None:
    recording = read(find(name))
    verdict = verify_recording(recording)
    assert verdict.equal, verdict
    assert verdict.num_preemptions > 0
    assert verdict.num_hits > 100
    replay = Replay(recording)
    account = waste(replay)
    for frame in range(0, replay.num_frames, replay.num_frames // 40):
        replay.seek(frame)
        np.testing.assert_array_equal(replay.slots().sum(axis=0), account.slots[frame])
        if frame < len(recording.steps):
            assert int((replay.owner == NO_OWNER).sum()) == recording.steps.free_units[frame]
