"""SGLang's policy on the clock: slots are accounted for, machine code brings the same, the rest is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvsim.calibration.prior import vllm_prior
from kvsim.errors import StalledError, UsageError
from kvsim.hardware import find_gpu
from kvsim.metrics.contradictions import refuse_contradictions
from kvsim.models import find_model
from kvsim.policies import Radix, RadixSettings, SGLangSettings
from kvsim.simulation import Machine, Measured, measure, simulate
from kvsim.workload import Workload

GPU, MODEL = find_gpu("H200"), find_model("Llama-3-8B")
NUM_REQUESTS = 60
SCHEDULING = SGLangSettings(
    context_length=600, max_running_requests=16, chunked_prefill_size=96, max_prefill_tokens=256,
    schedule_conservativeness=0.05, retract_decode_steps=2,
)  # fmt: skip


def machine_of(num_tokens: int) -> Machine:
    kv_bytes = num_tokens * MODEL.kv_bytes_per_token
    return Machine(gpu=GPU, model=MODEL, kv_bytes=kv_bytes, step_time=vllm_prior(GPU, MODEL))


def workload() -> Workload:
    """Requests with three prefixes, some of which stop before their limit, more than there is memory for."""
    random = np.random.default_rng(7)
    group = random.integers(-1, 3, NUM_REQUESTS)
    own, output = random.integers(3, 120, NUM_REQUESTS), random.integers(1, 90, NUM_REQUESTS)
    return Workload(
        arrival_s=np.sort(random.uniform(0, 1.5, NUM_REQUESTS)),
        prompt_tokens=own + np.where(group >= 0, 100, 0),
        output_tokens=output,
        max_tokens=output + random.integers(0, 2, NUM_REQUESTS) * 40,
        prefix_group=group,
        prefix_names=("a", "b", "c"),
        prefix_tokens=np.where(group >= 0, 100, 0),
    )


def run(policy: Radix, *, compiled: bool = False) -> Measured:
    """Run these requests; the account is checked at every step where the engine is interpreted."""
    engine = "compiled" if compiled else "interpreted"
    return measure(workload(), policy, machine_of(1200), engine=engine, check=not compiled)


@pytest.mark.parametrize(
    ("scheduling", "cache"),
    [
        ({}, {}),
        ({}, {"page_size": 16}),
        ({"disable_overlap_schedule": True}, {"page_size": 4, "radix_eviction_policy": "lfu"}),
        ({"schedule_policy": "lpm"}, {"radix_eviction_policy": "slru"}),
        ({"schedule_policy": "dfs-weight"}, {}),
        ({"enable_mixed_chunk": True, "schedule_conservativeness": 1.0}, {}),
        ({"chunked_prefill_size": -1}, {"page_size": 16}),
        ({}, {"disable_radix_cache": True}),
        ({"disable_consecutive_prefill_overlap": True}, {}),
    ],
    ids=str,
)
def test_every_slot_is_accounted_for_at_every_step(scheduling: dict[str, object], cache: dict[str, object]) -> None:
    policy = Radix(scheduler=replace(SCHEDULING, **scheduling), cache=RadixSettings(**cache))  # type: ignore[arg-type]
    measured = run(policy)
    requests = measured.requests
    recording = simulate(workload(), policy, machine_of(1200), engine="interpreted")
    refuse_contradictions(recording, Path("recording"))
    assert (requests.output_tokens == workload().output_tokens).all()
    assert (requests.cached_tokens.sum() > 0) == (not policy.cache.disable_radix_cache)
    assert (requests.cached_tokens < requests.prompt_tokens).all()


def test_requests_are_retracted_where_answers_were_underestimated() -> None:
    assert run(Radix(scheduler=SCHEDULING)).requests.preemptions.sum() > 0
    careful = replace(
        SCHEDULING, schedule_conservativeness=1.0, init_new_token_ratio=1.0, min_new_token_ratio_factor=1.0
    )
    assert run(Radix(scheduler=careful)).requests.preemptions.sum() == 0


@pytest.mark.slow
def test_machine_code_brings_the_same() -> None:
    policy = Radix(scheduler=SCHEDULING)
    one, other = run(policy), run(policy, compiled=True)
    for name in ("first_token_s", "finished_s", "preemptions", "cached_tokens"):
        np.testing.assert_array_equal(getattr(one.requests, name), getattr(other.requests, name))


@pytest.mark.slow
@pytest.mark.parametrize("cache", [{}, {"page_size": 4}, {"disable_radix_cache": True}], ids=str)
def test_machine_code_records_the_same(cache: dict[str, object]) -> None:
    policy = Radix(scheduler=replace(SCHEDULING, schedule_policy="lpm"), cache=RadixSettings(**cache))  # type: ignore[arg-type]
    tables = [
        (one.requests.to_arrow(), one.steps.to_arrow(), one.schedule.to_arrow(), one.memory.to_arrow())
        for one in (simulate(workload(), policy, machine_of(1200), engine=way) for way in ("interpreted", "compiled"))
    ]
    assert tables[0] == tables[1]


def test_a_request_that_never_fits_is_found() -> None:
    asks = Workload(arrival_s=[0.0], prompt_tokens=[260], output_tokens=[5], max_tokens=[150])
    policy = Radix(scheduler=replace(SCHEDULING, context_length=400), cache=RadixSettings(page_size=64))
    with pytest.raises(StalledError, match="its prompt and its whole answer need more than the pool"):
        measure(asks, policy, machine_of(320))


def test_what_is_not_followed_is_refused() -> None:
    windows = find_model("gpt-oss-20b")
    machine = Machine(gpu=GPU, model=windows, kv_bytes=1 << 30, step_time=vllm_prior(GPU, MODEL))
    with pytest.raises(UsageError, match="layers with windows"):
        measure(workload(), Radix(), machine)


def test_settings_out_of_bounds_are_refused() -> None:
    with pytest.raises(UsageError, match="page_size should be at least 1"):
        RadixSettings(page_size=0)
    with pytest.raises(UsageError, match="chunked_prefill_size"):
        SGLangSettings(chunked_prefill_size=0)
