"""Sums that are made as a run goes agree with its recording where sequences move, or stop when nobody expects it."""

from __future__ import annotations

import pytest

from kvsim.hardware import find_gpu
from kvsim.metrics import summarize
from kvsim.models import find_model
from kvsim.policies import Contiguous, Paged, Policy
from kvsim.profiles import find
from kvsim.scheduling.settings import ContiguousSettings, ContinuousSettings, Order, PagedSettings, Reserve
from kvsim.simulation import Machine, measure, simulate
from kvsim.simulation.surprises import Surprises
from kvsim.workload import Workload

MODEL = find_model("Meta-Llama-3-8B")
MACHINE = Machine(
    gpu=find_gpu("H200"),
    model=MODEL,
    kv_bytes=68 * MODEL.kv_bytes_per_token,
    step_time=find("vllm-h200-llama-3-8b"),
)


def assert_same_shares(workload: Workload, policy: Policy, concurrency: int | None = None) -> None:
    measured = measure(workload, policy, MACHINE, concurrency=concurrency).summary.waste.pool_percent
    recorded = summarize(simulate(workload, policy, MACHINE, concurrency=concurrency, leap=False)).waste.pool_percent
    assert measured == pytest.approx(recorded, abs=1e-9)


def test_what_was_computed_moves_along_with_a_sequence() -> None:
    """With one token a step, most of the sequences that compaction moves are not scheduled in that step."""
    workload = Workload(
        arrival_s=[0, 0.05, 0.1, 0.4, 0.4, 0.4, 0.7, 0.7, 0.71],
        prompt_tokens=[11, 18, 6, 16, 13, 1, 8, 17, 11],
        output_tokens=[37, 30, 31, 17, 19, 3, 5, 1, 11],
        priority=[0, 0, 1, 1, 1, 0, 0, 0, 0],
    )
    scheduler = ContinuousSettings(max_num_seqs=3, max_num_batched_tokens=1, max_model_len=48, order=Order.PRIORITY)
    assert_same_shares(
        workload,
        Contiguous(scheduler=scheduler, cache=ContiguousSettings(reserve=Reserve.LIMIT, compaction=True)),
    )


def test_a_surprise_that_is_preempted_before_its_last_step() -> None:
    workload = Workload(
        arrival_s=[0.3, 0.3, 0.3, 0.6, 0.6, 0.61, 0.61, 0.61, 0.62, 0.63],
        prompt_tokens=[6, 16, 13, 1, 8, 17, 11, 1, 15, 14],
        output_tokens=[3, 2, 2, 1, 1, 1, 1, 1, 1, 3],
        max_tokens=[5, 2, 2, 1, 1, 5, 4, 4, 2, 6],
        priority=[2, 1, 1, 2, 2, 2, 1, 2, 2, 1],
    )
    scheduler = ContinuousSettings(
        max_num_seqs=6, max_num_batched_tokens=200, max_model_len=48, order=Order.PRIORITY, enable_chunked_prefill=False
    )
    cache = PagedSettings(block_size=3, enable_prefix_caching=False)
    assert_same_shares(workload, Paged(scheduler=scheduler, cache=cache), concurrency=7)


def test_only_slots_that_stayed_empty_are_taken_back() -> None:
    surprises = Surprises()
    surprises.hold(0, 0)
    surprises.hold(1, 2)
    surprises.at((1.0, 2.0, 4.0))
    surprises.leave(0, computed=True)
    surprises.leave(1, computed=False)
    surprises.leave(2, computed=False)
    surprises.at((7.0,))
    assert surprises.slot_s == 3.0


def test_a_slot_that_was_lost_and_got_again_counts_twice() -> None:
    surprises = Surprises()
    surprises.hold(0, 0)
    surprises.at((1.0,))
    surprises.leave(0, computed=False)
    surprises.at((2.0,))
    surprises.hold(0, 0)
    surprises.at((5.0,))
    surprises.leave(0, computed=False)
    surprises.at((5.5,))
    assert surprises.slot_s == 1.5
