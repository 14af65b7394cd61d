"""SGLang's policy on the clock: slots are accounted for, machine code brings the same, the rest is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kvsim.calibration.prior import vllm_prior
from kvsim.diagnosis.retractions import policy_of
from kvsim.errors import RecordingError, StalledError
from kvsim.hardware import find_gpu
from kvsim.metrics import summarize
from kvsim.metrics.contradictions import refuse_contradictions
from kvsim.models import find_model
from kvsim.policies import Radix, RadixSettings, SGLangSettings
from kvsim.recording import Recording
from kvsim.recording.check import check_window_units
from kvsim.recording.check_preemptions import check_retractions
from kvsim.simulation import EngineName, Machine, Measured, measure, simulate
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


def workload(prefix_tokens: int = 100) -> Workload:
    """Requests with three prefixes, some of which stop before their limit, more than there is memory for."""
    random = np.random.default_rng(7)
    group = random.integers(-1, 3, NUM_REQUESTS)
    own, output = random.integers(3, 120, NUM_REQUESTS), random.integers(1, 90, NUM_REQUESTS)
    return Workload(
        arrival_s=np.sort(random.uniform(0, 1.5, NUM_REQUESTS)),
        prompt_tokens=own + np.where(group >= 0, prefix_tokens, 0),
        output_tokens=output,
        max_tokens=output + random.integers(0, 2, NUM_REQUESTS) * 40,
        prefix_group=group,
        prefix_names=("a", "b", "c"),
        prefix_tokens=np.where(group >= 0, prefix_tokens, 0),
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
    slots = refuse_contradictions(recording, Path("recording"))
    assert summarize(recording, slots).mean_waiting == pytest.approx(measured.summary.mean_waiting, rel=1e-12)
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


WINDOWED = find_model("gpt-oss-20b")


@cache
def windowed(policy: Radix, *, engine: EngineName = "interpreted") -> Recording:
    """Record requests with a model whose windows, which are shorter than prefixes, have a pool short of memory."""
    num_tokens = 3200 if policy.cache.disable_radix_cache else 1200  # without a tree, windows of all requests fit
    kv_bytes = num_tokens * WINDOWED.kv_bytes_per_token
    machine = Machine(gpu=GPU, model=WINDOWED, kv_bytes=kv_bytes, step_time=vllm_prior(GPU, WINDOWED))
    checks = engine == "interpreted"
    return simulate(workload(180), policy, machine, engine=engine, check=checks, refuse_misfits=True)


@pytest.mark.parametrize("cache", [{}, {"page_size": 4, "swa_full_tokens_ratio": 0.4}, {"disable_radix_cache": True}],
                         ids=str)  # fmt: skip
def test_windows_have_a_pool_that_is_counted_at_every_step(cache: dict[str, object]) -> None:
    recording = windowed(Radix(scheduler=SCHEDULING, cache=RadixSettings(**cache)))  # type: ignore[arg-type]
    refuse_contradictions(recording, Path("recording"))
    pool, steps = recording.meta.pool, recording.steps
    assert pool.windows is not None
    assert steps.free_window_units is not None
    assert (steps.free_window_units < pool.windows.num_units).any()
    again = replace(machine_of(1), model=WINDOWED, kv_bytes=recording.meta.kv_bytes)
    assert again.pool(policy_of(recording)) == pool


def test_a_retraction_lacks_slots_of_a_pool() -> None:
    recording = windowed(Radix(scheduler=SCHEDULING, cache=RadixSettings(page_size=4, swa_full_tokens_ratio=0.4)))
    assert recording.num_preemptions
    with pytest.raises(RecordingError, match="a step should preempt only where the free units are too few"):
        check_retractions(with_free_windows(recording, 40), Path("steps.parquet"))


def with_free_windows(recording: Recording, more: int) -> Recording:
    """The recording of a pool of windows with `more` units, all of which stay free."""
    assert recording.steps.free_window_units is not None
    assert recording.meta.pool.windows is not None
    windows = replace(recording.meta.pool.windows, num_units=recording.meta.pool.windows.num_units + more)
    meta = replace(recording.meta, pool=replace(recording.meta.pool, windows=windows))
    steps = replace(recording.steps, free_window_units=recording.steps.free_window_units + np.int32(more))
    return replace(recording, meta=meta, steps=steps)


@pytest.mark.slow
@pytest.mark.parametrize("cache", [{}, {"page_size": 4}, {"disable_radix_cache": True}], ids=str)
def test_machine_code_records_the_same_windows(cache: dict[str, object]) -> None:
    policy = Radix(scheduler=SCHEDULING, cache=RadixSettings(**cache))  # type: ignore[arg-type]
    one, other = (windowed(policy, engine=way) for way in ("interpreted", "compiled"))
    assert one.steps.to_arrow() == other.steps.to_arrow()
    assert one.memory.to_arrow() == other.memory.to_arrow()


@pytest.mark.parametrize(
    ("column", "change", "says"),
    [
        ("free_window_units", -100_000, "should lie between 0 and"),
        ("cached_window_units", 100_000, "cached_window_units should lie between"),
        ("free_window_units", 3, "held"),
    ],
)
def test_impossible_counts_of_windows_are_refused(column: str, change: int, says: str) -> None:
    recording = windowed(Radix(scheduler=SCHEDULING))
    values = recording.steps[column].copy()
    values[0] += change
    steps = replace(recording.steps, **{column: values})
    with pytest.raises(RecordingError, match=says):
        check_window_units(replace(recording, steps=steps), Path("recording"))
    with pytest.raises(RecordingError, match="which needs free_window_units"):
        check_window_units(
            replace(recording, steps=replace(recording.steps, cached_window_units=None)), Path("recording")
        )
