"""Groups and block counts against what vLLM 0.25.1 itself answered; `differential.py` asked it."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

GOLDEN = Path(__file__).with_name("vllm-answers.jsonl.gz")


@pytest.fixture(scope="module")
def cases() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kv_group_cases", Path(__file__).with_name("cases.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kv_group_cases"] = module
    spec.loader.exec_module(module)
    return module


def kept() -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(GOLDEN.read_bytes()).splitlines()]


def test_the_blocks_of_hybrids_hold_a_state_as_in_vllm(cases: ModuleType) -> None:
    rows = [row for row in kept() if "hybrid" in row]
    assert len(rows) >= 100
    for row in rows:
        difference = cases.hybrid_differs(*cases.draw_hybrid(row["hybrid"]), row["answer"])
        assert not difference, f"seed {row['hybrid']}: {difference}"


def test_four_hundred_machines_come_out_as_in_vllm(cases: ModuleType) -> None:
    rows = [row for row in kept() if "seed" in row]
    assert len(rows) >= 400
    groups = {len(row["answer"].get("groups", ())) for row in rows}
    assert {0, 1, 2, 3, 4, 5} <= groups, "refused, alike, and of many kinds"
    for row in rows:
        case = cases.draw(row["seed"])
        several_stages = case[0].pipeline_parallel_size > 1
        difference = cases.differs(cases.answer(*case), row["answer"], several_stages=several_stages)
        assert not difference, f"seed {row['seed']}: {difference}"


@pytest.mark.parametrize("key", ["num_blocks", "tokens", "concurrency", "scheduler_block_size", "hash_block_size"])
def test_a_wrong_figure_would_be_noticed(cases: ModuleType, key: str) -> None:
    rows = [row for row in kept() if "seed" in row]
    row = next(row for row in rows if len(row["answer"].get("groups", ())) > 1)
    ours = cases.answer(*cases.draw(row["seed"]))
    assert cases.differs(ours | {key: ours[key] + 1}, row["answer"])
