"""Workloads with the decisions that a driven vLLM made, compared with those of the rules of a release."""

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
"""Assertion of vLLM about an answer, which fails if its asynchronous scheduler does not await it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnsweredWorkload:
    """A workload, and what vLLM made of it."""

    name: str
    document: Document
    records: list[dict[str, Any]]
    failure: str = ""
    """Reason for which vLLM did not reach the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerComparison:
    """Result of one comparison."""

    verdict: Verdict
    num_equal: int
    """Records before the first difference; all, if there is none."""
    is_refused: bool = False
    """Neither side serves the workload."""

    @property
    def equal(self) -> bool:
        """Tell whether nothing differs."""
        return self.verdict.equal


def tell(engine: DrivenVllm, name: str, document: Document) -> AnsweredWorkload:
    """Serve a workload with vLLM."""
    records: list[dict[str, Any]] = []
    try:
        records.extend(record for _, record in engine.records(document))
    except EngineFailedError as error:
        return AnsweredWorkload(name=name, document=document, records=records, failure=str(error))
    return AnsweredWorkload(name=name, document=document, records=records)


def compare(
    told: AnsweredWorkload, release: str, variants: Sequence[Variant] = (), *, decisions_only: bool = False
) -> AnswerComparison:
    """Compare what vLLM decided with the rules of a release, or with variants of these.

    Args:
        told: the decisions.
        release: vLLM's, whose rules are followed.
        variants: other rules and settings that are followed instead.
        decisions_only: leave out the settings that an engine says it has.
    """
    num_read = 0

    def numbered() -> Iterator[tuple[int, dict[str, Any]]]:
        nonlocal num_read
        for num_read, record in enumerate(told.records, 1):
            if record["kind"] == "meta":
                kept = {"kind": "meta"} if decisions_only else record
                yield num_read, kept | {"vllm": release_with(release, variants)}
            else:
                yield num_read, record

    try:
        workload = parse_workload(document_with(told.document, variants), told.name)
        if not told.records:  # nothing says the release
            workload = workload.of_release(release_with(release, variants))
        verdict = verify_oracle(workload, numbered())
    except KvsimError as error:
        if told.failure and not told.records:
            return AnswerComparison(verdict=Verdict(), num_equal=0, is_refused=True)
        return AnswerComparison(verdict=_one("start", "vLLM serves the workload", str(error)), num_equal=0)
    if verdict.equal and told.failure and not _is_foreseen(told, verdict):
        moment = "end" if num_read else "start"
        return AnswerComparison(verdict=_one(moment, told.failure, "the workload is served"), num_equal=num_read)
    return AnswerComparison(verdict=verdict, num_equal=num_read if verdict.equal else num_read - 1)


def _is_foreseen(told: AnsweredWorkload, verdict: Verdict) -> bool:
    """Tell whether vLLM ended at an answer that its asynchronous scheduler does not await, as kvsim does foresee."""
    return UNAWAITED in told.failure and verdict.num_failures > 0


def _one(field: str, recorded: str, simulated: str) -> Verdict:
    return Verdict(difference=difference(f"the {field}", {field: recorded}, {field: simulated}))
