"""Small and nasty workloads and a realistic one, decided as vLLM 0.25.1 decided them: every field of every record.

The first forty came with the specification; the others were found by the fuzzer where a mutation escaped the forty.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.conformance import read_records, read_workload, verify_oracle

WORKLOADS = sorted(Path(__file__).with_name("golden").glob("*.json"))


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda file: file.stem)
def test_every_decision_is_the_one_that_vllm_made(workload: Path) -> None:
    verdict = verify_oracle(read_workload(workload), read_records(workload.with_suffix(".jsonl.gz")))
    assert verdict.equal, verdict
    assert verdict.num_steps > 0


def test_the_golden_workloads_cover_what_they_are_kept_for() -> None:
    verdicts = [verify_oracle(read_workload(file), read_records(file.with_suffix(".jsonl.gz"))) for file in WORKLOADS]
    assert len(verdicts) >= 40
    for count in ("num_preemptions", "num_hits", "num_evictions", "num_aborts"):
        assert sum(getattr(verdict, count) for verdict in verdicts) > 0, count
