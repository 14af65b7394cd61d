"""Small and nasty workloads and a realistic one, decided as vLLM 0.25.1 decided them: every field of every record.

The first forty came with the specification; the others were found by the fuzzer where a mutation escaped the forty.
Those with several KV-cache groups have windows, chunks, MLA and recurrent state in all modes, short of memory and not.
Those with an offload have host memory for a few blocks or for all, and copies that take one step or several.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.conformance import read_records, read_workload, verify_oracle
from kvsim.kv_groups import CacheKind, MambaMode
from kvsim.policies.settings import Eviction

from .modes import FASTEST, in_every_way

WORKLOADS = sorted(Path(__file__).with_name("golden").glob("*.json"))
GROUPED = sorted(Path(__file__).with_name("golden_groups").glob("*.json"))
OFFLOADED = sorted(Path(__file__).with_name("golden_offload").glob("*.json"))


@in_every_way
@pytest.mark.parametrize("workload", [*WORKLOADS, *GROUPED, *OFFLOADED], ids=lambda file: file.stem)
def test_every_decision_is_the_one_that_vllm_made(workload: Path, compiled: bool) -> None:
    records = read_records(workload.with_suffix(".jsonl.gz"))
    verdict = verify_oracle(read_workload(workload), records, compiled=compiled)
    assert verdict.equal, verdict
    assert verdict.num_steps > 0


def test_the_golden_workloads_cover_what_they_are_kept_for() -> None:
    assert len(WORKLOADS) >= 40
    uncovered = {"num_preemptions", "num_hits", "num_evictions", "num_aborts"}
    for file in WORKLOADS:
        verdict = verify_oracle(read_workload(file), read_records(file.with_suffix(".jsonl.gz")), compiled=FASTEST)
        uncovered = {count for count in uncovered if not getattr(verdict, count)}
        if not uncovered:
            break
    assert not uncovered


def test_the_golden_workloads_with_an_offload_cover_what_they_are_kept_for() -> None:
    records = [
        record
        for file in OFFLOADED
        for _, record in read_records(file.with_suffix(".jsonl.gz"))
        if record["kind"] in ("schedule", "update")
    ]
    for field in ("load_jobs", "store_jobs", "flush", "deferred", "skipped", "preempted"):
        assert any(record.get(field) for record in records), field
    caches = [read_workload(file).cache for file in OFFLOADED]
    assert {cache.kv_offloading_eviction for cache in caches} == set(Eviction)
    assert {cache.kv_offloading_prompt_only for cache in caches} == {False, True}
    assert {cache.kv_offloading_block_size // cache.block_size for cache in caches} == {1, 2, 3}


def test_the_golden_workloads_with_groups_cover_every_kind() -> None:
    layouts = [read_workload(file).layout for file in GROUPED]
    groups = [group for layout in layouts if layout is not None for group in layout.groups]
    assert {group.kind for group in groups} == set(CacheKind)
    assert {group.mamba_mode for group in groups} == {None, *MambaMode}
    assert max(len(layout.groups) for layout in layouts if layout is not None) > 5
