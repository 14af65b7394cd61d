"""Comparison of kvsim with the answer of an oracle, which is a real scheduler with a fake model.

An oracle is one engine of vLLM or SGLang, a prefill engine with a decode engine, or several data-parallel ranks.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from kvsim.conformance.oracle import verify_oracle
from kvsim.conformance.oracle_files import (
    parse_workload,
    read_document,
    read_pair_records,
    read_rank_records,
    read_records,
)
from kvsim.conformance.oracle_pd import is_pair, verify_pair
from kvsim.conformance.oracle_ranks import is_choice_of_ranks, verify_ranks
from kvsim.conformance.oracle_sglang import verify_sglang
from kvsim.conformance.sglang_files import parse_sglang_workload

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.conformance.verdict import Verdict


def verify_answer(workload_file: Path, answer_file: Path, *, compiled: bool = False) -> Verdict:
    """Run a workload in lockstep with the decisions of a real scheduler, and compare each decision.

    The first record of the answer names the scheduler.

    Raises:
        RecordingError: the answer is missing, damaged, or of an unknown release.
        WorkloadError: the workload is missing, damaged, or needs a feature that kvsim does not simulate.
    """
    document, where = read_document(workload_file), str(workload_file)
    if is_choice_of_ranks(document):
        return verify_ranks(document, where, read_rank_records(answer_file))
    if is_pair(document):
        return verify_pair(document, where, read_pair_records(answer_file), compiled=compiled)
    records = read_records(answer_file)
    first = next(records)
    if first[1]["kind"] == "engine":
        return verify_sglang(parse_sglang_workload(document, where), chain((first,), records), compiled=compiled)
    return verify_oracle(parse_workload(document, where), chain((first,), records), compiled=compiled)
