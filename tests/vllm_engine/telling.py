"""What vLLM's scheduler decides, told in the records of an oracle: one for every step scheduled and every output.

Imported by processes that have vLLM's files on their path (`engine_process`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import vllm

Record = dict[str, Any]


class Teller:
    """Tells everything that one scheduler does from now on, through `emit`."""

    def __init__(self, scheduler: Any, emit: Callable[[Record], None]) -> None:
        self._scheduler, self._emit = scheduler, emit
        self._in_groups = False
        """Whether tables are told by group: an oracle of one group of full attention tells one."""
        self._numbers: dict[int, int] = {}
        self._num_steps = 0
        self._preempted: list[str] = []
        self._jobs: Record = {}
        self._schedule, self._update = scheduler.schedule, scheduler.update_from_output
        self._preempt = scheduler._preempt_request
        scheduler.schedule, scheduler.update_from_output = self._scheduled, self._updated
        scheduler._preempt_request = self._preempting
        if scheduler.connector is not None:
            self._build = scheduler.connector.build_connector_meta
            scheduler.connector.build_connector_meta = self._built

    def begin(self, *, in_groups: bool) -> None:
        """Tell how the engine is set up."""
        scheduler, pool = self._scheduler, self._scheduler.kv_cache_manager.block_pool
        self._in_groups = in_groups
        told = {
            "kind": "meta",
            "vllm": vllm.__version__,
            "num_blocks": pool.num_gpu_blocks,
            "max_num_running_reqs": scheduler.max_num_running_reqs,
            "max_num_scheduled_tokens": scheduler.max_num_scheduled_tokens,
            "max_model_len": scheduler.max_model_len,
            "watermark_blocks": getattr(scheduler.kv_cache_manager, "watermark_blocks", 0),
            "free0": pool.get_num_free_blocks(),
        }
        if in_groups:
            told |= {
                "groups": [group.kv_cache_spec.block_size for group in scheduler.kv_cache_config.kv_cache_groups],
                "scheduler_block_size": scheduler.block_size,
                "hash_block_size": pool.hash_block_size,
                "mamba_align_split": scheduler.need_mamba_block_aligned_split,
            }
        else:
            told |= {
                "block_size": scheduler.block_size,
                "reserve_full_isl": scheduler.scheduler_reserve_full_isl,
            }
        self._emit(told)

    def _preempting(self, request: Any, *arguments: Any, **more: Any) -> Any:
        self._preempted.append(request.request_id)
        return self._preempt(request, *arguments, **more)

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

    def _scheduled(self, *arguments: Any, **more: Any) -> Any:
        self._preempted = []
        output = self._schedule(*arguments, **more)
        self._numbers[id(output)] = self._num_steps
        cached, requests = output.scheduled_cached_reqs, self._scheduler.requests
        given = {each.req_id: each for each in output.scheduled_new_reqs}
        # One model runner is handed resumed requests as if they were new.
        resumed = {*cached.resumed_req_ids, *(name for name in given if requests[name].num_preemptions)}
        none: tuple[list[int], ...] = tuple([] for _ in self._scheduler.kv_cache_config.kv_cache_groups)
        tables = {name: blocks or none for name, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True)}
        tables |= {name: each.block_ids for name, each in given.items()}
        self._emit(
            {
                "kind": "schedule",
                "i": self._num_steps,
                "scheduled": [[name, tokens] for name, tokens in output.num_scheduled_tokens.items()],
                "total": output.total_num_scheduled_tokens,
                "new": [name for name in given if name not in resumed],
                "new_computed": {name: each.num_computed_tokens for name, each in given.items()},
                "resumed": sorted(resumed),
                "new_block_ids": {name: self._told(blocks) for name, blocks in tables.items()},
                "preempted": self._preempted,
                "finished_ids_sent": sorted(output.finished_req_ids),
            }
            | self._jobs
            | self._state()
        )
        self._num_steps += 1
        return output

    def _updated(self, output: Any, sampled: Any) -> Any:
        requests = self._scheduler.requests
        before = {name: requests[name].num_output_tokens for name in output.num_scheduled_tokens if name in requests}
        outputs = self._update(output, sampled)
        answers = [each for of_client in (outputs or {}).values() for each in of_client.outputs]
        told = {
            "kind": "update",
            "i": self._numbers.pop(id(output)),
            "tokens": {each.request_id: len(each.new_token_ids) for each in answers if each.new_token_ids},
            "finished": [
                [each.request_id, str(each.finish_reason)] for each in answers if each.finish_reason is not None
            ],
        }
        self._emit(told | ({} if self._in_groups else {"prev_outputs": before}) | self._state())
        return outputs

    def _state(self) -> Record:
        scheduler, manager = self._scheduler, self._scheduler.kv_cache_manager
        pool, requests = manager.block_pool, scheduler.requests
        state = {
            "running": [request.request_id for request in scheduler.running],
            "waiting": [request.request_id for request in scheduler.waiting],
            "skipped": [request.request_id for request in _skipped(scheduler)],
            "free": pool.get_num_free_blocks(),
            "usage": pool.get_usage(),
            "cached_keys": len(pool.cached_block_hash_to_block),
            "blocks": {
                name: self._told(manager.get_block_ids(name))
                for name in requests
                if any(manager.coordinator.get_blocks(name))
            },
            "computed": {name: request.num_computed_tokens for name, request in requests.items()},
            "placeholders": {
                name: request.num_output_placeholders
                for name, request in requests.items()
                if request.num_output_placeholders
            },
            "free_queue": [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
        }
        if self._in_groups:
            managers = manager.coordinator.single_type_managers
            state["keyed"] = [block.block_id for block in pool.blocks if block.block_hash is not None]
            state["ncached"] = {name: [each.num_cached_block.get(name) for each in managers] for name in requests}
        if scheduler.connector is not None:
            host = scheduler.connector.connector_scheduler.manager
            state["host_used"] = host._num_allocated_blocks - len(host._free_list)
            state["deferred"] = [[due, _block_ids(blocks)] for due, blocks in scheduler.deferred_frees]
        return state

    def _told(self, tables: Any) -> Any:
        return [list(table) for table in tables] if self._in_groups else list(tables[0])


def _skipped(scheduler: Any) -> Any:
    """The queue that goes before `waiting`: of skipped requests, and from vLLM 0.31 on of those that hold blocks."""
    return scheduler.skipped_waiting if hasattr(scheduler, "skipped_waiting") else scheduler.kv_holding_waiting


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
