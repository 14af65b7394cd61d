"""What a run amounts to in words, and what its requests waited for."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.hardware import find_gpu
from kvsim.machines import step_times
from kvsim.metrics import Summary, summarize
from kvsim.metrics.run_verdict import Limit, verdict_of
from kvsim.metrics.shares import whole_percents
from kvsim.models import find_model
from kvsim.policies import Paged, Policy, Static
from kvsim.policies.settings import ContinuousSettings, StaticSettings
from kvsim.simulation import Machine, measure, simulate
from kvsim.workload import AllAtOnce, Fixed, LogNormal, Poisson, Workload, generate


def machine(num_blocks: int) -> Machine:
    gpu, model = find_gpu("H200"), find_model("Meta-Llama-3-8B")
    return Machine(gpu=gpu, model=model, kv_bytes=num_blocks * (2 << 20), step_time=step_times(gpu, model, "vllm"))


def burst(num_requests: int = 40) -> Workload:
    return generate(num_requests, arrivals=AllAtOnce(), prompt=Fixed(tokens=60), output=Fixed(tokens=80), seed=1)


def summary_of(num_blocks: int, **limits: int) -> Summary:
    policy = Paged(scheduler=ContinuousSettings(**limits))
    return measure(burst(), policy, machine(num_blocks)).summary


def test_each_limit_is_named_where_it_alone_holds_requests_back() -> None:
    ample = summary_of(2000)
    assert verdict_of(ample).is_good
    assert verdict_of(ample).limit is None
    short = verdict_of(summary_of(100))
    assert short.limit is Limit.MEMORY
    assert not short.is_good
    assert "preemptions (" in short.sentence
    batch, tokens = summary_of(2000, max_num_seqs=4), summary_of(2000, max_num_batched_tokens=30)
    assert (verdict_of(batch).limit, verdict_of(tokens).limit) == (Limit.BATCH, Limit.TOKENS)
    assert "no request ever waits in the queue" in verdict_of(ample).sentence
    assert "(max_num_seqs 4)" in verdict_of(batch).sentence
    assert "(max_num_batched_tokens 30)" in verdict_of(tokens).sentence


def test_waiting_is_split_by_cause_and_adds_up() -> None:
    for num_blocks, limits in ((100, {}), (2000, {"max_num_seqs": 4}), (2000, {"max_num_batched_tokens": 30})):
        summary = summary_of(num_blocks, **limits)
        waits = summary.waiting_for
        assert waits.memory + waits.batch + waits.tokens == pytest.approx(summary.mean_waiting)


def test_nothing_is_computed_in_vain_without_preemptions_and_what_is_lost_is_counted() -> None:
    """Counted by hand: a prompt of 60 and an answer of 80 take 139 tokens each, the last of which is never computed."""
    ample = summary_of(2000)
    assert (ample.computed_tokens, ample.vain_tokens) == (40 * 139, 0)
    short = summary_of(100)
    assert short.num_preemptions > 0
    assert short.vain_tokens == short.computed_tokens - 40 * 139 > 60 * 5


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 99),
    num_blocks=st.integers(60, 200),
    max_num_seqs=st.sampled_from([3, 1024]),
    budget=st.sampled_from([64, 16384]),
    sync=st.booleans(),
)
def test_sums_and_recordings_agree_on_who_waited_for_what(
    seed: int, num_blocks: int, max_num_seqs: int, budget: int, sync: bool
) -> None:
    workload = generate(
        20,
        arrivals=Poisson(rate_per_s=200),
        prompt=LogNormal(mean_tokens=150, sigma=0.5, maximum=400),
        output=LogNormal(mean_tokens=40, sigma=0.5, maximum=200),
        max_tokens=200,
        seed=seed,
    )
    scheduler = ContinuousSettings(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, async_scheduling=not sync)
    check_agreement(workload, Paged(scheduler=scheduler), num_blocks)


def test_a_static_batch_keeps_everybody_else_waiting() -> None:
    check_agreement(burst(), Static(scheduler=StaticSettings(batch_size=8)), 2000)
    assert verdict_of(
        measure(burst(), Static(scheduler=StaticSettings(batch_size=8)), machine(2000)).summary
    ).limit is (Limit.BATCH)


def check_agreement(workload: Workload, policy: Policy, num_blocks: int) -> None:
    summed = measure(workload, policy, machine(num_blocks)).summary
    recorded = summarize(simulate(workload, policy, machine(num_blocks)))
    assert (summed.computed_tokens, summed.vain_tokens) == (recorded.computed_tokens, recorded.vain_tokens)
    for name, value in asdict(recorded.waiting_for).items():
        assert asdict(summed.waiting_for)[name] == pytest.approx(value, rel=1e-9, abs=1e-9), name
        assert math.isfinite(value)


def test_shares_in_whole_percents_add_up() -> None:
    assert whole_percents(0.606, 0.296, 0.098) == [61, 29, 10]
    assert whole_percents(1.0, 1.0, 1.0) == [34, 33, 33]
    assert whole_percents(0.0, 0.0) == [0, 0], "no shares of nothing"
