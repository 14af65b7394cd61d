"""The copies in progress between GPU and host. A copy is a `Job` record in `HostTier.jobs`; `job` is its index.

There are three linked lists of records: all copies, in the order in which they were decided; copies whose end is
scheduled to be reported, in the order of these reports (`next_reported`); and unused records.
"""

from __future__ import annotations

from kvsim.engine import linked_list
from kvsim.engine.host_tier import NO_HOST_BLOCK, NO_JOB
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.records import Sequence
from kvsim.engine.state import Engine


@part
def begin(engine: Engine, sequence: Sequence, is_load: bool, first: int, end: int) -> int:
    """Add a load (if `is_load`) or a store, for the host blocks [first, end) of a sequence. A store copies only those
    that the host lacks. Return the index of the new record. The caller sets `Job.num_blocks` and, for a store,
    `Job.first_written`.
    """
    host = engine.host
    state = host.state
    job = state.last_free_job
    if job == NO_JOB:
        state.num_job_records += 1
        job = state.num_job_records
    else:
        state.last_free_job = host.jobs[job].next
    linked_list.push_back(host.jobs, job)
    record = host.jobs[job]
    record.number, record.sequence, record.is_load = state.next_job, sequence.number, is_load
    record.begin, record.end, record.first_written = first, end, NO_HOST_BLOCK
    record.decided_in, record.awaited_in, record.reported_in = engine.state.num_scheduled, 0, 0
    record.begun_step, record.awaited_step = engine.state.num_steps, -1
    record.next_reported, record.is_on_link, record.done_s = NO_JOB, False, 0.0
    state.next_job += 1
    state.num_jobs += 1
    host.sequences[sequence.number].num_jobs += 1
    return job


@part
def schedule_report(engine: Engine, job: int, step: int) -> None:
    """Schedule the report of a copy's end with the output of `step`: a call of the scheduler, counted from 1. `step`
    must not be smaller than in the previous call of this function.
    """
    host = engine.host
    host.jobs[job].reported_in = step
    if host.state.first_reported == NO_JOB:
        host.state.first_reported = job
    else:
        host.jobs[host.state.last_reported].next_reported = job
    host.state.last_reported = job


@part
def pop_reported(engine: Engine, step: int) -> int:
    """Remove, from the list of scheduled reports, the next copy whose end is reported with the output of `step` or of
    an earlier step. Return the index of its record, or `NO_JOB` if there is none.
    """
    state, jobs = engine.host.state, engine.host.jobs
    job = state.first_reported
    if job == NO_JOB or jobs[job].reported_in > step:
        return NO_JOB
    state.first_reported = jobs[job].next_reported
    return job


@part
def end(engine: Engine, job: int) -> None:
    """Delete a copy whose end was reported, and make its record available for another copy."""
    host = engine.host
    linked_list.remove(host.jobs, job)
    host.sequences[host.jobs[job].sequence].num_jobs -= 1
    host.jobs[job].next = host.state.last_free_job
    host.state.last_free_job = job
    host.state.num_jobs -= 1
