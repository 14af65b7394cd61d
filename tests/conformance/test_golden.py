"""Small and nasty workloads and a realistic one, decided as vLLM decided them: every field of every record.

The first forty came with the specification; the others were found by the fuzzer where a mutation escaped the forty.
Those with several KV-cache groups have windows, chunks, MLA and recurrent state in all modes, short of memory and not.
Those with an offload have host memory for a few blocks or for all, and copies that take one step or several.
Those in `golden_versions` were decided by the release after which their folder is named, all others by vLLM 0.25.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from kvsim.conformance import parse_workload, read_records, read_workload, verify_oracle
from kvsim.conformance.oracle import OracleRun
from kvsim.conformance.oracle_files import OracleWorkload
from kvsim.errors import RecordingError, UsageError
from kvsim.kv_groups import CacheKind, MambaMode
from kvsim.policies.settings import Eviction

from .modes import FASTEST, both_engines

WORKLOADS = sorted(Path(__file__).with_name("golden").glob("*.json"))
OF_RELEASES = sorted(Path(__file__).with_name("golden_versions").glob("*/*.json"))
GROUPED = sorted(Path(__file__).with_name("golden_groups").glob("*.json"))
OFFLOADED = sorted(Path(__file__).with_name("golden_offload").glob("*.json"))


@pytest.mark.parametrize(("workload", "compiled"), both_engines([*WORKLOADS, *GROUPED, *OFFLOADED, *OF_RELEASES]))
def test_every_decision_is_the_one_that_vllm_made(workload: Path, compiled: bool) -> None:
    document, records = _golden(workload)
    verdict = verify_oracle(document, records, compiled=compiled)
    assert verdict.equal, verdict
    assert verdict.num_steps > 0


@lru_cache(maxsize=1)
def _golden(workload: Path) -> tuple[OracleWorkload, list[tuple[int, Mapping[str, Any]]]]:
    """Return a workload and its records, which are read once for both ways to run."""
    return read_workload(workload), list(read_records(workload.with_suffix(".jsonl.gz")))


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


def test_a_prompt_that_vllm_would_load_for_ever_is_refused() -> None:
    """A loaded prompt of one token has nothing computed, and so it is looked up, and loaded, again."""
    requests = [{"id": f"r{row}", "prompt_len": 1 + row, "output_len": 2} for row in range(2)]
    document = {"num_blocks": 8, "block_size": 1, "requests": requests}
    run = OracleRun(parse_workload(document | {"offload": {"host_blocks": 4, "factor": 2}}, "w").of_release("0.25.1"))
    assert run.num_failures == 0
    with pytest.raises(UsageError, match="again and again where a host block has one token"):
        OracleRun(parse_workload(document | {"offload": {"host_blocks": 4}}, "w").of_release("0.25.1"))


def test_the_golden_workloads_with_groups_cover_every_kind() -> None:
    layouts = [read_workload(file).layout for file in GROUPED]
    groups = [group for layout in layouts if layout is not None for group in layout.groups]
    assert {group.kind for group in groups} == set(CacheKind)
    assert {group.mamba_mode for group in groups} == {None, *MambaMode}
    assert max(len(layout.groups) for layout in layouts if layout is not None) > 5


@pytest.mark.parametrize("workload", OF_RELEASES[::10], ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_an_answer_is_compared_by_the_rules_of_its_own_release(workload: Path) -> None:
    records = [(line, dict(record)) for line, record in read_records(workload.with_suffix(".jsonl.gz"))]
    assert records[0][1]["vllm"] == workload.parent.name
    records[0][1]["vllm"] = "0.11.2"
    with pytest.raises(RecordingError, match=r"0\.12\.0 to 0\.33\.0"):
        verify_oracle(read_workload(workload), records)


def test_releases_differ_where_their_rules_do() -> None:
    differ = 0
    for file in OF_RELEASES:
        records = [(line, dict(record)) for line, record in read_records(file.with_suffix(".jsonl.gz"))]
        records[0][1]["vllm"] = "0.25.1"
        differ += not verify_oracle(read_workload(file), records).equal
    assert differ > len(OF_RELEASES) // 3
