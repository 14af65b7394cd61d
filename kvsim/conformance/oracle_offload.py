"""An oracle with vLLM's native offload: what it says, and its copy engine, which takes a number of steps for a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.conformance.oracle_files import OracleWorkload
    from kvsim.engine.driver import Driver


class CopyEngine:
    """Copies that take so many steps each.

    A load is begun by the step that decides it, a store by the step after; one that a step waits for ends with it.
    """

    def __init__(self, workload: OracleWorkload) -> None:
        self._load_steps, self._store_steps = workload.load_steps, workload.store_steps
        self._last_step: dict[int, int] = {}
        """The step with whose output a copy is reported, by record, in the order in which copies were begun."""
        self._stores: list[int] = []

    def run_step(self, driver: Driver) -> None:
        """Run the step that was scheduled last, and say which copies are reported with its output."""
        step, jobs = int(driver.engine.state.num_scheduled), driver.jobs()
        begun = {record: job for record, job in jobs.items() if job.begun_in == step}
        self._last_step |= dict.fromkeys(self._stores, step + self._store_steps - 1)
        self._last_step |= {record: step for record in self._last_step if jobs[record].flushed_in == step}
        self._last_step |= {record: step + self._load_steps - 1 for record, job in begun.items() if job.is_load}
        self._stores = [record for record, job in begun.items() if not job.is_load]
        done = [record for record, last in self._last_step.items() if last <= step]
        for record in done:
            del self._last_step[record]
            driver.report(record, step)


def jobs_begun(driver: Driver, name: Callable[[int], str]) -> dict[str, Any]:
    """The copies that the step scheduled last begins, by number, and those that it waits for."""
    step, jobs = driver.engine.state.num_scheduled, driver.jobs().values()
    told: dict[str, dict[str, Any]] = {"load_jobs": {}, "store_jobs": {}}
    for job in jobs:
        if job.begun_in == step:
            slots, blocks = driver.slots(job), driver.blocks_of_job(job)
            copied = [slots, blocks] if job.is_load else [blocks, slots]
            told["load_jobs" if job.is_load else "store_jobs"][str(job.number)] = [name(job.sequence), *copied]
    return told | {"flush": [int(job.number) for job in jobs if job.flushed_in == step]}


def offload_state(driver: Driver, name: Callable[[int], str]) -> dict[str, Any]:
    """Who was set aside, how many slots are used, and which blocks are not free yet."""
    host = driver.engine.host
    return {
        "skipped": [name(node) for node in driver.skipped()],
        "host_used": int(host.settings.num_slots - host.state.num_free),
        "deferred": [[int(host.asked[node].free_after), driver.table(node)] for node in driver.deferred()],
    }
