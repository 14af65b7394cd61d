"""Model an oracle with a KV connector: what its workload says of transfers, when they end, and its records."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvsim.engine.arrays import listed
from kvsim.engine.state import LOADING
from kvsim.errors import WorkloadError
from kvsim.policies.connectors import Connector, Exchange, Remote, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvsim.conformance.oracle_files import OracleRequest, OracleWorkload
    from kvsim.engine.driver import Driver

_POLICIES = ("fail", "recompute")
_REMOTES = {None: Remote.NONE, "prefill": Remote.READS, "decode": Remote.HAS_PROMPT}
_KINDS = ("store", "nixl")


def connector_of(document: Any, where: str) -> Connector | None:
    """Return the connector of a workload; None without.

    Raises:
        WorkloadError: it is none that kvsim knows.
    """
    if not document:
        return None
    if not isinstance(document, dict) or document.get("connector") not in _KINDS:
        raise WorkloadError(f"{where}: kv should be an object with a connector, one of {', '.join(_KINDS)}.")
    if document.get("extra"):
        raise WorkloadError(f"{where}: kvsim does not know extra settings of a connector; leave out kv.extra.")
    policy = document.get("policy", "fail")
    if policy not in _POLICIES:
        raise WorkloadError(f"{where}: kv.policy should be one of {', '.join(_POLICIES)}, not {policy!r}.")
    try:
        role = Role(document.get("role", "kv_both"))
    except ValueError as error:
        raise WorkloadError(f"{where}: kv.role: {error}.") from error
    return Connector(role=role, is_store=document["connector"] == "store", recomputes=policy == "recompute")


def exchanging(
    requests: tuple[OracleRequest, ...], documents: Sequence[Mapping[str, Any]], connector: Connector
) -> tuple[OracleRequest, ...]:
    """Return the requests with the exchange that a workload states for each."""
    ranks = {name: rank for rank, name in enumerate(sorted(request.name for request in requests))}
    return tuple(
        replace(
            request,
            exchange=_exchange(document, connector, ranks[request.name]),
            load_steps=int(document.get("load", 1)),
            send_steps=int(document.get("send", 1)),
        )
        for request, document in zip(requests, documents, strict=True)
    )


def _exchange(document: Mapping[str, Any], connector: Connector, rank: int) -> Exchange:
    bad = tuple(int(place) for place in document.get("bad") or ())
    if not connector.is_store:
        return Exchange(remote=_REMOTES[document.get("remote")], bad=bad, rank=rank)
    return Exchange(
        stored_tokens=int(document.get("match", 0)),
        is_async=bool(document.get("async", True)),
        num_unknown=int(document.get("unknown", 0)),
        is_kept=bool(document.get("send", 0)),
        bad=bad,
        rank=rank,
    )


def prefilled(request: OracleRequest, connector: Connector | None) -> OracleRequest:
    """Return a request as a prefill server serves it: without the tokens that are computed where it is decoded."""
    backoff = 0 if connector is None else connector.backoff_tokens
    if request.exchange.remote is not Remote.READS or not 0 < backoff < len(request.prompt):
        return request
    return replace(request, prompt=request.prompt[:-backoff], output_tokens=1)


class TransferEngine:
    """Transfers that take a number of steps, counted from the one that begins them; a lease ends a send early."""

    def __init__(self, workload: OracleWorkload, lease: int | None = None) -> None:
        self._requests, self._lease, self._step = workload.requests, lease, -1
        self._loads: dict[int, int] = {}
        """The last step of each load, by sequence."""
        self._sends: dict[int, int] = {}
        self.read: set[int] = set()
        """Sequences that another server has read."""
        self.fetched: list[int] = []
        """Sequences that were read from another server, or are not needed from it, with the last step."""
        self.ended: dict[int, tuple[list[int], list[int], list[int]]] = {}
        """What each step reports: loads, sends and bad blocks."""

    def run_step(self, driver: Driver) -> None:
        """Run the step that was scheduled last: begin its transfers, and report those that end with it."""
        connector, requests = driver.engine.connector, self._requests
        state = connector.state
        self._step += 1
        self.fetched = listed(connector.notices, 0, state.num_notices)
        for number in listed(connector.loads, 0, state.num_loads):
            self._loads[number] = self._step + requests[number - 1].load_steps - 1
        for number in listed(connector.sends, 0, state.num_sends):
            steps = requests[number - 1].send_steps if self._lease is None else self._lease
            self._sends[number] = self._step + steps - 1
        state.num_notices = state.num_loads = state.num_sends = 0
        received = self._take(self._loads, set())
        sent = self._take(self._sends, self.read)
        self.fetched += received
        call = int(driver.engine.state.num_scheduled)
        for number in received:
            driver.report_transfer(number, call, is_load=True)
        for number in sent:
            driver.report_transfer(number, call, is_load=False)
        bad = [connector.bad_blocks[index] for index in range(int(state.num_bad))]
        self.ended[self._step] = received, sent, sorted({int(each.block) for each in bad if each.reported_in == call})

    def _take(self, ends: dict[int, int], others: set[int]) -> list[int]:
        """Take the transfers that end with this step, or for another reason, in order of the names of requests."""
        done = [number for number, last in ends.items() if last <= self._step or number in others]
        for number in done:
            del ends[number]
        return sorted(done, key=lambda number: self._requests[number - 1].name)


def loads_of_step(
    driver: Driver, admitted: list[int], loading: list[int], name: Callable[[int], str]
) -> dict[str, Any]:
    """Return the tokens from outside of each sequence that got blocks in the step scheduled last."""
    transfers = driver.engine.connector.transfers
    return {"external": {name(number): int(transfers[number].external_tokens) for number in (*admitted, *loading)}}


def connector_state(driver: Driver, arrived: list[int], name: Callable[[int], str]) -> dict[str, Any]:
    """Return the requests that load, those that have ended and hold blocks, and the blocks that are not free yet."""
    connector = driver.engine.connector
    waiting = [*driver.waiting(), *driver.skipped()]
    return {
        "remote": sorted(name(number) for number in waiting if driver.sequence(number).status == LOADING),
        "held": [name(number) for number in arrived if connector.transfers[number].is_held],
        "deferred": [
            [int(connector.transfers[number].free_after), driver.table(number)]
            for number in listed(connector.deferred, 0, connector.state.num_deferred)
        ],
    }


def handed_out(
    driver: Driver, ended: list[int], outputs: Mapping[str, int], release: str, name: Callable[[int], str]
) -> dict[str, Any]:
    """Return what a prefill server says of the requests that have ended, for the server that decodes them."""
    said = {}
    for number in ended:
        sequence, transfer = driver.sequence(number), driver.engine.connector.transfers[number]
        if driver.engine.connector.settings.is_store or not transfer.is_kept or transfer.is_error:
            continue
        computed = int(sequence.computed) if transfer.is_held else 0
        size = int(driver.engine.settings.unit_tokens)
        blocks = driver.table(number)[: -(-computed // size)] if transfer.is_held else []
        said[name(number)] = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [blocks],
            "remote_request_id": name(number),
            "tp_size": 1,
            "remote_num_tokens": computed,
        }
        if release != "0.25.1":
            said[name(number)] |= {"dcp_size": 1, "pp_size": 1, "transfer_mode": "pull"}
            if outputs.get(name(number)) == 0:  # it is told once, with the first output
                said[name(number)] |= {"remote_prefill_cached_tokens": int(sequence.cached_tokens)}
    return said
