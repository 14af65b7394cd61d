"""Recorder of the copies between GPU and host memory that vLLM's native offload makes.

A recording needs them because later decisions depend on two things that cannot be computed: when a copy is reported as
complete, and the order in which the blocks of a copy become idle. The host evicts in this order; vLLM 0.25.1 takes it
from the iteration order of a set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvsim.errors import RecordingError


class OffloadWatch:
    """Reporter of the copies of one scheduler as events.

    - `report("copy", copy, is_load, row, gpu_blocks, host_blocks)`: a copy of the request in `row` begins.
    - `report("await", copies)`: the step waits for these copies.
    - `report("copied", copy, host_blocks)`: a copy is complete.

    Copies are numbered from 0.
    """

    def __init__(self, scheduler: Any, report: Callable[..., None]) -> None:
        """Watch the offload of `scheduler`; `has_offload(scheduler)` must be true."""
        self._scheduler, self._report = scheduler, report
        self._connector = scheduler.connector.connector_scheduler
        self._first_job = 0
        """vLLM's number of the copy that the recording numbers 0."""
        self._watch_copies()

    def settings(self) -> dict[str, Any]:
        """Return the offload settings by kvsim's names, for the policy in a recording's metadata."""
        manager, config = self._connector.manager, self._connector.config
        block_size = self._scheduler.block_size
        return {
            "host_blocks": manager._num_blocks,
            "kv_offloading_block_size": config.block_size_factor * block_size,
            "kv_offloading_eviction": "arc" if hasattr(manager._policy, "t1") else "lru",
            "kv_offloading_prompt_only": bool(config.offload_prompt_only),
            "store_threshold": int(manager.store_threshold),
        }

    def start(self) -> None:
        """Begin a recording.

        Raises:
            RecordingError: host memory is not empty.
        """
        manager = self._connector.manager
        if self._connector._jobs or manager._num_allocated_blocks > len(manager._free_list):
            raise RecordingError("host memory holds blocks already; record from the engine's start on.")
        self._first_job = self._connector._job_counter

    def scheduled(self, output: Any, rows: dict[str, int]) -> None:
        """Report the copies that a step begins, and those for which it waits. `rows` has rows by request name."""
        metadata = output.kv_connector_metadata  # vLLM calls a copy a job
        for is_load, jobs in ((True, metadata.load_jobs), (False, metadata.store_jobs)):
            for number, job in jobs.items():
                on_host, on_gpu = (job.src_spec, job.dst_spec) if is_load else (job.dst_spec, job.src_spec)
                row = rows[job.req_id]
                self._report("copy", self._number(number), is_load, row, _ids(on_gpu), _ids(on_host))
        awaited = sorted(self._number(number) for number in metadata.jobs_to_flush if number >= self._first_job)
        if awaited:
            self._report("await", awaited)

    def _number(self, job: int) -> int:
        return job - self._first_job

    def _watch_copies(self) -> None:
        """Wrap the connector's update, to report completed copies before the connector forgets them."""
        connector = self._connector
        update = connector.update_connector_output

        def watched_update(output: Any) -> None:
            metadata = output.kv_connector_worker_meta
            for number, count in (metadata.completed_jobs if metadata else {}).items():
                job = connector._jobs.get(number)
                # A copy is complete when all workers that still had to report it have done so.
                if job is not None and job.pending_count == count:
                    policy = connector.manager._policy
                    self._report("copied", self._number(number), [policy.get(key).block_id for key in job.keys])
            update(output)

        connector.update_connector_output = watched_update


def has_offload(scheduler: Any) -> bool:
    """Tell whether the scheduler has the native offload of vLLM 0.24 and 0.25, which kvsim can record."""
    connector = getattr(getattr(scheduler, "connector", None), "connector_scheduler", None)
    config = getattr(connector, "config", None)
    return hasattr(connector, "_block_id_to_pending_jobs") and hasattr(config, "block_size_factor")


def _ids(spec: Any) -> list[int]:
    return [int(block) for block in spec.block_ids]
