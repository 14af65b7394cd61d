"""Comparison of kvsim's choice of data-parallel ranks with that of vLLM's own front end, request by request."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any

from kvsim.conformance.verdict import Verdict, difference
from kvsim.errors import WorkloadError
from kvsim.policies.data_parallel import RankBalancer, RankLoad

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_WITH_USAGE, _WITHOUT_USAGE = "0.33.0", "0.25.1"
"""A release whose coordinator sends the usage of each rank's pool to front ends, and a release without this.

The records of a front end name no release. The number of counts per rank shows which of the two they follow.
"""


def is_choice_of_ranks(document: Any) -> bool:
    """Tell whether a workload has events for a front end of data-parallel ranks."""
    return isinstance(document, dict) and {"ranks", "events"} <= document.keys()


def verify_ranks(document: Any, where: str, records: Iterable[tuple[int, Mapping[str, Any]]]) -> Verdict:
    """Choose a rank for each request, and compare the choices with vLLM's `records`, each of which has its line number.

    `document` is the workload: the number of `ranks`, and `events`, each of which adds a request, ends one (`done`), or
    brings the loads of all ranks (`stats`). `where` begins every error.

    Raises:
        WorkloadError: the number of ranks or an event of the workload is invalid.
    """
    verdict, simulated = Verdict(), None
    for line, recorded in records:
        if simulated is None:
            release = _WITH_USAGE if len(recorded["counts"][0]) > 2 else _WITHOUT_USAGE
            simulated = _choices(document, where, release)
        ours = next(simulated, {"add": "nothing: every request was sent"})
        if ours != recorded:
            return replace(verdict, difference=difference(f"request {recorded['add']}, line {line}", recorded, ours))
        verdict = replace(verdict, num_steps=verdict.num_steps + 1)
    return verdict


def _choices(document: Mapping[str, Any], where: str, release: str) -> Iterator[dict[str, Any]]:
    """Yield, for each added request, the rank that the front end chooses and the counts it has then."""
    size = document["ranks"]
    if type(size) is not int or size < 1:
        raise WorkloadError(f"{where}: ranks should be a number from 1 on, not {size!r}.")
    balancer = RankBalancer.of(
        release, size, num_clients=document.get("client_count", 1), client=document.get("client_index", 0)
    )
    width = 3 if balancer.counts_own else 2
    ranks: dict[str, int] = {}
    for number, event in enumerate(document["events"]):
        if "add" in event:
            ranks[event["add"]] = rank = balancer.choose(event.get("rank"))
            counts = [list(astuple(each)[:width]) for each in balancer.loads]
            yield {
                "add": event["add"], "rank": rank, "counts": counts, "start": balancer.start,
                "inflight": list(balancer.in_flight),
            }  # fmt: skip
        elif "done" in event:
            if (done := ranks.pop(event["done"], None)) is not None:
                balancer.answered(done)
        elif "stats" in event:
            balancer.loads = [RankLoad(*each[:width]) for each in event["stats"]]
        else:
            raise WorkloadError(f"{where}, event {number}: an event is one of add, done and stats.")
