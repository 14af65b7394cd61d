"""Model an oracle with a KV connector: when transfers end, and its records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.engine.arrays import listed
from kvsim.engine.state import LOADING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvsim.conformance.oracle_files import OracleWorkload
    from kvsim.engine.driver import Driver


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
        """The report of each step: loads, sends and bad blocks."""

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
            if outputs.get(name(number)) == 0:  # in the answer with the first output
                said[name(number)] |= {"remote_prefill_cached_tokens": int(sequence.cached_tokens)}
    return said
