"""A simulated engine that repeats the events of a recording in their order, so that its decisions can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.conformance.event_columns import EventColumns, block_by_block, split_evictions, stacked
from kvsim.conformance.oracle_files import OFFLOAD_BLOCK_BYTES
from kvsim.engine.arrays import column
from kvsim.engine.coefficients import no_times
from kvsim.engine.driver import Driver
from kvsim.engine.initialization import EnginePlan
from kvsim.engine.known_requests import Demand
from kvsim.engine.moments import ADD, LEAVE, LOOK
from kvsim.engine.paged.prefix_keys import PrefixKeys, with_answers
from kvsim.recording import RequestStatus
from kvsim.workload import Ragged

if TYPE_CHECKING:
    from kvsim.conformance.recorded import Recorded
    from kvsim.recording.tables import IntArray

MAX_MOMENTS = 1 << 14
"""Largest number of moments that the engine processes in one call, so that its buffers suffice."""


class Follower:
    """Simulated engine with the settings and the requests of a recording, which repeats the recording's moments."""

    def __init__(self, recorded: Recorded, *, compiled: bool) -> None:
        self._recorded, self._timeline = recorded, recorded.timeline
        plan = EnginePlan(
            _demand(recorded),
            recorded.policy,
            recorded.num_blocks - 1,
            no_times(),
            refused=np.asarray(recorded.recording.requests.status == RequestStatus.REFUSED),
            unit_bytes=OFFLOAD_BLOCK_BYTES,
            initial_free=recorded.initial_free,
            layout=recorded.layout,
            pipeline=recorded.pipeline,
            connector=recorded.connector,
            drafts=recorded.drafts,
            encoding=recorded.encoding,
            retention_tokens=recorded.retention_tokens,
            copies_are_timed=False,
            records_memory=True,
            records_schedule=True,
            num_moments=MAX_MOMENTS,
        )
        self.driver = Driver(plan.build(compiled=compiled), compiled=compiled)

    def play(self, begin: int, end: int) -> tuple[int, list[EventColumns]]:
        """Simulate the moments [begin, end). Return the moment after the last simulated one, and the engine's events.

        The events are in parts for `joined`. The simulation stops early after a call that schedules a step if the
        recording has no step for this call.
        """
        timeline, parts, at = self._timeline, [], begin
        while at < end:
            kind, row = timeline.kind[at:end], timeline.row[at:end]
            num_done = self.driver.play(kind, np.where(np.isin(kind, (ADD, LEAVE)), row + 1, 0))
            parts.append(self._done(at, num_done))
            at += num_done
            if timeline.kind[at - 1] == LOOK and parts[-1].has_step(at - 1):
                break
        return at, parts

    def _done(self, begin: int, num_moments: int) -> EventColumns:
        """Return the events that the engine wrote in `num_moments` moments of the recording from `begin` on."""
        engine, state = self.driver.engine, self.driver.engine.state
        num_steps, since = state.num_steps - state.first_step, int(state.seq) - num_moments + 1 - begin
        of_steps = [
            column(engine.steps, name, num_steps) for name in ("seq", "running", "waiting", "preempted", "free_units")
        ]
        of_batch = [
            column(engine.schedule_rows, name, state.num_schedule_rows)
            for name in ("step", "request", "tokens", "computed_before")
        ]
        of_memory = [
            column(engine.memory_rows, name, state.num_memory_rows)
            for name in ("seq", "kind", "request", "position", "address", "length", "group")
        ]
        # The engine numbers moments by its own `seq`; the first column has the moments of the recording.
        of_steps[0], of_memory[0] = of_steps[0] - since, self._reported_at(of_memory[0] - since)
        of_batch[0] = of_steps[0][of_batch[0] - state.first_step]
        if not self._recorded.has_free:
            of_steps[4] = np.full(num_steps, -1)
        changes = block_by_block(*of_memory, with_lengths=self._recorded.has_lengths)
        encoder = self._recorded.encoder.simulated(engine, since, begin + num_moments)
        return EventColumns(stacked(*of_steps), stacked(*of_batch), *split_evictions(changes), encoder)

    def _reported_at(self, moments: IntArray) -> IntArray:
        """Return the moments at which the recording reports changes that the engine makes at `moments`.

        If a request leaves at a moment, the recording reports the changes with the next step or output.
        """
        kind = self._timeline.kind
        while (early := kind[moments] == LEAVE).any():
            moments = moments + early
        return moments

    def abort(self, row: int, moment: int) -> EventColumns:
        """Abort the request in `row` at `moment`, and return the events that this causes."""
        self.driver.abort(row + 1)
        return self._done(moment, 1)


def _demand(recorded: Recorded) -> Demand:
    """Return the recorded requests for the engine. The order of their arrivals takes the place of times."""
    requests, block_size, longest = (
        recorded.recording.requests,
        recorded.cache.block_size,
        recorded.scheduler.max_model_len,
    )
    prompt = requests.prompt_tokens.astype(np.int64)
    # Without a limit, vLLM goes on to the longest sequence.
    limit = np.where(requests.max_tokens < 1, longest - prompt, requests.max_tokens).astype(np.int64)
    # An unfinished request has not stopped by itself: it may go on to its limit.
    output = np.where(requests.status == RequestStatus.FINISHED, requests.output_tokens, limit)
    keys = PrefixKeys(block_size)
    prompts = Ragged.from_rows(
        [
            keys.from_hashes(requests.prompt_hashes[row].tolist(), block_size, int(prompt[row]))
            for row in range(len(requests))
        ],
        np.int64,
    )
    return Demand(
        prompt=prompt,
        output=np.minimum(np.minimum(output, limit), np.maximum(longest - prompt, 1)).astype(np.int64),
        limit=limit,
        priority=requests.priority.astype(np.int64),
        arrival_s=np.array(recorded.arrival_ranks()),
        keys=with_answers(
            requests.turns, prompts, block_size, 0 if recorded.drafts is None else recorded.drafts.ahead_tokens
        ),
        adapter=0 if requests.adapter is None else requests.adapter.astype(np.int64),
    )
