"""Comparison of vLLM's decisions for a workload with kvsim's decisions under the rules of a release.

`kvsim conform` keeps vLLM's decisions for every workload, because explaining a difference repeats the comparison with
changed rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsim.conformance.driven import EngineFailedError
from kvsim.conformance.oracle import verify_oracle
from kvsim.conformance.oracle_files import parse_workload
from kvsim.conformance.variants import document_with, release_with
from kvsim.conformance.verdict import Verdict, difference
from kvsim.errors import KvsimError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsim.conformance.driven import DrivenVllm
    from kvsim.conformance.variants import Document, Variant

UNAWAITED = "num_output_placeholders >= 0"
"""Text of the assertion that fails in vLLM if its asynchronous scheduler gets an output that it did not await."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnsweredWorkload:
    """A workload, and the records of the decisions that vLLM made for it."""

    name: str
    document: Document
    records: list[dict[str, Any]]
    failure: str = ""
    """Error with which vLLM stopped early; empty if vLLM served the whole workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerComparison:
    """Result of the comparison for one workload."""

    verdict: Verdict
    num_equal: int
    """Number of records before the first difference; without a difference, the number of all records."""
    is_refused: bool = False
    """True if both vLLM and kvsim refuse the workload."""

    @property
    def equal(self) -> bool:
        """True if no decision differs."""
        return self.verdict.equal


def answer(engine: DrivenVllm, name: str, document: Document) -> AnsweredWorkload:
    """Serve a workload with vLLM, and return it with the records of vLLM's decisions and vLLM's failure, if any."""
    records: list[dict[str, Any]] = []
    failure = ""
    try:
        records.extend(record for _, record in engine.records(document))
    except EngineFailedError as error:
        failure = str(error)
    return AnsweredWorkload(name=name, document=document, records=records, failure=failure)


def compare(
    answered: AnsweredWorkload, release: str, variants: Sequence[Variant] = (), *, decisions_only: bool = False
) -> AnswerComparison:
    """Compare vLLM's decisions for a workload with kvsim's decisions under the rules of `release`.

    `variants` change these rules, or settings of the workload. With `decisions_only`, the settings in the first record
    are not compared.
    """
    num_read = 0

    def numbered() -> Iterator[tuple[int, dict[str, Any]]]:
        nonlocal num_read
        for num_read, record in enumerate(answered.records, 1):
            if record["kind"] == "meta":
                kept = {"kind": "meta"} if decisions_only else record
                yield num_read, kept | {"vllm": release_with(release, variants)}
            else:
                yield num_read, record

    try:
        workload = parse_workload(document_with(answered.document, variants), answered.name)
        if not answered.records:  # otherwise the first record states the release
            workload = workload.of_release(release_with(release, variants))
        verdict = verify_oracle(workload, numbered())
    except KvsimError as error:
        if answered.failure and not answered.records:
            return AnswerComparison(verdict=Verdict(), num_equal=0, is_refused=True)
        return AnswerComparison(
            verdict=_single_difference("start", "vLLM serves the workload", str(error)), num_equal=0
        )
    if verdict.equal and answered.failure and not _is_foreseen(answered, verdict):
        moment = "end" if num_read else "start"
        return AnswerComparison(
            verdict=_single_difference(moment, answered.failure, "the workload is served"), num_equal=num_read
        )
    return AnswerComparison(verdict=verdict, num_equal=num_read if verdict.equal else num_read - 1)


def _is_foreseen(answered: AnsweredWorkload, verdict: Verdict) -> bool:
    return UNAWAITED in answered.failure and verdict.num_failures > 0


def _single_difference(field: str, recorded: str, simulated: str) -> Verdict:
    return Verdict(difference=difference(f"the {field}", {field: recorded}, {field: simulated}))
