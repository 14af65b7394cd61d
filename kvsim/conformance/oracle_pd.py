"""Comparison of a prefill and a decode server with two engines of vLLM that exchange KV through a connector.

One call is a step of the prefill engine, followed by a step of the decode engine. A request goes to the prefill engine
first. It reaches the decode engine `router` + 1 calls after it has ended there; the workload states `router`. Blocks
that the decode engine has read are freed in the next step of the prefill engine.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from kvsim.conformance.oracle import OracleRun, difference_of
from kvsim.conformance.oracle_files import parse_workload
from kvsim.conformance.verdict import COUNTS, Verdict
from kvsim.errors import RecordingError, WorkloadError
from kvsim.policies.releases import UNSTATED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kvsim.conformance.oracle_files import OracleWorkload

_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


def is_pair(document: Any) -> bool:
    """Tell whether a workload is for a prefill and a decode engine."""
    return isinstance(document, dict) and {"prefill", "decode"} <= document.keys()


def verify_pair(
    document: Any, where: str, records: Iterable[tuple[int, Mapping[str, Any]]], *, compiled: bool = False
) -> Verdict:
    """Run a workload for two engines in lockstep with the oracle's records, and compare the records.

    `where` begins every error. Each of `records` has its line number.
    """
    records = iter(records)
    first = next(records, None)
    if first is None:
        raise RecordingError(f"{where}: the oracle's answer is empty.")
    run = PairRun(document, where, str(first[1].get("vllm", UNSTATED)), compiled=compiled)
    simulated, verdict = run.records(), run.equal_so_far()
    for line, recorded in chain((first,), records):
        ours = next(simulated, {"kind": "nothing: every request has ended"})
        if (found := difference_of(line, recorded, ours)) is not None:
            return replace(verdict, difference=found)
        verdict = run.equal_so_far()
    return verdict


class PairRun:
    """Prefill and decode engine that serve a workload, and write the records that an oracle would write."""

    def __init__(self, document: Any, where: str, release: str, *, compiled: bool = False) -> None:
        sides = {side: _side(document, side, where).of_release(release) for side in _ROLES}
        self._requests = document["requests"]
        self._router = int(document.get("router", 0))
        lease = int(document.get("lease", 1000))
        self._prefill = OracleRun(sides["prefill"], lease=lease, compiled=compiled)
        self._decode = OracleRun(sides["decode"], compiled=compiled)

    def equal_so_far(self) -> Verdict:
        """Return a verdict without a difference, with the counts of both engines up to now."""
        prefill, decode = self._prefill.equal_so_far(), self._decode.equal_so_far()
        return Verdict(**{name: getattr(prefill, name) + getattr(decode, name) for name in COUNTS})

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the records that the oracle would write, in order."""
        for engine, run in (("P", self._prefill), ("D", self._decode)):
            yield {"engine": engine, "call": 0} | run.meta()
        rows = range(len(self._requests))
        due = sorted(rows, key=lambda row: self._requests[row].get("arrival_step", 0))
        aborts = sorted(
            (request["abort_step"], request["id"], row)
            for row, request in enumerate(self._requests)
            if request.get("abort_step") is not None
        )
        routed: list[tuple[int, int]] = []  # call at which a request reaches the decode engine, and its row
        aborted: set[int] = set()
        call = 0
        while due or routed or self._prefill.has_work() or self._decode.has_work():
            while due and self._requests[due[0]].get("arrival_step", 0) <= call:
                self._prefill.add(due.pop(0))
            while aborts and aborts[0][0] <= call:
                row = aborts.pop(0)[2]
                aborted.add(row)
                self._decode.abort(row)
            if self._prefill.has_work():
                for record in self._prefill.step():
                    yield {"engine": "P", "call": call} | record
                    names = record.get("params", ())
                    routed += [(call + 1 + self._router, self._row(name)) for name in names]
            for at, row in [each for each in routed if each[0] <= call]:
                routed.remove((at, row))
                if row not in aborted:
                    self._decode.add(row)
            if self._decode.has_work():
                for record in self._decode.step():
                    yield {"engine": "D", "call": call} | record
                    # The prefill engine may free the blocks that the decode engine has read or does not need.
                    assert self._prefill.transfers is not None
                    assert self._decode.transfers is not None
                    self._prefill.transfers.read.update(self._decode.transfers.fetched)
                    self._decode.transfers.fetched = []
            call += 1
        yield {"kind": "end", "calls": call}

    def _row(self, name: str) -> int:
        return next(row for row, request in enumerate(self._requests) if f"p-{request['id']}" == name)


def _side(document: Any, side: str, where: str) -> OracleWorkload:
    settings, requests = document[side], document.get("requests")
    if not isinstance(settings, dict) or not isinstance(requests, list):
        raise WorkloadError(f"{where}: a pair of engines is an object with prefill, decode and a list of requests.")
    policy = settings.get("load_failure", "fail")
    changes: dict[str, Any] = {"remote": side}
    if side == "prefill":
        changes["output_len"] = 1
    own = []
    for row, request in enumerate(requests):
        if not isinstance(request, dict) or not isinstance(request.get("id"), str):
            raise WorkloadError(f"{where}, request {row}: a request has an id, prompt_len and output_len.")
        name = f"p-{request['id']}" if side == "prefill" else request["id"]
        own.append({"load": document.get("load", 1)} | request | changes | {"id": name})
    connector = {"connector": "nixl", "role": _ROLES[side], "policy": policy}
    return parse_workload(settings | {"kv": connector, "requests": own}, f"{where}, {side}")
