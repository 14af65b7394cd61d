"""Watch vLLM's native offload from inside its scheduler: the copies that it decides, waits for and hears of.

What the scheduler decides depends on when a copy is reported and, for the order of evictions, on the order in which
its blocks become idle. Inside one copy vLLM 0.25.1 has no order of its own (it goes through a set), so both are written
down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from kvsim.errors import RecordingError


class OffloadWatch:
    """Reports what the offload of one scheduler does. `report` takes the words of an event."""

    def __init__(self, scheduler: Any, report: Callable[..., None]) -> None:
        """Watch the offload of `scheduler`, which has one."""
        self._scheduler, self._report = scheduler, report
        self._connector = scheduler.connector.connector_scheduler
        self._first_job = 0
        self._deferred: deque[tuple[int, int, int]] = deque()  # row, blocks, cached blocks
        self._watch_copies()

    def settings(self) -> dict[str, Any]:
        """What a recording says of the offload, beside the other settings of the policy."""
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
        """A recording begins.

        Raises:
            RecordingError: host memory holds blocks already, and it is not known which.
        """
        manager = self._connector.manager
        if self._connector._jobs or manager._num_allocated_blocks > len(manager._free_list):
            raise RecordingError("host memory holds blocks already; record from the engine's start on.")
        self._first_job = self._connector._job_counter
        self._deferred.clear()

    def scheduled(self, output: Any, rows: dict[str, int]) -> None:
        """A step was scheduled: which copies it begins, and which it has to wait for."""
        metadata = output.kv_connector_metadata
        for is_load, jobs in ((True, metadata.load_jobs), (False, metadata.store_jobs)):
            for number, job in jobs.items():
                on_host, on_gpu = (job.src_spec, job.dst_spec) if is_load else (job.dst_spec, job.src_spec)
                row = rows[job.req_id]
                self._report("copy", self._number(number), is_load, row, _ids(on_gpu), _ids(on_host))
        awaited = sorted(self._number(number) for number in metadata.jobs_to_flush if number >= self._first_job)
        if awaited:
            self._report("await", awaited)

    def deferring(self, row: int, num_blocks: int, num_cached: int) -> None:
        """A request lost a table whose blocks are not free yet."""
        self._deferred.append((row, num_blocks, num_cached))

    def freed(self, num_tables: int) -> None:
        """The blocks of the tables that were lost first are free now."""
        for _ in range(num_tables):
            self._report("release", *self._deferred.popleft())

    def _number(self, job: int) -> int:
        return job - self._first_job

    def _watch_copies(self) -> None:
        """Put a listener before the connector hears which copies have ended."""
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
    """Whether the connector of `scheduler`, if it has one, is vLLM's native offload."""
    connector = getattr(scheduler, "connector", None)
    return hasattr(getattr(connector, "connector_scheduler", None), "_block_id_to_pending_jobs")


def _ids(spec: Any) -> list[int]:
    return [int(block) for block in spec.block_ids]
