"""Comparison of the paged policy with an oracle: vLLM's own scheduler with a fake model, which records its decisions.

kvsim serves the same workload and writes its decisions in the oracle's format. The records are compared one by one: all
fields but timings, including the order of the free queue.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.conformance.oracle_files import OFFLOAD_BLOCK_BYTES
from kvsim.conformance.oracle_images import EncoderRecords
from kvsim.conformance.oracle_transfers import (
    CopyEngine,
    TransferEngine,
    connector_state,
    handed_out,
    jobs_begun,
    loads_of_step,
    offload_state,
)
from kvsim.conformance.second_keys import SecondKeys
from kvsim.conformance.verdict import Difference, Verdict, difference
from kvsim.engine import in_flight
from kvsim.engine.arrays import column, listed
from kvsim.engine.clock import SCHEDULED
from kvsim.engine.coefficients import no_times
from kvsim.engine.driver import Driver
from kvsim.engine.initialization import EnginePlan
from kvsim.engine.known_requests import Demand
from kvsim.engine.ownership import MemoryKind
from kvsim.engine.paged.prefix_keys import PrefixKeys
from kvsim.engine.state import LOADING, NO_KEY, PREEMPTED, RUNNING, WAITING, table_of
from kvsim.policies import Paged
from kvsim.policies.releases import UNSTATED
from kvsim.workload import Ragged

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from kvsim.conformance.oracle_files import OracleRequest, OracleWorkload
    from kvsim.policies.drafts import Drafts

# Token ids of the oracle's fake model, see `vllm_driver.py`: the outputs of each request have their own range of ids.
_STOP_TOKEN = 7
_FIRST_OUTPUT = 500_000_000
_TOKENS_PER_REQUEST = 1_000_000
_LIVE = (WAITING, RUNNING, PREEMPTED, LOADING)


def verify_oracle(
    workload: OracleWorkload, records: Iterable[tuple[int, Mapping[str, Any]]], *, compiled: bool = False
) -> Verdict:
    """Run `workload` in lockstep with the oracle's records. Return a verdict on the calls before the first difference.

    Args:
        workload: the workload that the oracle served.
        records: the oracle's records, each with its line number.
        compiled: True to run the engine as machine code; the verdict is the same.

    Raises:
        RecordingError: the first record names a release of vLLM that kvsim does not know.
    """
    records = iter(records)
    first = next(records, None)
    if first is not None:
        workload, records = workload.of_release(str(first[1].get("vllm", UNSTATED))), chain((first,), records)
    run = OracleRun(workload, compiled=compiled)
    simulated = run.records()
    verdict = run.equal_so_far()
    recorded: Mapping[str, Any] = {}
    for line, recorded in records:
        ours = next(simulated, {"kind": "nothing: every request has ended"})
        if recorded.get("deadlock"):  # the oracle gave up on requests that can never be scheduled
            return verdict
        if (found := difference_of(line, recorded, ours)) is not None:
            return replace(verdict, difference=found)
        verdict = run.equal_so_far()
    if recorded.get("kind") != "end":  # vLLM stopped early; our next step may contain the failure that stopped it
        next(simulated, None)
        return replace(verdict, num_failures=run.num_failures)
    return verdict


def difference_of(line: int, recorded: Mapping[str, Any], ours: Mapping[str, Any]) -> Difference | None:
    """Return the difference between a recorded record, in line `line`, and kvsim's; None if they are equal."""
    # Records of different kinds are compared only by kind. Fields that one side lacks are not compared: the order of
    # the free queue is optional in a file, and only the oracle has timings.
    recorded, ours = _with_sorted_failures(recorded), _with_sorted_failures(ours)
    fields = ours.keys() & recorded.keys() if ours["kind"] == recorded["kind"] else {"kind"}
    if all(ours[name] == recorded[name] for name in fields):
        return None
    moment = f"{recorded['kind']} {recorded.get('i', '')}".rstrip()
    theirs = {name: recorded[name] for name in recorded if name in fields}
    return difference(f"{moment}, line {line}", theirs, ours)


def _with_sorted_failures(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a record whose failed requests are sorted by name, after the other requests that finished in its step.

    vLLM answers the failed requests of a step in the order of a set, which changes from run to run.
    """
    finished = record.get("finished")
    if not isinstance(finished, list):
        return record
    failed = [each for each in finished if isinstance(each, list) and each[1:] == ["error"]]
    return {**record, "finished": [each for each in finished if each not in failed] + sorted(failed, key=str)}


class OracleRun:
    """Simulated engine that serves an oracle's workload, and writes the records that the oracle would write.

    `lease` is the number of steps after which blocks kept for another server are freed if that server has not read
    them. If `lease` is None, the workload states this number for each request.
    """

    def __init__(self, workload: OracleWorkload, *, lease: int | None = None, compiled: bool = False) -> None:
        self._workload = workload
        self._drafts = workload.drafts(workload.scheduler.vllm)
        requests = workload.requests
        plan = EnginePlan(
            _demand(workload, self._drafts),
            Paged(scheduler=workload.scheduler, cache=workload.cache),
            workload.num_blocks - 1,
            no_times(),
            refused=np.zeros(len(requests), np.bool_),
            unit_bytes=OFFLOAD_BLOCK_BYTES,
            layout=workload.layout,
            pipeline=workload.pipeline,
            retention_tokens=workload.retention_tokens,
            drafts=self._drafts,
            encoding=workload.encoding,
            connector=workload.connector,
            records_memory=True,
            copies_are_timed=False,
        )
        self._driver = Driver(plan.build(compiled=compiled), compiled=compiled)
        self._state = self._driver.engine.state
        self._images = EncoderRecords(workload.encoding, self._driver, self._name) if workload.encoding else None
        self._second_keys = SecondKeys(workload, self._driver)
        self._num_units: Counter[int] = Counter()
        self._due = deque(sorted(enumerate(requests), key=lambda numbered: numbered[1].arrival_step))
        self._aborts = deque(
            sorted(
                (request.abort_step, request.name, row)
                for row, request in enumerate(requests)
                if request.abort_step is not None
            )
        )
        self._arrived: list[int] = []
        """Rows in the workload of the requests that have arrived, in order of arrival.

        A request's number in the engine is its row plus 1.
        """
        self._lengths: dict[int, list[int]] = {}
        """Lengths of block tables before the last step was scheduled, by the number of each sequence that ran then.

        Each list has one length per KV-cache group.
        """
        self._copies = CopyEngine(workload) if workload.cache.kv_offloading_size else None
        self.transfers = TransferEngine(workload, lease) if workload.connector is not None else None
        """Transfers with a store or another server; None without a connector."""
        self._pending: deque[tuple[int, list[int], list[int]]] = deque()
        self._unsent: list[str] = []
        """Names of requests that left since the scheduler's last call. vLLM reports them with the next call."""
        self._num_steps = self._num_preemptions = self._num_aborts = 0

    def equal_so_far(self) -> Verdict:
        """Return a verdict without a difference, with the counts up to now."""
        return Verdict(
            num_steps=self._num_steps,
            num_allocations=self._num_units[MemoryKind.APPEND],
            num_preemptions=self._num_preemptions,
            num_hits=self._num_units[MemoryKind.SHARE],
            num_evictions=self._num_units[MemoryKind.EVICT],
            num_aborts=self._num_aborts,
            num_failures=self.num_failures,
        )

    @property
    def num_failures(self) -> int:
        """Number of outputs that the asynchronous scheduler did not await. Each of these would stop vLLM."""
        return int(self._state.num_unawaited_outputs)

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the records that the oracle would write. The last one, `end`, is missing if a request waits forever."""
        yield self.meta()
        call = 0
        while self.has_work() or self._due:
            if not self.has_work():
                call = max(call, self._due[0][1].arrival_step)
            while self._due and self._due[0][1].arrival_step <= call:
                self.add(self._due.popleft()[0])
            while self._aborts and self._aborts[0][0] <= call:
                self.abort(self._aborts.popleft()[2])
            call += 1
            yield from self.step()
        yield {"kind": "end", "engine_calls": call}

    def has_work(self) -> bool:
        """Tell whether the engine has requests, or steps in flight."""
        return bool(self._pending) or self._driver.has_work()

    def step(self) -> Iterator[dict[str, Any]]:
        """Yield the records of one engine call: of the step that it schedules, and of the output that it processes."""
        driver, state, pending = self._driver, self._state, self._pending
        while True:
            before = self._outputs_due(*pending[0][1:]) if pending else {}
            self._lengths = {number: self._num_entries(number) for number in driver.running()}
            num_ended = state.num_ended
            moment = driver.next_moment()
            self._count_changes()
            if moment == SCHEDULED:
                pending.append((self._num_steps, list(driver.batch()), driver.emitting()))
                yield self._scheduled()
            elif pending:
                yield self._updated(before, num_ended)
            if not state.awaiting:
                return

    def _scheduled(self) -> dict[str, Any]:
        driver = self._driver
        record = self._schedule_record(driver.batch())
        if self._copies is not None:
            record |= jobs_begun(driver, self._name)
            self._copies.run_step(driver)
        if self.transfers is not None:
            connector = driver.engine.connector
            loading = listed(connector.loads, 0, connector.state.num_loads)
            record |= loads_of_step(driver, self._admitted(driver.batch()), loading, self._name)
            self.transfers.run_step(driver)
        return record

    def _updated(self, before: dict[str, Any], num_ended: int) -> dict[str, Any]:
        """Return the record of the output that was processed last.

        `before` is the result of `_outputs_due` before the output was processed, and `num_ended` the number of requests
        that had ended at that time.
        """
        driver, state = self._driver, self._state
        step, batch, _ = self._pending.popleft()
        proposed = () if self._workload.scheduler.async_scheduling else [self._name(each) for each in batch]
        ended = [int(driver.engine.lines[index].ended) for index in range(num_ended, state.num_ended)]
        self._unsent += [self._name(number) for number in ended]
        finished = [[self._name(number), self._reason(number)] for number in ended]
        if self._drafts is not None or self.transfers is not None:
            before |= self._outputs_of(before)
        if self.transfers is not None:
            before |= self._transfers_ended(step, ended, before["prev_outputs"])
        return {"kind": "update", "i": step, "finished": finished} | before | self._state_record(proposed)

    def add(self, row: int) -> None:
        """Let the request in `row` arrive."""
        self._arrived.append(row)
        self._driver.add(row + 1)

    def abort(self, row: int) -> None:
        """Abort the request in `row` if it has arrived and not ended."""
        if row in self._arrived and self._is_live(row + 1):
            self._driver.abort(row + 1)
            self._count_changes()
            self._unsent.append(self._name(row + 1))
            self._num_aborts += 1

    def meta(self) -> dict[str, Any]:
        """Return the first record, with the settings of the engine."""
        settings, layout = self._workload.scheduler, self._workload.layout
        rules = self._driver.engine.settings
        meta = {
            "kind": "meta",
            "num_blocks": self._workload.num_blocks,
            "block_size": self._workload.cache.block_size,
            "max_num_running_reqs": settings.max_num_seqs,
            "max_num_scheduled_tokens": int(rules.max_num_batched_tokens),
            "max_model_len": settings.max_model_len,
            "watermark_blocks": int(rules.watermark_blocks),
            "reserve_full_isl": bool(rules.reserve_full_prompt),
            "free0": int(self._state.num_free),
        }
        if layout is not None:
            meta |= {
                "scheduler_block_size": layout.scheduler_block_size,
                "hash_block_size": layout.hash_block_size,
                "mamba_align_split": bool(rules.boundary_tokens),
            }
        return meta

    def _count_changes(self) -> None:
        changes = list(self._driver.changes())
        self._second_keys.follow(changes)
        for row in changes:
            self._num_units[int(row.kind)] += int(row.length)

    def _schedule_record(self, batch: dict[int, int]) -> dict[str, Any]:
        """Return the record of a step that schedules `batch`, the number of tokens by number of a sequence."""
        driver = self._driver
        preempted = driver.preempted()
        self._num_steps += 1
        self._num_preemptions += len(preempted)
        admitted = self._admitted(batch)
        new = [number for number in admitted if not driver.sequence(number).preemptions]
        handed_over = admitted if self._workload.pipeline.v2_model_runner else new
        tables = {self._name(number): self._by_group(self._new_entries(number)) for number in batch}
        tables |= {self._name(number): self._tables(number) for number in admitted}
        sent, self._unsent = sorted(self._unsent), []
        return (
            {
                "kind": "schedule",
                "i": self._num_steps - 1,
                "scheduled": [[self._name(number), tokens] for number, tokens in batch.items()],
                "total": sum(batch.values()),
                "new": [self._name(number) for number in new],
                "new_computed": {
                    self._name(number): int(driver.sequence(number).computed) - batch[number] for number in handed_over
                },
                "resumed": sorted(self._name(number) for number in admitted if driver.sequence(number).preemptions),
                "new_block_ids": tables,
                "preempted": [self._name(number) for number in preempted],
                "finished_ids_sent": sent,
            }
            | (self._drafts_of_step() if self._drafts is not None else {})
            | (self._images.of_step(batch) if self._images is not None else {})
            | self._state_record()
        )

    def _admitted(self, batch: dict[int, int]) -> list[int]:
        """Return the sequences of the last scheduled step's `batch` that were waiting before that step."""
        return list(batch)[len(batch) - self._state.num_new_seqs :]

    def _transfers_ended(self, step: int, ended: list[int], outputs: Mapping[str, int]) -> dict[str, Any]:
        """Return the record fields about the transfers that ended with `step`.

        `ended` has the sequences that ended with the step's output, and `outputs` each request's number of outputs
        before that output.
        """
        assert self.transfers is not None
        received, sent, bad = self.transfers.ended.pop(step)
        return {
            "received": [self._name(number) for number in received],
            "sent": [self._name(number) for number in sent],
            "bad": bad,
            "params": handed_out(self._driver, ended, outputs, self._workload, self._name),
        }

    def _drafts_of_step(self) -> dict[str, Any]:
        engine = self._driver.engine
        first = in_flight.earlier(engine, self._state.next_launched) * engine.settings.max_num_seqs
        verified = {
            self._name(number): abs(int(engine.emitting_drafts[first + index]))
            for index, number in enumerate(self._driver.emitting())
        }
        return {
            "drafts": {name: number for name, number in verified.items() if number},
            "k_next": int(self._state.num_drafts),
        }

    def _outputs_due(self, batch: list[int], emitting: list[int]) -> dict[str, Any]:
        return {
            "tokens": {self._name(number): 1 for number in emitting if self._is_live(number)},
            "prev_outputs": {
                self._name(number): self._num_outputs(number)
                for number in batch
                if self._is_live(number) or self._is_held(number)
            },
        }

    def _outputs_of(self, before: dict[str, Any]) -> dict[str, Any]:
        """Return the record field `tokens`: the number of outputs of each request in a step, with accepted drafts.

        `before` is the result of `_outputs_due` before the output was processed.
        """
        numbers = {request.name: row + 1 for row, request in enumerate(self._workload.requests)}
        gained = {name: self._num_outputs(numbers[name]) - before["prev_outputs"][name] for name in before["tokens"]}
        return {"tokens": {name: tokens for name, tokens in gained.items() if tokens}}

    def _drafts_record(self, live: dict[str, int], proposed: Collection[str]) -> dict[str, Any]:
        """Return the record fields with each live request's drafts to be verified next, and its tokens in flight.

        Requests in `proposed` are left out of the drafts, because vLLM gets their drafts only after this record. Tokens
        in flight are included only if the release counts them. `live` has the engine's number of each request, by name.
        """
        sequences = {name: self._driver.sequence(number) for name, number in live.items()}
        waiting = {name: int(each.drafts) for name, each in sequences.items() if each.drafts}
        record: dict[str, Any] = {"spec_next": {name: waiting[name] for name in waiting if name not in proposed}}
        if self._driver.engine.settings.late_outputs_block:
            record["in_flight"] = {name: int(each.in_flight) for name, each in sequences.items() if each.in_flight}
        return record

    def _state_record(self, proposed: Collection[str] = ()) -> dict[str, Any]:
        """Return the part of a record with the state of the engine: queues, block tables and free blocks."""
        driver, num_free = self._driver, int(self._state.num_free)
        sequences = driver.engine.sequences
        live = {self._name(row + 1): row + 1 for row in self._arrived if sequences[row + 1].status in _LIVE}
        if self._copies is not None:
            # An aborted request keeps its blocks until its load has ended.
            live |= {self._name(row + 1): row + 1 for row in self._arrived if driver.sequence(row + 1).num_units > 0}
        if self.transfers is not None:
            live |= {self._name(row + 1): row + 1 for row in self._arrived if self._is_held(row + 1)}
        keys = column(driver.engine.blocks, "key")
        has_key = keys != NO_KEY
        held = {name: number for name, number in live.items() if driver.sequence(number).num_units}
        self._second_keys.note(held.values())
        tables = {name: self._tables(number) for name, number in held.items()}
        placeholders = {name: int(driver.sequence(number).placeholders) for name, number in live.items()}
        return {
            "running": [self._name(number) for number in driver.running()],
            "waiting": [self._name(number) for number in driver.waiting()],
            "skipped": [self._name(number) for number in driver.skipped()],
            "free": num_free,
            "usage": 1.0 - num_free / (self._workload.num_blocks - 1),
            "cached_keys": len(set(keys[has_key].tolist())) + len(self._second_keys),
            "blocks": tables,
            "keyed": np.flatnonzero(has_key | self._second_keys.has_tail(has_key)).tolist(),
            "computed": {name: int(driver.sequence(number).computed) for name, number in live.items()},
            "placeholders": {name: number for name, number in placeholders.items() if number},
            "free_queue": driver.free_queue(),
            "adapters": sorted({self._workload.requests[number - 1].adapter for number in driver.running()} - {0}),
        } | (
            (offload_state(driver, self._name) if self._copies is not None else {})
            | (self._drafts_record(live, proposed) if self._drafts is not None else {})
            | (connector_state(driver, [row + 1 for row in self._arrived], self._name) if self.transfers else {})
            | (self._images.state() if self._images is not None else {})
        )

    def _tables(self, number: int) -> list[Any]:
        groups = range(self._driver.engine.settings.num_groups)
        return self._by_group([self._driver.blocks(number, group) for group in groups])

    def _new_entries(self, number: int) -> list[list[int]]:
        """Return the blocks, null blocks included, that the last step appended to a sequence's table in each group.

        If the sequence did not run before the step, these are all blocks of the table.
        """
        lengths = self._lengths.get(number, [0] * self._driver.engine.settings.num_groups)
        return [self._driver.blocks(number, group)[length:] for group, length in enumerate(lengths)]

    def _num_entries(self, number: int) -> list[int]:
        engine = self._driver.engine
        sequence, groups = engine.sequences[number], range(engine.settings.num_groups)
        return [table_of(engine, sequence, group).num_blocks if sequence.num_units else 0 for group in groups]

    def _by_group(self, tables: list[list[int]]) -> list[Any]:
        return tables[0] if self._workload.layout is None else tables

    def _is_held(self, number: int) -> bool:
        return self.transfers is not None and bool(self._driver.engine.connector.transfers[number].is_held)

    def _is_live(self, number: int) -> bool:
        return self._driver.sequence(number).status in _LIVE

    def _num_outputs(self, number: int) -> int:
        sequence = self._driver.sequence(number)
        return int(sequence.num_tokens) - int(sequence.prompt_tokens)

    def _name(self, number: int) -> str:
        return self._workload.requests[number - 1].name

    def _reason(self, number: int) -> str:
        if self.transfers is not None and self._driver.engine.connector.transfers[number].is_error:
            return "error"
        stop_at = self._workload.requests[number - 1].stop_at
        return "stop" if stop_at is not None and self._num_outputs(number) >= stop_at else "length"


def _demand(workload: OracleWorkload, drafts: Drafts | None) -> Demand:
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
        keys=Ragged.from_rows(_keys(workload, 0 if drafts is None else drafts.ahead_tokens), np.int64),
        adapter=np.array([request.adapter for request in requests], np.int64),
    )


def _keys(workload: OracleWorkload, ahead: int) -> list[list[int]]:
    """Return the prefix keys of each request's full blocks, without trailing keys that no other request has.

    A key also covers the `ahead` tokens after its block.
    """
    keys = PrefixKeys(workload.cache.block_size)
    rows = [
        keys.from_tokens(_tokens(row, request), (request.adapter, request.salt), ahead, request.images)
        for row, request in enumerate(workload.requests)
    ]
    num_requests = Counter(key for row in rows for key in row)
    for row in rows:
        while row and num_requests[row[-1]] == 1:
            row.pop()
    return rows


def _tokens(row: int, request: OracleRequest) -> list[int]:
    """Return the token ids of a request's prompt, and of all outputs that the fake model can give it."""
    first = _FIRST_OUTPUT + _TOKENS_PER_REQUEST * (row + 1)
    outputs = list(range(first, first + request.output_tokens))
    if request.stop_at is not None:
        outputs[request.stop_at - 1 :] = [_STOP_TOKEN]
    return [*request.prompt, *outputs]
