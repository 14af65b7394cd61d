"""HiCache on the clock: the same decisions as without a clock, if copies end in the same passes.

Without a clock, decisions are compared with those of SGLang's own scheduler (`test_golden_sglang`). Here, runs whose
copies end by the speed of the link are replayed in that way: every batch, slot, eviction and queue has to be equal.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvsim.conformance.sglang_files import parse_sglang_workload

from .timed_copies import TimedRun, as_served, replayed, with_link

POLICIES = ("write_through", "write_through_selective", "write_back")


def drawn_workload(seed: int) -> dict[str, Any]:
    """Draw requests that share prefixes or follow others, on a pool that is short of memory, with a host tier."""
    draw = random.Random(seed)
    page, num_slots = draw.choice([1, 1, 4, 16]), draw.choice([96, 160, 320])
    longest = num_slots // 2
    groups = [draw.randrange(page, max(longest * 2 // 3, page + 1)) for _ in range(3)]
    requests: list[dict[str, Any]] = []
    for number in range(draw.choice([6, 12, 24])):
        request: dict[str, Any] = {"id": f"r{number:02d}", "output_len": draw.randrange(1, 24)}
        request["arrival_step"] = draw.choice([0, 1, 4]) * number + draw.randrange(3)
        request["prompt_len"] = draw.randrange(1, longest)
        if draw.random() < 0.7:
            group = draw.randrange(len(groups))
            request |= {"prefix_group": group, "prefix_len": groups[group]}
            request["prompt_len"] = min(groups[group] + draw.randrange(1, 20), longest)
        elif requests and draw.random() < 0.6:
            before = draw.choice(requests)
            request |= {"follows": before["id"]}
            request["prompt_len"] = min(before["prompt_len"] + before["output_len"] + draw.randrange(5), longest)
        request |= {"max_tokens": request["output_len"] + draw.choice([0, 5, 60])} if draw.random() < 0.4 else {}
        requests.append(request)
    return {
        "num_slots": num_slots,
        "page_size": page,
        "max_running_requests": draw.choice([2, 4, 8]),
        "context_length": num_slots * 3 // 4,
        "chunked_prefill_size": draw.choice([16, 32, 64]),
        "max_prefill_tokens": 128,
        "overlap": draw.random() < 0.8,
        "mixed_chunk": draw.random() < 0.15,
        "schedule_policy": draw.choice(["fcfs", "fcfs", "lpm", "dfs-weight"]),
        "eviction_policy": draw.choice(["lru", "lru", "lfu", "slru"]),
        "environment": {"SGLANG_INIT_NEW_TOKEN_RATIO": draw.choice([0.05, 0.3, 0.7]), "SGLANG_RETRACT_DECODE_STEPS": 2},
        "server_args": {
            "enable_hierarchical_cache": True,
            # A host pool of one page, smaller than the device's, and larger.
            "hicache_ratio": draw.choice([0.001, 0.2, 0.5, 1.0, 2.0]),
            "hicache_write_policy": draw.choice(POLICIES),
        },
        "requests": requests,
    }


def compared(seed: int) -> dict[str, int]:
    """Run a drawn workload on the clock, and without one; return what happened, if both are equal."""
    workload = with_link(parse_sglang_workload(drawn_workload(seed), f"seed {seed}"), seed)
    run = TimedRun(workload)
    timed = run.steps()
    told = replayed(as_served(workload, run), run.copies)
    assert len(timed) == len(told), seed
    for one, other in zip(timed, told, strict=True):
        differs = [name for name in {**one, **other} if one.get(name) != other.get(name)]
        assert not differs, (seed, one["pass"], [(name, one.get(name), other.get(name)) for name in differs])
    return {
        "written": sum(record["written"] for record in run.copies),
        "loaded": sum(record["loaded"] for record in run.copies),
        "evicted": sum(len(call["leaves"]) for step in timed for call in step.get("evicted", ())),
        "retracted": sum(len(step.get("retracted", ())) for step in timed),
    }


@pytest.mark.parametrize("seed", range(24))
def test_a_run_on_the_clock_decides_as_if_told_when_its_copies_end(seed: int) -> None:
    compared(seed)


@pytest.mark.slow
def test_hundreds_of_runs_on_the_clock_decide_as_if_told() -> None:
    totals = dict.fromkeys(("written", "loaded", "evicted", "retracted"), 0)
    for seed in range(100, 420):
        for name, count in compared(seed).items():
            totals[name] += count
    assert all(totals.values()), totals
