"""Watch vLLM's native offload inside its scheduler: the copies that it decides, waits for and receives reports of.

The scheduler's decisions depend on the time at which a copy is reported. The order of evictions depends on the order in
which its blocks become idle. In vLLM 0.25.1 that order is a set's inside one copy, so both are recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvsim.errors import RecordingError


class OffloadWatch:
    """Reports the actions of one scheduler's offload. `report` takes the fields of an event."""

    def __init__(self, scheduler: Any, report: Callable[..., None]) -> None:
        """Watch the offload of `scheduler`, which must have one."""
        self._scheduler, self._report = scheduler, report
        self._connector = scheduler.connector.connector_scheduler
        self._first_job = 0
        self._watch_copies()

    def settings(self) -> dict[str, Any]:
        """Return the settings of the offload for the policy of a recording."""
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
            RecordingError: host memory holds blocks already, and it is not known which.
        """
        manager = self._connector.manager
        if self._connector._jobs or manager._num_allocated_blocks > len(manager._free_list):
            raise RecordingError("host memory holds blocks already; record from the engine's start on.")
        self._first_job = self._connector._job_counter

    def scheduled(self, output: Any, rows: dict[str, int]) -> None:
        """Report the copies that a step begins, and those that it has to wait for."""
        metadata = output.kv_connector_metadata
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
        """Report ended copies before the connector processes them."""
        connector = self._connector
        update = connector.update_connector_output

        def watched_update(output: Any) -> None:
            metadata = output.kv_connector_worker_meta
            for number, count in (metadata.completed_jobs if metadata else {}).items():
                job = connector._jobs.get(number)
                if job is not None and job.pending_count == count:
                    policy = connector.manager._policy
                    self._report("copied", self._number(number), [policy.get(key).block_id for key in job.keys])
            update(output)

        connector.update_connector_output = watched_update


def has_offload(scheduler: Any) -> bool:
    """Tell whether the scheduler has vLLM's native offload as vLLM 0.25 has it; other releases count otherwise."""
    connector = getattr(getattr(scheduler, "connector", None), "connector_scheduler", None)
    config = getattr(connector, "config", None)
    return hasattr(connector, "_block_id_to_pending_jobs") and hasattr(config, "block_size_factor")


def _ids(spec: Any) -> list[int]:
    return [int(block) for block in spec.block_ids]
