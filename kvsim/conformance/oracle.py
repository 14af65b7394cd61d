"""The paged policy against an oracle: vLLM's own scheduler, driven with a fake model, that writes down all it decides.

The same workload is run here, moment by moment, and described in the oracle's words. Every field that is a decision is
compared, the order of the free queue included; timings are not.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.conformance.changes import Changes
from kvsim.conformance.oracle_files import OFFLOAD_BLOCK_BYTES
from kvsim.conformance.oracle_offload import CopyEngine, jobs_begun, offload_state
from kvsim.conformance.verdict import Verdict, difference
from kvsim.engine.arrays import column
from kvsim.engine.clock import SCHEDULED
from kvsim.engine.coefficients import no_times
from kvsim.engine.driver import Driver
from kvsim.engine.initialization import EnginePlan
from kvsim.engine.known_requests import Demand
from kvsim.engine.prefix_keys import PrefixKeys
from kvsim.engine.state import LOADING, NO_KEY, PREEMPTED, RUNNING, WAITING
from kvsim.policies import Paged
from kvsim.workload import Ragged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kvsim.conformance.oracle_files import OracleRequest, OracleWorkload

_STOP_TOKEN = 7
_FIRST_OUTPUT = 500_000_000
_TOKENS_PER_REQUEST = 1_000_000
_LIVE = (WAITING, RUNNING, PREEMPTED, LOADING)


def verify_oracle(
    workload: OracleWorkload, records: Iterable[tuple[int, Mapping[str, Any]]], *, compiled: bool = False
) -> Verdict:
    """Run `workload` in lockstep with what an oracle said of it.

    Args:
        workload: what the oracle was given.
        records: what it said, each record with the number of its line.
        compiled: run the engine as machine code; the verdict is the same.

    Returns:
        a verdict that covers the calls of the scheduler before the first difference.
    """
    run = OracleRun(workload, compiled=compiled)
    simulated = run.records()
    verdict = run.equal_so_far()
    for line, recorded in records:
        ours = next(simulated, {"kind": "nothing: every request has ended"})
        # A record of another kind has nothing else to compare; a file may leave the order of the free queue out; and
        # whatever else it says that we do not is a timing.
        if recorded.get("deadlock"):  # the oracle gave up on requests that wait for ever
            return verdict
        fields = ours.keys() & recorded.keys() if ours["kind"] == recorded["kind"] else {"kind"}
        if any(ours[name] != recorded[name] for name in fields):
            moment = f"{recorded['kind']} {recorded.get('i', '')}".rstrip()
            told = {name: recorded[name] for name in recorded if name in fields}
            return replace(verdict, difference=difference(f"{moment}, line {line}", told, ours))
        verdict = run.equal_so_far()
    return verdict


class OracleRun:
    """One engine that serves an oracle's workload and tells what the oracle would tell."""

    def __init__(self, workload: OracleWorkload, *, compiled: bool = False) -> None:
        self._workload = workload
        requests = workload.requests
        plan = EnginePlan(
            _demand(workload),
            Paged(scheduler=workload.scheduler, cache=workload.cache),
            workload.num_blocks - 1,
            no_times(),
            refused=np.zeros(len(requests), np.bool_),
            unit_bytes=OFFLOAD_BLOCK_BYTES,
            layout=workload.layout,
            pipeline=workload.pipeline,
            retention_tokens=workload.retention_tokens,
            records_memory=True,
            copies_are_timed=False,
        )
        self._driver = Driver(plan.build(compiled=compiled), compiled=compiled)
        self._state = self._driver.engine.state
        self._changes = Changes(self._driver)
        self._due = deque(sorted(enumerate(requests), key=lambda numbered: numbered[1].arrival_step))
        self._aborts = deque(
            sorted(
                (request.abort_step, request.name, row)
                for row, request in enumerate(requests)
                if request.abort_step is not None
            )
        )
        self._arrived: list[int] = []
        """Rows of the requests that have arrived, in order."""
        self._lengths: dict[int, dict[int, int]] = {}
        """Entries in the tables of running sequences when the step under way was not scheduled yet, by group."""
        self._copies = CopyEngine(workload) if workload.cache.kv_offloading_size else None
        self._unsent: list[str] = []
        """Requests that have left since the last call of the scheduler."""
        self._num_steps = self._num_preemptions = self._num_aborts = 0

    def equal_so_far(self) -> Verdict:
        """The verdict on everything up to now, if it is equal."""
        return Verdict(
            num_steps=self._num_steps,
            num_allocations=self._changes.num_allocations,
            num_preemptions=self._num_preemptions,
            num_hits=self._changes.num_hits,
            num_evictions=self._changes.num_evictions,
            num_aborts=self._num_aborts,
        )

    def records(self) -> Iterator[dict[str, Any]]:
        """Everything that the oracle would say, in order. It never ends if a request can never be scheduled."""
        yield self._meta()
        call, driver, state = 0, self._driver, self._state
        in_flight: deque[tuple[int, list[int], list[int]]] = deque()
        """Steps whose output was not processed: number, sequences in the batch, sequences that get an output."""
        while True:
            if not state.awaiting:  # an engine call begins
                if not in_flight and not driver.has_work():
                    if not self._due:
                        break
                    call = max(call, self._due[0][1].arrival_step)
                self._arrive(call)
                self._abort(call)
                call += 1
            before = self._outputs_due(*in_flight[0][1:]) if in_flight else {}
            groups = range(driver.engine.settings.num_groups)
            self._lengths = {
                node: {group: len(driver.blocks(node, group)) for group in groups} for node in driver.running()
            }
            num_ended = state.num_ended
            moment = driver.next_moment()
            self._changes.take()
            if moment == SCHEDULED:
                in_flight.append((self._num_steps, list(driver.batch()), driver.emitting()))
                record = self._schedule_record(driver.batch())
                if self._copies is not None:
                    record |= jobs_begun(driver, self._name)
                    self._copies.run_step(driver)
                yield record
            elif in_flight:
                number = in_flight.popleft()[0]
                ended = [int(driver.engine.lines[index].ended) for index in range(num_ended, state.num_ended)]
                self._unsent += [self._name(node) for node in ended]
                finished = [[self._name(node), self._reason(node)] for node in ended]
                yield {"kind": "update", "i": number, "finished": finished} | before | self._state_record()
        yield {"kind": "end", "engine_calls": call}

    def _meta(self) -> dict[str, Any]:
        settings, cache, num_blocks = self._workload.scheduler, self._workload.cache, self._workload.num_blocks
        return {
            "kind": "meta",
            "num_blocks": num_blocks,
            "block_size": cache.block_size,
            "max_num_running_reqs": settings.max_num_seqs,
            "max_num_scheduled_tokens": settings.max_num_batched_tokens,
            "max_model_len": settings.max_model_len,
            "watermark_blocks": int(cache.watermark * num_blocks),
            "reserve_full_isl": settings.reserve_full_prompt,
            "free0": int(self._state.num_free),
        } | self._groups_meta()

    def _groups_meta(self) -> dict[str, Any]:
        layout, settings = self._workload.layout, self._driver.engine.settings
        if layout is None:
            return {}
        return {
            "scheduler_block_size": layout.scheduler_block_size,
            "hash_block_size": layout.hash_block_size,
            "mamba_align_split": bool(settings.boundary_tokens),
        }

    def _arrive(self, call: int) -> None:
        while self._due and self._due[0][1].arrival_step <= call:
            row, _ = self._due.popleft()
            self._arrived.append(row)
            self._driver.add(row + 1)

    def _abort(self, call: int) -> None:
        while self._aborts and self._aborts[0][0] <= call:
            _, _, row = self._aborts.popleft()
            if row in self._arrived and self._is_live(row + 1):
                self._driver.abort(row + 1)
                self._changes.take()
                self._unsent.append(self._name(row + 1))
                self._num_aborts += 1

    def _schedule_record(self, batch: dict[int, int]) -> dict[str, Any]:
        driver = self._driver
        preempted = driver.preempted()
        self._num_steps += 1
        self._num_preemptions += len(preempted)
        self._changes.drain()
        admitted = list(batch)[len(batch) - self._state.num_new_seqs :]
        new = [node for node in admitted if not driver.sequence(node).preemptions]
        handed_over = admitted if self._workload.pipeline.v2_model_runner else new
        tables = {self._name(node): self._told(self._entries_since(node)) for node in batch}
        tables |= {self._name(node): self._tables(node) for node in admitted}
        sent, self._unsent = sorted(self._unsent), []
        return {
            "kind": "schedule",
            "i": self._num_steps - 1,
            "scheduled": [[self._name(node), tokens] for node, tokens in batch.items()],
            "total": sum(batch.values()),
            "new": [self._name(node) for node in new],
            "new_computed": {
                self._name(node): int(driver.sequence(node).computed) - batch[node] for node in handed_over
            },
            "resumed": sorted(self._name(node) for node in admitted if driver.sequence(node).preemptions),
            "new_block_ids": tables,
            "preempted": [self._name(node) for node in preempted],
            "finished_ids_sent": sent,
        } | self._state_record()

    def _outputs_due(self, batch: list[int], emitting: list[int]) -> dict[str, Any]:
        """What an update will say of the requests in a batch that have not left meanwhile."""
        return {
            "tokens": {self._name(node): 1 for node in emitting if self._is_live(node)},
            "prev_outputs": {self._name(node): self._num_outputs(node) for node in batch if self._is_live(node)},
        }

    def _state_record(self) -> dict[str, Any]:
        driver, num_free = self._driver, int(self._state.num_free)
        live = {self._name(row + 1): row + 1 for row in self._arrived if self._is_live(row + 1)}
        if self._copies is not None:
            live |= {self._name(row + 1): row + 1 for row in self._arrived if self._still_loads(row + 1)}
        keys = column(driver.engine.blocks, "key")
        tables = {name: self._tables(node) for name, node in live.items() if driver.sequence(node).num_units}
        placeholders = {name: int(driver.sequence(node).placeholders) for name, node in live.items()}
        return {
            "running": [self._name(node) for node in driver.running()],
            "waiting": [self._name(node) for node in driver.waiting()],
            "skipped": [],
            "free": num_free,
            "usage": 1.0 - num_free / (self._workload.num_blocks - 1),
            "cached_keys": len(np.unique(keys[keys != NO_KEY])),
            "blocks": tables,
            "keyed": np.flatnonzero(keys != NO_KEY).tolist(),
            "computed": {name: int(driver.sequence(node).computed) for name, node in live.items()},
            "placeholders": {name: number for name, number in placeholders.items() if number},
            "free_queue": driver.free_queue(),
        } | (offload_state(driver, self._name) if self._copies is not None else {})

    def _tables(self, node: int) -> list[Any]:
        """The block ids of a sequence, as the oracle tells them."""
        groups = range(self._driver.engine.settings.num_groups)
        return self._told([self._driver.blocks(node, group) for group in groups])

    def _entries_since(self, node: int) -> list[list[int]]:
        """What was appended to the tables of a sequence by the step scheduled last, null blocks included."""
        lengths = self._lengths.get(node, {})
        groups = range(self._driver.engine.settings.num_groups)
        return [self._driver.blocks(node, group)[lengths.get(group, 0) :] for group in groups]

    def _told(self, tables: list[list[int]]) -> list[Any]:
        """An oracle with one group of full attention tells one table, one with several a list of them."""
        return tables[0] if self._workload.layout is None else tables

    def _still_loads(self, node: int) -> bool:
        """Whether an aborted request is kept until its load has ended."""
        return not self._is_live(node) and self._driver.sequence(node).num_units > 0

    def _is_live(self, node: int) -> bool:
        return self._driver.sequence(node).status in _LIVE

    def _num_outputs(self, node: int) -> int:
        sequence = self._driver.sequence(node)
        return int(sequence.num_tokens) - int(sequence.prompt_tokens)

    def _name(self, node: int) -> str:
        return self._workload.requests[node - 1].name

    def _reason(self, node: int) -> str:
        stop_at = self._workload.requests[node - 1].stop_at
        return "stop" if stop_at is not None and self._num_outputs(node) >= stop_at else "length"


def _demand(workload: OracleWorkload) -> Demand:
    """What the oracle was asked for; it dates requests by their place in the workload."""
    requests, longest = workload.requests, workload.scheduler.max_model_len
    prompt = np.array([len(request.prompt) for request in requests], np.int64)
    limit = np.array([request.output_tokens for request in requests], np.int64)
    stop = np.array([request.output_tokens if request.stop_at is None else request.stop_at for request in requests])
    return Demand(
        prompt=prompt,
        output=np.minimum(np.minimum(stop, limit), np.maximum(longest - prompt, 1)).astype(np.int64),
        limit=limit,
        priority=np.array([request.priority for request in requests], np.int64),
        arrival_s=np.arange(len(requests), dtype=np.float64),
        keys=Ragged.from_rows(_keys(workload), np.int64),
    )


def _keys(workload: OracleWorkload) -> list[list[int]]:
    """The keys of all full blocks of every request, up to the last that another has, too: as in a simulation, what is
    behind it is known to the request alone.
    """
    keys = PrefixKeys(workload.cache.block_size)
    rows = [keys.from_tokens(_tokens(row, request)) for row, request in enumerate(workload.requests)]
    num_requests = Counter(key for row in rows for key in row)
    for row in rows:
        while row and num_requests[row[-1]] == 1:
            row.pop()
    return rows


def _tokens(row: int, request: OracleRequest) -> list[int]:
    """All tokens that a request can ever have: its prompt, and the outputs that the fake model will give it."""
    first = _FIRST_OUTPUT + _TOKENS_PER_REQUEST * (row + 1)
    outputs = list(range(first, first + request.output_tokens))
    if request.stop_at is not None:
        outputs[request.stop_at - 1 :] = [_STOP_TOKEN]
    return [*request.prompt, *outputs]
