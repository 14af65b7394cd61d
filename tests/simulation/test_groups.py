"""Models with several KV-cache groups, put through the paged policy on a clock."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvsim.calibration.prior import vllm_prior
from kvsim.conformance import verify_recording
from kvsim.errors import UsageError
from kvsim.hardware import find_gpu
from kvsim.memory.waste import SlotState
from kvsim.metrics import summarize
from kvsim.models import Model, find_model
from kvsim.policies import Contiguous, Paged
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.recording import Recording
from kvsim.simulation import Machine, measure, simulate
from kvsim.workload import Workload

SCHEDULER = ContinuousSettings(max_num_seqs=6, max_num_batched_tokens=2048, max_model_len=4096)


def machine_for(model: Model, num_blocks: int, policy: Paged) -> Machine:
    gpu = find_gpu("H200")
    machine = Machine(gpu=gpu, model=model, kv_bytes=1, step_time=vllm_prior(gpu, model))
    layout = machine.layout(policy)
    assert layout is not None
    return replace(machine, kv_bytes=num_blocks * layout.bytes_per_block)


def workload(num_requests: int = 8) -> Workload:
    rng = np.random.default_rng(3)
    return Workload(
        arrival_s=np.arange(num_requests) * 0.05,
        prompt_tokens=rng.integers(700, 2600, num_requests),
        output_tokens=rng.integers(5, 40, num_requests),
        max_tokens=np.full(num_requests, 40),
        prefix_group=rng.integers(0, 2, num_requests),
        prefix_tokens=np.full(num_requests, 640),
        prefix_names=("first", "second"),
    )


def run(name: str, num_blocks: int, **cache: Any) -> Recording:
    policy = Paged(scheduler=SCHEDULER, cache=PagedSettings(**cache))
    machine = machine_for(find_model(name), num_blocks, policy)
    recording = simulate(workload(), policy, machine, check=True, engine="interpreted")
    measured = measure(workload(), policy, machine, engine="interpreted").summary
    told = summarize(recording)
    assert measured.num_preemptions == told.num_preemptions
    for ours, theirs in zip(measured.waste.pool_percent, told.waste.pool_percent, strict=True):
        assert math.isclose(ours, theirs, rel_tol=1e-7, abs_tol=1e-7)
    assert math.isclose(told.waste.pool_percent.sum(), 100)
    assert verify_recording(recording).equal
    return recording


@pytest.mark.parametrize(
    ("name", "num_blocks", "num_groups", "cache"),
    [
        ("gemma-3-27b", 1500, 7, {}),
        ("gpt-oss-20b", 420, 2, {}),
        ("granite-4.0-h-350m", 60, 8, {"enable_prefix_caching": False}),
        ("granite-4.0-h-350m", 90, 8, {"enable_prefix_caching": True}),
        ("Qwen3-Next-80B-A3B-Instruct", 30, 4, {"enable_prefix_caching": False}),
    ],
)
def test_what_is_measured_is_what_is_recorded(
    name: str, num_blocks: int, num_groups: int, cache: dict[str, Any]
) -> None:
    recording = run(name, num_blocks, **cache)
    assert len(recording.meta.pool.groups) == num_groups
    assert (recording.requests.output_tokens == workload().output_tokens).all()


def test_windows_hold_what_they_no_longer_read() -> None:
    shares = summarize(run("gemma-3-27b", 1500)).waste.pool_percent
    assert shares[SlotState.EXPIRED] > 1


def test_a_uniform_cache_holds_fewer_sequences() -> None:
    # In steps so small that a window holds little more than itself while a prompt is computed.
    scheduler = replace(SCHEDULER, max_num_batched_tokens=256)
    long = replace(
        workload(),
        prompt_tokens=np.full(8, 3000),
        arrival_s=np.zeros(8),
        prefix_group=np.full(8, -1),
        prefix_tokens=np.zeros(8, int),
    )
    grouped, uniform = (Paged(scheduler=scheduler, cache=PagedSettings(uniform_cache=kept)) for kept in (False, True))
    machine = machine_for(find_model("gemma-3-27b"), 1500, grouped)
    with_groups, without = (
        simulate(long, policy, machine, check=True, engine="interpreted") for policy in (grouped, uniform)
    )
    assert without.meta.pool.groups == ()
    assert summarize(with_groups).mean_batch > 1.5 * summarize(without).mean_batch


def test_what_is_modelled_for_one_group_alone_is_refused() -> None:
    policy = Paged(scheduler=replace(SCHEDULER, async_scheduling=False), cache=PagedSettings(swap_gib=1.0))
    with pytest.raises(UsageError, match="several KV-cache groups, so leave --swap-gib out"):
        simulate(workload(), policy, machine_for(find_model("gpt-oss-20b"), 900, policy))


def test_states_are_not_handed_out_by_tokens() -> None:
    model = find_model("granite-4.0-h-350m")
    machine = replace(machine_for(model, 60, Paged(scheduler=SCHEDULER)), kv_bytes=1 << 30)
    with pytest.raises(UsageError, match="has 28 recurrent layers, whose states are no tokens"):
        simulate(workload(), Contiguous(scheduler=SCHEDULER), machine)
