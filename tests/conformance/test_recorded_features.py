"""Recordings of vLLM's own scheduler with drafts, adapters and transfers, a fake model under it: they keep to the
format, `verify` follows them, and finds every decision that is changed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.conformance import verify_recording
from kvsim.errors import RecordingError
from kvsim.metrics.contradictions import refuse_contradictions
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.recording import MemoryKind, Recording, read, write
from kvsim.recording.check import check
from kvsim.recording.tables import TransferKind
from kvsim.simulation import simulate
from kvsim.workload import Workload

from ..conftest import MakeMachine
from ..vllm_engine.recordings import FEATURED, Live

DRAFTS = tuple(file for file in FEATURED if file.parent.name == "spec")
ADAPTERS = tuple(file for file in FEATURED if file.parent.name == "lora")


@pytest.mark.parametrize("workload", FEATURED, ids=lambda file: file.stem)
def test_a_recorded_vllm_with_features_is_followed_in_every_decision(
    workload: Path, live: Live, tmp_path: Path
) -> None:
    recording = read(live.log(workload), check_shipped=True)
    refuse_contradictions(recording, tmp_path)
    verdict = verify_recording(recording, compiled=False)
    assert verdict.equal, verdict
    assert verdict.num_steps > 0
    packed = read(write(recording, tmp_path / "packed"))
    for name in ("known", "outputs", "proposed"):
        one, other = getattr(recording.schedule, name), getattr(packed.schedule, name)
        assert (one is None and other is None) or np.array_equal(one, other)
    assert verify_recording(packed, compiled=False).equal


def test_what_is_recorded_of_drafts_adds_up(live: Live) -> None:
    num_proposed = 0
    for workload in DRAFTS:
        recording = read(live.log(workload))
        schedule, requests = recording.schedule, recording.requests
        assert recording.meta.num_drafts > 0
        assert schedule.outputs is not None
        outputs = np.bincount(schedule.request, weights=schedule.outputs, minlength=len(requests))
        assert (outputs == requests.output_tokens).all()
        assert (schedule.outputs.max() > 1) or workload.stem == "m_dynamic_k"
        num_proposed += schedule.proposed is not None
    assert num_proposed == 2  # of the workloads that schedule a step when the last one's output is known


@pytest.mark.parametrize("name", ["m_preempt", "m_preempt_sync"])
def test_an_output_that_does_not_add_up_is_found_in_the_recording_alone(name: str, live: Live, tmp_path: Path) -> None:
    changed = _changed(read(live.log(name)), "outputs")
    with pytest.raises(RecordingError, match="known should be the prompt and the outputs of earlier steps"):
        check(changed, tmp_path)


def test_adapters_are_told_apart(live: Live) -> None:
    numbers = [read(live.log(workload)).requests.adapter for workload in ADAPTERS]
    assert [None if each is None else int(each.max()) for each in numbers][1:] == [2, 3, None]


def test_transfers_are_told_with_their_failures(live: Live) -> None:
    loads = read(live.log("m_nixl_decode")).transfers
    assert loads is not None
    assert (loads.kind == TransferKind.LOAD).all()
    assert (loads.ended_seq > loads.begun_seq).all()
    sends = read(live.log("m_nixl_prefill")).transfers
    assert sends is not None
    assert (sends.kind == TransferKind.SEND).all()
    failing = read(live.log("m_nixl_bad_after_hit")).transfers
    assert failing is not None
    assert (failing.failed >= 0).any()


def _changed(recording: Recording, change: str) -> Recording:
    """The recording with one decision, or one fact about drafts, that is another."""
    schedule, memory = recording.schedule, recording.memory
    if change in ("outputs", "proposed", "tokens"):
        values = getattr(schedule, change).copy()
        several = np.flatnonzero(values > 1)
        values[several[len(several) // 2]] -= 1
        return replace(recording, schedule=replace(schedule, **{change: values}))
    if change == "ended_seq":
        assert recording.transfers is not None
        late = recording.transfers.ended_seq.copy()
        late[0] = recording.steps.output_seq[recording.steps.output_seq > late[0]][0]
        return replace(recording, transfers=replace(recording.transfers, ended_seq=late))
    if change == "adapter":
        assert recording.requests.adapter is not None
        return replace(
            recording, requests=replace(recording.requests, adapter=np.ones_like(recording.requests.adapter))
        )
    address = memory.address.copy()
    appended = np.flatnonzero((memory.kind == MemoryKind.APPEND) & (memory.length == 1))
    one, other = appended[len(appended) // 2], appended[-1]
    address[one], address[other] = address[other], address[one]
    return replace(recording, memory=replace(memory, address=address))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(("m_preempt", change) for change in ("outputs", "tokens", "address")),
        *(("m_preempt_sync", change) for change in ("outputs", "tokens", "proposed")),
        ("m_ngram_some_drafts", "proposed"),
        ("m_preempted_adapter", "address"),
        ("g_lora_03", "adapter"),
        *((name, "ended_seq") for name in ("m_nixl_decode", "m_nixl_prefill", "g_nixl_08")),
        ("m_nixl_decode", "address"),
    ],
)
def test_a_changed_decision_is_found(name: str, change: str, live: Live) -> None:
    recording = read(live.log(name))
    if change == "address" and len(np.unique(recording.memory.address)) < 4:
        pytest.skip("too few blocks")
    assert not verify_recording(_changed(recording, change), compiled=False).equal


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("release", ["0.33.0", "0.25.1"])
def test_a_simulation_with_drafts_can_be_verified(release: str, ahead: bool, make_machine: MakeMachine) -> None:
    config: dict[str, Any] = {"method": "eagle", "model": "a head", "num_speculative_tokens": 2}
    random = np.random.default_rng(1)
    workload = Workload(
        arrival_s=np.sort(random.uniform(0, 0.3, 30)),
        prompt_tokens=random.integers(5, 60, 30),
        output_tokens=random.integers(5, 40, 30),
    )
    policy = Paged(
        scheduler=ContinuousSettings(
            max_num_seqs=6, async_scheduling=ahead, vllm=release, speculative_config=config, max_model_len=128
        ),
        cache=PagedSettings(block_size=4),
    )
    recording = simulate(workload, policy, make_machine(260), engine="interpreted")
    verdict = verify_recording(recording, compiled=False)
    assert verdict.equal, verdict
    assert verdict.num_preemptions > 0
