"""The paged policy against an oracle: vLLM's own scheduler, driven with a fake model, that writes down all it decides.

The same workload is run here, moment by moment, and described in the oracle's words. Every field that is a decision is
compared, the order of the free queue included; timings are not.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvsim.conformance.changes import Changes
from kvsim.conformance.verdict import Verdict, difference
from kvsim.memory.blocks import BlockPool
from kvsim.recording.tables import MemoryKind
from kvsim.scheduling.continuous import Batch, ContinuousScheduler
from kvsim.scheduling.engine import Awaiting, Call, Scheduled, Updated, engine_moments
from kvsim.scheduling.keys import PrefixKeys
from kvsim.scheduling.paged import PagedManager
from kvsim.scheduling.sequence import Sequence, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kvsim.conformance.oracle_files import OracleRequest, OracleWorkload

_STOP_TOKEN = 7
_FIRST_OUTPUT = 500_000_000
_TOKENS_PER_REQUEST = 1_000_000
_LIVE = (Status.WAITING, Status.RUNNING, Status.PREEMPTED)


def verify_oracle(workload: OracleWorkload, records: Iterable[tuple[int, Mapping[str, Any]]]) -> Verdict:
    """Run `workload` in lockstep with what an oracle said of it.

    Args:
        workload: what the oracle was given.
        records: what it said, each record with the number of its line.

    Returns:
        a verdict that covers the calls of the scheduler before the first difference.
    """
    run = OracleRun(workload)
    simulated = run.records()
    verdict = run.equal_so_far()
    for line, recorded in records:
        ours = next(simulated, {"kind": "nothing: every request has ended"})
        # A record of another kind has nothing else to compare; a file may leave the order of the free queue out; and
        # whatever else it says that we do not is a timing.
        fields = ours.keys() & recorded.keys() if ours["kind"] == recorded["kind"] else {"kind"}
        if any(ours[name] != recorded[name] for name in fields):
            moment = f"{recorded['kind']} {recorded.get('i', '')}".rstrip()
            told = {name: recorded[name] for name in recorded if name in fields}
            return replace(verdict, difference=difference(f"{moment}, line {line}", told, ours))
        verdict = run.equal_so_far()
    return verdict


class OracleRun:
    """One engine that serves an oracle's workload and tells what the oracle would tell."""

    def __init__(self, workload: OracleWorkload) -> None:
        self._workload = workload
        self._pool = BlockPool(workload.num_blocks)
        self._changes = Changes()
        settings = workload.scheduler
        self._memory = PagedManager(
            self._pool,
            workload.cache,
            self._changes,
            max_model_len=settings.max_model_len,
            reserve_full_prompt=settings.reserve_full_prompt,
        )
        self._scheduler = ContinuousScheduler(settings, self._memory)
        self._keys = PrefixKeys(workload.cache.block_size)
        requests = workload.requests
        self._due = deque(sorted(enumerate(requests), key=lambda numbered: numbered[1].arrival_step))
        self._aborts = deque(
            sorted((request.abort_step, request.name) for request in requests if request.abort_step is not None)
        )
        self._sequences: dict[str, Sequence] = {}
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
        call = 0
        step_of: dict[Batch, int] = {}
        before: dict[str, Any] = {}
        for moment in engine_moments(self._scheduler):
            match moment:
                case Call(idle=idle):
                    if idle:
                        if not self._due:
                            break
                        call = max(call, self._due[0][1].arrival_step)
                    self._arrive(call)
                    self._abort(call)
                    call += 1
                case Scheduled(batch=batch):
                    step_of[batch] = self._num_steps
                    yield self._schedule_record(batch)
                case Awaiting(batch=batch):
                    before = self._outputs_due(batch)
                case Updated(batch=batch, ended=ended):
                    names = [self._name(sequence) for sequence in ended]
                    self._unsent += names
                    finished = [[name, self._reason(sequence)] for name, sequence in zip(names, ended, strict=True)]
                    yield {"kind": "update", "i": step_of.pop(batch), "finished": finished} | before | self._state()
        yield {"kind": "end", "engine_calls": call}

    def _meta(self) -> dict[str, Any]:
        settings, cache, pool = self._workload.scheduler, self._workload.cache, self._pool
        return {
            "kind": "meta",
            "num_blocks": pool.num_blocks,
            "block_size": cache.block_size,
            "max_num_running_reqs": settings.max_num_seqs,
            "max_num_scheduled_tokens": settings.max_num_batched_tokens,
            "max_model_len": settings.max_model_len,
            "watermark_blocks": int(cache.watermark * pool.num_blocks),
            "reserve_full_isl": settings.reserve_full_prompt,
            "free0": pool.num_free,
        }

    def _arrive(self, call: int) -> None:
        while self._due and self._due[0][1].arrival_step <= call:
            row, request = self._due.popleft()
            stop_at = request.output_tokens if request.stop_at is None else request.stop_at
            sequence = Sequence(
                row,
                len(request.prompt),
                min(stop_at, request.output_tokens),
                request.output_tokens,
                priority=request.priority,
                arrival=float(row),
                prompt_keys=self._keys.from_tokens(_tokens(row, request)),
            )
            self._sequences[request.name] = sequence
            self._scheduler.add(sequence)

    def _abort(self, call: int) -> None:
        while self._aborts and self._aborts[0][0] <= call:
            _, name = self._aborts.popleft()
            sequence = self._sequences.get(name)
            if sequence is not None and sequence.status in _LIVE:
                self._scheduler.abort(sequence)
                self._unsent.append(name)
                self._num_aborts += 1

    def _schedule_record(self, batch: Batch) -> dict[str, Any]:
        self._num_steps += 1
        self._num_preemptions += len(batch.preempted)
        appended: dict[int, list[int]] = {sequence.row: [] for sequence in batch.tokens}
        for kind, row, _, block in self._changes.drain():
            if kind == MemoryKind.APPEND and row in appended:
                appended[row].append(block)
        admitted = list(batch.tokens)[len(batch) - batch.num_admitted :]
        new = [sequence for sequence in admitted if not sequence.num_preemptions]
        handed_over = admitted if self._workload.resumed_are_new else new
        tables = {self._name(sequence): appended[sequence.row] for sequence in batch.tokens}
        tables |= {self._name(sequence): list(sequence.blocks) for sequence in admitted}
        sent, self._unsent = sorted(self._unsent), []
        return {
            "kind": "schedule",
            "i": self._num_steps - 1,
            "scheduled": [[self._name(sequence), tokens] for sequence, tokens in batch.tokens.items()],
            "total": sum(batch.tokens.values()),
            "new": [self._name(sequence) for sequence in new],
            "new_computed": {
                self._name(sequence): sequence.computed - batch.tokens[sequence] for sequence in handed_over
            },
            "resumed": sorted(self._name(sequence) for sequence in admitted if sequence.num_preemptions),
            "new_block_ids": tables,
            "preempted": [self._name(sequence) for sequence in batch.preempted],
            "finished_ids_sent": sent,
        } | self._state()

    def _outputs_due(self, batch: Batch) -> dict[str, Any]:
        """What an update will say of the requests in `batch` that have not left meanwhile."""
        return {
            "tokens": {self._name(sequence): 1 for sequence in batch.emitting if sequence.status in _LIVE},
            "prev_outputs": {
                self._name(sequence): sequence.num_outputs for sequence in batch.tokens if sequence.status in _LIVE
            },
        }

    def _state(self) -> dict[str, Any]:
        pool = self._pool
        live = {name: sequence for name, sequence in self._sequences.items() if sequence.status in _LIVE}
        return {
            "running": [self._name(sequence) for sequence in self._scheduler.running],
            "waiting": [self._name(sequence) for sequence in self._scheduler.waiting],
            "skipped": [],
            "free": pool.num_free,
            "usage": 1.0 - pool.num_free / pool.num_usable,
            "cached_keys": pool.num_keys,
            "blocks": {name: list(sequence.blocks) for name, sequence in live.items() if sequence.blocks},
            "computed": {name: sequence.computed for name, sequence in live.items()},
            "placeholders": {name: sequence.placeholders for name, sequence in live.items() if sequence.placeholders},
            "free_queue": pool.free_queue(),
        }

    def _name(self, sequence: Sequence) -> str:
        return self._workload.requests[sequence.row].name

    def _reason(self, sequence: Sequence) -> str:
        stop_at = self._workload.requests[sequence.row].stop_at
        return "stop" if stop_at is not None and sequence.num_outputs >= stop_at else "length"


def _tokens(row: int, request: OracleRequest) -> list[int]:
    """All tokens that a request can ever have: its prompt, and the outputs that the fake model will give it."""
    first = _FIRST_OUTPUT + _TOKENS_PER_REQUEST * (row + 1)
    outputs = list(range(first, first + request.output_tokens))
    if request.stop_at is not None:
        outputs[request.stop_at - 1 :] = [_STOP_TOKEN]
    return [*request.prompt, *outputs]
