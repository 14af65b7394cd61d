"""The link between GPU and host memory: when each copy begins and ends, and which step reports it.

Copies of one direction follow each other; the two directions do not meet, and kernels go on meanwhile. As in vLLM
0.25.1, a load begins with the step that decides it, a store with the step after and behind all kernels launched so far,
and what has ended when the kernels of a step are launched is reported with the output of that step.
The host is busy meanwhile with what the offload asks of it: looking after every sequence of a step, and handing each
copy to the GPU piece by piece.
"""

from __future__ import annotations

import math

from kvsim.engine.host.host_jobs import report
from kvsim.engine.host_tier import NO_JOB
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.state import Engine

_SETTLED_CALLS = 2
"""Number of consecutive calls of the scheduler without effect after which the next has none until a copy ends."""


@part
def begin(engine: Engine) -> None:
    """Put the copies of a scheduled step on the link; let the host wait for those that the step needs."""
    state, host = engine.state, engine.host
    if host.settings.is_timed:
        state.host_s += host.settings.step_s + host.settings.sequence_s * state.num_in_batch
    job = host.jobs[NO_JOB].next
    while job != NO_JOB:
        record = host.jobs[job]
        if not record.is_on_link and not record.is_load and record.begun_in < state.num_scheduled:
            _submit(engine, job)
            begin_s = max(host.state.store_free_s, state.host_s, engine.stages[0].free_s)
            _put_on_link(engine, job, begin_s, host.settings.store_block_s)
            host.state.store_free_s = record.done_s
        job = record.next
    job = host.jobs[NO_JOB].next
    while job != NO_JOB:
        if host.jobs[job].flushed_in == state.num_scheduled:
            state.host_s = max(state.host_s, host.jobs[job].done_s)
        job = host.jobs[job].next
    job = host.jobs[NO_JOB].next
    while job != NO_JOB:
        record = host.jobs[job]
        if not record.is_on_link and record.is_load:
            _submit(engine, job)
            begin_s = max(host.state.load_free_s, state.host_s)
            _put_on_link(engine, job, begin_s, host.settings.load_block_s)
            host.state.load_free_s = record.done_s
        job = record.next


@part
def poll(engine: Engine) -> None:
    """Report the copies that have ended when a step is launched, stores first."""
    if engine.host.settings.is_timed:
        _poll(engine, False)
        _poll(engine, True)


@part
def pass_time(engine: Engine, until_s: float) -> None:
    """Advance the clock to the end of the next copy, to the next arrival or to `until_s`; no decision falls before."""
    state, host = engine.state, engine.host
    if host.state.num_settled_calls < _SETTLED_CALLS:
        return
    host.state.num_settled_calls = 0
    next_s = until_s
    if state.num_arrived < state.num_submitted:
        next_s = min(next_s, engine.times[engine.lines[state.num_arrived].arrived].arrival_s)
    job = host.jobs[NO_JOB].next
    while job != NO_JOB:
        next_s = min(next_s, host.jobs[job].done_s)
        job = host.jobs[job].next
    if next_s < math.inf:
        state.host_s = max(state.host_s, next_s)


@part
def _submit(engine: Engine, job: int) -> None:
    """Take the host's time to hand a copy to the GPU."""
    settings = engine.host.settings
    if settings.is_timed:
        engine.state.host_s += settings.submit_s + settings.submit_block_s * engine.host.jobs[job].num_blocks


@part
def _put_on_link(engine: Engine, job: int, begin_s: float, block_s: float) -> None:
    record = engine.host.jobs[job]
    record.is_on_link = True
    record.done_s = begin_s + engine.host.settings.job_s + record.num_blocks * block_s


@part
def _poll(engine: Engine, is_load: bool) -> None:
    state, host = engine.state, engine.host
    job = host.jobs[NO_JOB].next
    while job != NO_JOB:
        record = host.jobs[job]
        is_due = record.is_on_link and record.reported_in == 0 and record.done_s <= state.host_s
        if is_due and record.is_load == is_load:
            report(engine, job, state.num_scheduled)
        job = record.next
