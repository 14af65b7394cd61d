"""The clock of copies between GPU and host memory: when each copy starts, when it ends, and which step reports it.

As in vLLM 0.25.1:

- A load starts with the step that decides it.
- A store starts with the step after the one that decides it, once all kernels launched by then have run.
- A copy is reported with the output of the first step whose kernels are launched after the copy has ended.

Copies in one direction run one after the other. They do not slow down copies in the other direction, nor kernels. The
host spends time on the offload: on the sequences of every step, and on each copy that it hands to the GPU.
"""

from __future__ import annotations

import math

from kvsim.engine import clock
from kvsim.engine.host.host_jobs import schedule_report
from kvsim.engine.host_tier import NO_JOB
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.paged import external_kv
from kvsim.engine.state import Engine


@part
def begin(engine: Engine) -> None:
    """Start the stores of earlier steps and the loads of the step just scheduled. If the step needs a store to have
    ended (`Job.awaited_in`), advance the host's clock to its end before the loads start.
    """
    state, host = engine.state, engine.host
    if host.settings.is_timed:
        state.host_s += host.settings.step_s + host.settings.sequence_s * state.num_in_batch
    # The order matters. The host can wait for a store only if the end of the store is known. It submits loads after
    # this wait.
    _start_stores(engine)
    _wait_for_needed_stores(engine)
    _start_loads(engine)


@part
def _start_stores(engine: Engine) -> None:
    state, host = engine.state, engine.host
    job = host.jobs[NO_JOB].next
    while job != NO_JOB:
        record = host.jobs[job]
        if not record.is_on_link and not record.is_load and record.decided_in < state.num_scheduled:
            _submit(engine, job)
            begin_s = max(host.state.store_free_s, state.host_s, engine.stages[0].free_s)
            _put_on_link(engine, job, begin_s, host.settings.store_block_s)
            host.state.store_free_s = record.done_s
        job = record.next


@part
def _wait_for_needed_stores(engine: Engine) -> None:
    state, host = engine.state, engine.host
    job = host.jobs[NO_JOB].next
    while job != NO_JOB:
        if host.jobs[job].awaited_in == state.num_scheduled:
            state.host_s = max(state.host_s, host.jobs[job].done_s)
        job = host.jobs[job].next


@part
def _start_loads(engine: Engine) -> None:
    state, host = engine.state, engine.host
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
    """Report the copies that ended by the host's clock, stores first. Do nothing if the caller reports their ends."""
    if engine.host.settings.is_timed:
        _report_ended(engine, False)
        _report_ended(engine, True)


@part
def pass_time(engine: Engine, until_s: float) -> None:
    """Advance the clock to the next arrival or end of a copy, at most to `until_s`, if scheduling has no effect before
    that. A rank that takes part in the steps of other ranks does nothing: these steps advance its clock.
    """
    state, host = engine.state, engine.host
    if engine.settings.lockstep or not external_kv.is_settled(engine):
        return
    engine.external.state.num_idle_calls = 0
    next_s = min(until_s, clock.next_arrival_s(engine))
    job = host.jobs[NO_JOB].next
    while job != NO_JOB:
        next_s = min(next_s, host.jobs[job].done_s)
        job = host.jobs[job].next
    if next_s < math.inf:
        state.host_s = max(state.host_s, next_s)


@part
def _submit(engine: Engine, job: int) -> None:
    settings = engine.host.settings
    if settings.is_timed:
        engine.state.host_s += settings.submit_s + settings.submit_block_s * engine.host.jobs[job].num_blocks


@part
def _put_on_link(engine: Engine, job: int, begin_s: float, block_s: float) -> None:
    """Let copy `job` start at `begin_s`, and set the time of its end. Each GPU block takes `block_s` seconds."""
    record = engine.host.jobs[job]
    record.is_on_link = True
    record.done_s = begin_s + engine.host.settings.job_s + record.num_blocks * block_s


@part
def _report_ended(engine: Engine, is_load: bool) -> None:
    """Report the loads (if `is_load`) or the stores that have ended and were not reported before."""
    state, host = engine.state, engine.host
    job = host.jobs[NO_JOB].next
    while job != NO_JOB:
        record = host.jobs[job]
        is_due = record.is_on_link and record.reported_in == 0 and record.done_s <= state.host_s
        if is_due and record.is_load == is_load:
            schedule_report(engine, job, state.num_scheduled)
        job = record.next
