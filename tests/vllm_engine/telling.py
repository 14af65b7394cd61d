"""What vLLM's scheduler decides, with the copies between GPU and host of an offload.

Imported by processes that have vLLM's files on their path (`engine_process`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvsim.conformance import vllm_driver
from kvsim.conformance.vllm_driver import Record


class OffloadDecisions(vllm_driver.SchedulerDecisions):
    """Tells everything that one scheduler with an offload does from now on, through `emit`."""

    def __init__(self, scheduler: Any, emit: Callable[[Record], None]) -> None:
        super().__init__(scheduler, emit)
        self._jobs: Record = {}
        self._build = scheduler.connector.build_connector_meta
        scheduler.connector.build_connector_meta = self._built

    def _built(self, output: Any) -> Any:
        """Copies that a step begins, and those that it waits for."""
        metadata = self._build(output)
        self._jobs = {"flush": sorted(metadata.jobs_to_flush)}
        for kind in ("load_jobs", "store_jobs"):
            self._jobs[kind] = {
                str(number): [job.req_id, _ids(job.src_spec), _ids(job.dst_spec)]
                for number, job in getattr(metadata, kind).items()
            }
        return metadata

    def _copies(self) -> Record:
        return self._jobs

    def _state(self) -> Record:
        scheduler = self._scheduler
        host = scheduler.connector.connector_scheduler.manager
        return super()._state() | {
            "host_used": host._num_allocated_blocks - len(host._free_list),
            "deferred": [[due, _block_ids(blocks)] for due, blocks in scheduler.deferred_frees],
        }


def in_order_of_keys(manager: Any) -> None:
    """Have vLLM's host memory hear of the blocks of a copy in the order in which they were asked for.

    It goes through a set of them, whose order changes from process to process.
    """
    asked: dict[frozenset[bytes], list[bytes]] = {}
    prepare_store, prepare_load = manager.prepare_store, manager.prepare_load
    complete_store, complete_load = manager.complete_store, manager.complete_load

    def prepared_store(keys: Any, *arguments: Any) -> Any:
        prepared = prepare_store(keys, *arguments)
        if prepared is not None:
            asked[frozenset(prepared.keys_to_store)] = list(prepared.keys_to_store)
        return prepared

    def prepared_load(keys: Any, *arguments: Any) -> Any:
        asked[frozenset(keys)] = list(keys)
        return prepare_load(keys, *arguments)

    manager.prepare_store, manager.prepare_load = prepared_store, prepared_load
    manager.complete_store = lambda keys, *more, **named: complete_store(asked[frozenset(keys)], *more, **named)
    manager.complete_load = lambda keys, *more, **named: complete_load(asked[frozenset(keys)], *more, **named)


def _ids(spec: Any) -> list[int]:
    return [int(block) for block in spec.block_ids]


def _block_ids(blocks: Any) -> list[int]:
    return [block.block_id for block in blocks]
