"""Simulated copies of an oracle with vLLM's native offload, each of a fixed number of steps, and its record fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.conformance.oracle_files import OracleWorkload
    from kvsim.engine.driver import Driver


class CopyEngine:
    """Copies that take a fixed number of steps.

    A load begins in the step that decides it, a store in the next step. If a step waits for a copy, the copy ends with
    it.
    """

    def __init__(self, workload: OracleWorkload) -> None:
        self._load_steps, self._store_steps = workload.load_steps, workload.store_steps
        self._last_step: dict[int, int] = {}
        """Step whose output reports a copy as complete, by copy, in the order in which the copies started."""
        self._stores: list[int] = []

    def run_step(self, driver: Driver) -> None:
        """Start the copies of the step scheduled last, and report those that end with its output."""
        step, jobs = int(driver.engine.state.num_scheduled), driver.jobs()
        begun = {record: job for record, job in jobs.items() if job.decided_in == step}
        self._last_step |= dict.fromkeys(self._stores, step + self._store_steps - 1)
        self._last_step |= {record: step for record in self._last_step if jobs[record].awaited_in == step}
        self._last_step |= {record: step + self._load_steps - 1 for record, job in begun.items() if job.is_load}
        self._stores = [record for record, job in begun.items() if not job.is_load]
        done = [record for record, last in self._last_step.items() if last <= step]
        for record in done:
            del self._last_step[record]
            driver.report(record, step)


def jobs_begun(driver: Driver, name: Callable[[int], str]) -> dict[str, Any]:
    """Return the copies that the last scheduled step starts, and those that it waits for."""
    step, jobs = driver.engine.state.num_scheduled, driver.jobs().values()
    begun: dict[str, dict[str, Any]] = {"load_jobs": {}, "store_jobs": {}}
    for job in jobs:
        if job.decided_in == step:
            slots, blocks = driver.slots(job), driver.blocks_of_job(job)
            copied = [slots, blocks] if job.is_load else [blocks, slots]
            begun["load_jobs" if job.is_load else "store_jobs"][str(job.number)] = [name(job.sequence), *copied]
    return begun | {"flush": [int(job.number) for job in jobs if job.awaited_in == step]}


def offload_state(driver: Driver, name: Callable[[int], str]) -> dict[str, Any]:
    """Return the skipped requests, the number of used host slots, and the blocks whose release is deferred."""
    host, sequences = driver.engine.host, driver.engine.external.sequences
    return {
        "skipped": [name(number) for number in driver.skipped()],
        "host_used": int(host.settings.num_slots - host.state.num_free),
        "deferred": [[int(sequences[number].free_after), driver.table(number)] for number in driver.deferred()],
    }
