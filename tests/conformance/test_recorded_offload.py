"""Recordings of engines with an offload: vLLM 0.25.1's own scheduler with a fake model, as the recorder sees it while
these tests run, one that it saw earlier, and simulations.

The recorded schedulers complete copies in vLLM's own order, that of a set, which is arbitrary and was written down.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvsim.conformance import verify_recording
from kvsim.errors import RecordingError
from kvsim.policies import Paged
from kvsim.policies.releases import OFFLOAD_RELEASE
from kvsim.policies.settings import ContinuousSettings, Eviction, PagedSettings
from kvsim.recording import Recording, eventlog, read, write
from kvsim.recording.tables import CopyKind
from kvsim.simulation import simulate
from kvsim.workload import Workload

from ..conftest import MakeMachine
from ..vllm_engine.recordings import OFFLOADED, Live, in_main

LOG = Path(__file__).with_name("recorded_offload") / "off02.jsonl.gz"


def _read(folder: Path) -> Recording:
    folder.mkdir()
    (folder / eventlog.FILE_NAME).write_bytes(gzip.decompress(LOG.read_bytes()))
    return read(folder)


@in_main
@pytest.mark.parametrize("workload", OFFLOADED, ids=lambda file: file.stem)
def test_a_recorded_vllm_with_an_offload_is_followed_in_every_decision(
    workload: Path, live: Live, tmp_path: Path
) -> None:
    recording = read(live.log(workload))
    verdict = verify_recording(recording)
    assert verdict.equal, verdict
    assert verdict.num_preemptions > 0
    assert recording.copies is not None
    assert set(recording.copies.kind.tolist()) == {CopyKind.STORE, CopyKind.LOAD}
    # Packed into tables, it is still the recording that it was.
    packed = read(write(recording, tmp_path / "packed"))
    assert packed.copies is not None
    for name, _ in packed.copies.columns():
        assert (getattr(packed.copies, name) == getattr(recording.copies, name)).all(), name
    assert verify_recording(packed).equal


def test_a_copy_that_is_reported_a_step_later_is_a_difference(tmp_path: Path) -> None:
    recording = _read(tmp_path / "log")
    copies = recording.copies
    assert copies is not None
    loads = np.flatnonzero((copies.kind == CopyKind.LOAD) & (copies.reported_step > 0))
    first = copies.copy == copies.copy[loads[0]]
    late = replace(copies, reported_step=np.where(first, copies.reported_step + 9, copies.reported_step))
    assert not verify_recording(replace(recording, copies=late)).equal


def test_a_copy_to_another_block_of_the_host_is_a_difference(tmp_path: Path) -> None:
    recording = _read(tmp_path / "log")
    assert recording.copies is not None
    slot = recording.copies.slot.copy()
    slot[slot == slot[-1]] += 1
    verdict = verify_recording(replace(recording, copies=replace(recording.copies, slot=slot)))
    assert verdict.difference is not None
    assert any(line.label.startswith("copies") for line in verdict.difference.lines)


def test_a_log_whose_copy_does_not_fill_its_host_blocks_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    _read(folder)
    log = folder / eventlog.FILE_NAME
    lines = log.read_text().splitlines()
    number = next(index for index, line in enumerate(lines) if line.startswith('["copy"'))
    event = json.loads(lines[number])
    event[4] = []
    lines[number] = json.dumps(event)
    log.write_text("\n".join(lines) + "\n")
    with pytest.raises(RecordingError, match=rf"line {number + 1}: .*copy 0 is of 0 blocks"):
        read(folder)


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("eviction", Eviction)
def test_a_simulation_with_an_offload_keeps_its_account_and_can_be_verified(
    ahead: bool, eviction: Eviction, make_machine: MakeMachine
) -> None:
    random = np.random.default_rng(4)
    size = 60
    workload = Workload(
        arrival_s=np.sort(random.uniform(0, 0.5, size)),
        prompt_tokens=(96 + random.integers(5, 60, size)).tolist(),
        output_tokens=random.integers(5, 60, size).tolist(),
        prefix_group=random.integers(0, 8, size),
        prefix_tokens=np.full(size, 96),
        prefix_names=[f"prefix-{number}" for number in range(8)],
    )
    policy = Paged(
        scheduler=ContinuousSettings(max_num_seqs=12, async_scheduling=ahead, vllm=OFFLOAD_RELEASE),
        cache=PagedSettings(kv_offloading_size=0.15, kv_offloading_eviction=eviction, kv_offloading_block_size=32),
    )
    recording = simulate(workload, policy, make_machine(900), check=True, engine="interpreted")
    assert recording.copies is not None
    assert (recording.copies.reported_step >= 0).all()
    assert (recording.copies.kind == CopyKind.LOAD).any()
    assert recording.num_preemptions > 0
    assert (recording.requests.output_tokens == workload.output_tokens).all()
    verdict = verify_recording(recording)
    assert verdict.equal, verdict
