"""Simulation of an oracle's KV connector and native offload, and the fields of its records about both.

All transfers and copies end in the same steps as in the oracle. In all functions, `name` returns the request's name for
a sequence's number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.engine.arrays import listed
from kvsim.engine.state import LOADING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvsim.conformance.oracle_files import OracleRequest, OracleWorkload
    from kvsim.engine.driver import Driver


class TransferEngine:
    """Loads and sends of KV that end after fixed numbers of steps, including the step that begins them.

    A send keeps blocks for another server. It ends when that server has read the blocks, or at the latest after `lease`
    steps. If `lease` is None, the workload states this number of steps for each request.
    """

    def __init__(self, workload: OracleWorkload, lease: int | None = None) -> None:
        self._requests, self._lease, self._step = workload.requests, lease, -1
        self._loads: dict[int, int] = {}
        self._sends: dict[int, int] = {}
        self.read: set[int] = set()
        """Sequences whose blocks another server has read."""
        self.fetched: list[int] = []
        """Sequences whose blocks the other server may free after this engine's last step.

        Either this engine has loaded the blocks, or it does not need them.
        """
        self.ended: dict[int, tuple[list[int], list[int], list[int]]] = {}
        """Sequences whose loads ended, sequences whose sends ended, and blocks that failed to load, by step."""

    def run_step(self, driver: Driver) -> None:
        """Begin the transfers of the last scheduled step, and report to the engine those that end with this step."""
        connector = driver.engine.connector
        state = connector.state
        self._step += 1
        self.fetched = listed(connector.notices, 0, state.num_notices)
        for number in listed(connector.loads, 0, state.num_loads):
            self._loads[number] = self._step + self._request(number).load_steps - 1
        for number in listed(connector.sends, 0, state.num_sends):
            steps = self._request(number).send_steps if self._lease is None else self._lease
            self._sends[number] = self._step + steps - 1
        state.num_notices = state.num_loads = state.num_sends = 0
        received = self._pop_ended(self._loads, set())
        sent = self._pop_ended(self._sends, self.read)
        self.fetched += received
        call = int(driver.engine.state.num_scheduled)
        for number in received:
            driver.report_transfer(number, call, is_load=True)
        for number in sent:
            driver.report_transfer(number, call, is_load=False)
        bad = [connector.bad_blocks[index] for index in range(int(state.num_bad))]
        self.ended[self._step] = received, sent, sorted({int(each.block) for each in bad if each.reported_in == call})

    def _pop_ended(self, last_steps: dict[int, int], ended_early: set[int]) -> list[int]:
        """Remove and return the sequences whose transfers end by this step, sorted by the names of their requests.

        `last_steps` is `_loads` or `_sends`. Transfers of the sequences in `ended_early` end at once.
        """
        done = [number for number, last in last_steps.items() if last <= self._step or number in ended_early]
        for number in done:
            del last_steps[number]
        return sorted(done, key=lambda number: self._request(number).name)

    def _request(self, number: int) -> OracleRequest:
        return self._requests[number - 1]


def loads_of_step(
    driver: Driver, admitted: list[int], loading: list[int], name: Callable[[int], str]
) -> dict[str, Any]:
    """Return the record field with the number of tokens that each sequence gets through the connector.

    `admitted` and `loading` are the sequences that the last scheduled step admitted, and those whose load it began.
    """
    transfers = driver.engine.connector.transfers
    return {"external": {name(number): int(transfers[number].external_tokens) for number in (*admitted, *loading)}}


def connector_state(driver: Driver, arrived: list[int], name: Callable[[int], str]) -> dict[str, Any]:
    """Return the record fields with loading requests, ended requests that keep blocks, and blocks to be freed later.

    `arrived` has the numbers of all sequences that have arrived.
    """
    connector = driver.engine.connector
    waiting = [*driver.waiting(), *driver.skipped()]
    return {
        "remote": sorted(name(number) for number in waiting if driver.sequence(number).status == LOADING),
        "held": [name(number) for number in arrived if connector.transfers[number].is_held],
        "deferred": [
            [int(driver.engine.external.sequences[number].free_after), driver.table(number)]
            for number in driver.deferred()
        ],
    }


def handed_out(
    driver: Driver,
    ended: list[int],
    outputs: Mapping[str, int],
    workload: OracleWorkload,
    name: Callable[[int], str],
) -> dict[str, Any]:
    """Return the transfer parameters that a prefill server passes on, by the names of the sequences in `ended`.

    Sequences without blocks for another server are left out. `outputs` has each request's number of outputs before the
    output with which it ended.
    """
    parameters = {}
    for number in ended:
        sequence, transfer = driver.sequence(number), driver.engine.connector.transfers[number]
        if driver.engine.connector.settings.is_store or not transfer.is_kept or transfer.is_error:
            continue
        computed = int(sequence.computed) if transfer.is_held else 0
        size = int(driver.engine.settings.unit_tokens)
        blocks = driver.table(number)[: -(-computed // size)] if transfer.is_held else []
        parameters[name(number)] = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [blocks],
            "remote_request_id": name(number),
            "tp_size": 1,
            "remote_num_tokens": computed,
        }
        if workload.scheduler.vllm != "0.25.1":
            num_stages = workload.pipeline.pipeline_parallel_size
            parameters[name(number)] |= {"dcp_size": 1, "pp_size": num_stages, "transfer_mode": "pull"}
            if outputs.get(name(number)) == 0:  # vLLM states this only together with the first output
                parameters[name(number)] |= {"remote_prefill_cached_tokens": int(sequence.cached_tokens)}
    return parameters


class CopyEngine:
    """Copies between GPU and host that take a fixed number of steps.

    A load begins in the step that decides on it, a store in the step after. If a step waits for a copy, the copy ends
    with that step.
    """

    def __init__(self, workload: OracleWorkload) -> None:
        self._load_steps, self._store_steps = workload.load_steps, workload.store_steps
        self._last_step: dict[int, int] = {}
        """Step whose output reports the end of each copy. Copies are in the order of their begin."""
        self._stores: list[int] = []

    def run_step(self, driver: Driver) -> None:
        """Begin the copies of the last scheduled step, and report to the engine those that end with its output."""
        step, jobs = int(driver.engine.state.num_scheduled), driver.jobs()
        begun = {record: job for record, job in jobs.items() if job.decided_in == step}
        self._last_step |= dict.fromkeys(self._stores, step + self._store_steps - 1)
        # A copy that the step waits for ends with it, also a store that begins now.
        self._last_step |= {record: step for record in self._last_step if jobs[record].awaited_in == step}
        self._last_step |= {record: step + self._load_steps - 1 for record, job in begun.items() if job.is_load}
        self._stores = [record for record, job in begun.items() if not job.is_load]
        done = [record for record, last in self._last_step.items() if last <= step]
        for record in done:
            del self._last_step[record]
            driver.report(record, step)


def jobs_begun(driver: Driver, name: Callable[[int], str]) -> dict[str, Any]:
    """Return the record fields with the copies that the last scheduled step begins, and those for which it waits."""
    step, jobs = driver.engine.state.num_scheduled, driver.jobs().values()
    begun: dict[str, dict[str, Any]] = {"load_jobs": {}, "store_jobs": {}}
    for job in jobs:
        if job.decided_in == step:
            slots, blocks = driver.host_slots(job), driver.blocks_of_job(job)
            copied = [slots, blocks] if job.is_load else [blocks, slots]
            begun["load_jobs" if job.is_load else "store_jobs"][str(job.number)] = [name(job.sequence), *copied]
    return begun | {"flush": [int(job.number) for job in jobs if job.awaited_in == step]}


def offload_state(driver: Driver, name: Callable[[int], str]) -> dict[str, Any]:
    """Return the record fields with skipped requests, the number of used host blocks, and blocks to be freed later.

    The scheduler skips requests that are loading, or that must be looked up again.
    """
    host, sequences = driver.engine.host, driver.engine.external.sequences
    return {
        "skipped": [name(number) for number in driver.skipped()],
        "host_used": int(host.settings.num_slots - host.state.num_free),
        "deferred": [[int(sequences[number].free_after), driver.table(number)] for number in driver.deferred()],
    }
