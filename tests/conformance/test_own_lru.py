"""vLLM's eviction written as a policy of one's own decides what vLLM decided, on every golden workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvsim.conformance import read_records, read_workload, verify_oracle
from kvsim.engine.custom.custom_rules import CustomRules
from kvsim.engine.initialization import EnginePlan
from kvsim.engine.state import Engine
from kvsim.errors import UsageError
from kvsim.policies import CustomPolicy, Paged
from kvsim.policies.custom import CachedBlock, StepInMaking

from .test_golden import GROUPED, OF_RELEASES, OFFLOADED, WORKLOADS


class LeastRecentlyFreed(CustomPolicy):
    """The block that was freed first of all, by a look at every candidate."""

    name = "least-recently-freed"

    def evict(self, step: StepInMaking, candidates: Sequence[CachedBlock]) -> CachedBlock:
        assert all(one.last_used_s <= step.now_s for one in candidates)
        return next(iter(candidates))


class RankedByTime(CustomPolicy):
    """The same, by rank: of blocks that were freed at one moment, the one freed first."""

    name = "ranked-by-time"

    def eviction_rank(self, block: CachedBlock) -> float:
        return block.last_used_s


ALL = [*WORKLOADS, *GROUPED, *OFFLOADED, *OF_RELEASES]
STAGED = [file for file in ALL if "pipeline" in file.stem or "stages" in file.stem]
"""Workloads of several pipeline stages, where a policy of one's own is refused."""
QUICK = [file for file in ALL[::5] if file not in STAGED]
OTHERS = [file for file in ALL if file not in (*QUICK, *STAGED)]


def verify(workload: Path, policy: CustomPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    build: Any = EnginePlan.build

    def build_with_policy(plan: EnginePlan, *, compiled: bool = False) -> Engine:
        assert not compiled
        rules = CustomRules(policy, plan.num_units) if isinstance(plan.policy, Paged) else None
        engine: Engine = build(replace(plan, rules=rules))
        return engine

    monkeypatch.setattr(EnginePlan, "build", build_with_policy)
    records = read_records(workload.with_suffix(".jsonl.gz"))
    verdict = verify_oracle(read_workload(workload), records, compiled=False)
    assert verdict.equal, verdict
    assert verdict.num_steps > 0


@pytest.mark.parametrize("workload", QUICK, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_the_rule_is_vllms(workload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verify(workload, LeastRecentlyFreed(), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("workload", OTHERS, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_the_rule_is_vllms_everywhere(workload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verify(workload, LeastRecentlyFreed(), monkeypatch)


@pytest.mark.parametrize("workload", QUICK, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_the_rule_as_a_rank_is_vllms(workload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verify(workload, RankedByTime(), monkeypatch)


def test_stages_are_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(STAGED) > 10
    for workload in STAGED:
        with pytest.raises(UsageError, match="a policy of your own is modelled where one stage holds all layers"):
            verify(workload, RankedByTime(), monkeypatch)
        monkeypatch.undo()
