"""Scheduler classes that record: name one on a vLLM server, and every decision is recorded.

    KVSIM_RECORD=runs/today vllm serve MODEL --scheduler-cls kvsim.capture.vllm.RecordingScheduler

Two environment variables set the destination: `KVSIM_RECORD` is a folder, `KVSIM_PUBLISH` a local address for `kvsim
tui --attach`. Without them, the class is vLLM's own scheduler. Each data-parallel rank has a folder of its own in that
folder: `0`, `1` and so on.
"""

from __future__ import annotations

import atexit
import json
import logging
import multiprocessing.util
import os
from collections.abc import Callable
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from kvsim.capture.draft_watch import draft_settings, speculates, speculative_config_of
from kvsim.capture.image_watch import encoder_settings
from kvsim.capture.kv_cache_specs import layout_of
from kvsim.capture.machine_id import machine
from kvsim.capture.publish import Publisher
from kvsim.capture.release_settings import newer_settings, retention_interval
from kvsim.capture.scheduler_watch import SchedulerRecorder
from kvsim.capture.sinks import Fanout, FileSink, LogSink
from kvsim.errors import KvsimError, MissingExtraError
from kvsim.kv_groups import KVCacheLayout
from kvsim.models.huggingface import from_fields
from kvsim.recording.model import FORMAT, VERSION

try:
    import torch
    import vllm
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
except ImportError as error:
    raise MissingExtraError("Recording vLLM", "vllm") from error

log = logging.getLogger("kvsim")

_AT_EXIT = 10
"""Priority among the exit handlers of multiprocessing: the recording ends before the threads of queues are joined."""


class _RecordingHooks:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kvsim = SchedulerRecorder(self, vllm.__version__)
        self.kvsim_meta: dict[str, Any] = {}
        self.kvsim_updates = False
        try:
            self.kvsim_meta = describe(self)
        except KvsimError:
            # If a recording was asked for, `check` fails below for the same reason, and warns.
            log.info("kvsim: this engine cannot be recorded.", exc_info=True)
        except Exception:
            log.exception("kvsim: nothing is recorded because of a defect; the engine goes on.")
            return
        sink = sink_from_environment(self.kvsim.check, _rank_of(self.parallel_config))  # type: ignore[attr-defined]
        if sink is None:
            return
        self.kvsim.start(sink, self.kvsim_meta)
        atexit.register(self.kvsim.stop)
        # An engine in a multiprocessing child may exit without running atexit handlers.
        multiprocessing.util.Finalize(None, self.kvsim.stop, exitpriority=_AT_EXIT)

    def add_request(self, request: Any) -> None:
        super().add_request(request)  # type: ignore[misc]
        self.kvsim.arrived(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        self.kvsim.scheduling()
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        self.kvsim.scheduled(output)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        self.kvsim.updating(scheduler_output, model_runner_output)
        self.kvsim_updates = True
        try:
            outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        finally:
            self.kvsim_updates = False
        self.kvsim.updated(scheduler_output)
        return outputs

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        super().update_draft_token_ids(draft_token_ids)  # type: ignore[misc]
        self.kvsim.proposed(draft_token_ids.req_ids)

    def _connector_finished(self, request: Any) -> Any:
        delays, parameters = super()._connector_finished(request)  # type: ignore[misc]
        if delays:
            self.kvsim.kept(request)
        return delays, parameters

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        if self.kvsim_updates:  # a request whose load failed ends within the update
            return super().finish_requests(*args, **kwargs)  # type: ignore[misc]
        self.kvsim.updating()
        finished = super().finish_requests(*args, **kwargs)  # type: ignore[misc]
        self.kvsim.aborted()
        return finished

    def _drain_deferred_frees(self) -> None:
        before = len(self.deferred_frees)  # type: ignore[attr-defined]
        super()._drain_deferred_frees()  # type: ignore[misc]
        self.kvsim.freed(before - len(self.deferred_frees))  # type: ignore[attr-defined]

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self.kvsim.preempted(request)
        return super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]


class RecordingScheduler(_RecordingHooks, AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler, its default, with recording."""


class RecordingSyncScheduler(_RecordingHooks, Scheduler):  # type: ignore[misc]
    """vLLM's synchronous scheduler with recording, for `--no-async-scheduling`."""


def _rank_of(parallel: Any) -> int | None:
    """Return the index of a data-parallel rank; None for an engine without other ranks.

    Each rank of a model without experts is a separate engine, whose settings do not name other ranks. Only the ports
    that vLLM has reserved for all ranks show that there are others.
    """
    has_others = parallel.data_parallel_size > 1 or bool(getattr(parallel, "_data_parallel_master_port_list", None))
    return int(parallel.data_parallel_index) if has_others or parallel.data_parallel_index else None


def sink_from_environment(check: Callable[[], None], rank: int | None = None) -> LogSink | None:
    """Return a sink for the destinations in the environment; None without any, or if `check` raises a KvsimError.

    `rank` is the index of a data-parallel rank, with a folder of its own in the server's; None without ranks.
    """
    sinks: list[LogSink] = []
    folder, address = os.environ.get("KVSIM_RECORD"), os.environ.get("KVSIM_PUBLISH")
    if not folder and not address:
        return None
    try:
        check()
    except KvsimError as error:
        log.warning("kvsim: nothing is recorded: %s", error)
        return None
    if folder:
        try:
            sinks.append(FileSink(Path(folder) if rank is None else Path(folder, str(rank))))
        except OSError as error:
            log.warning("kvsim: nothing is recorded, %s cannot be made: %s", folder, error.strerror)
    if address:
        try:
            sinks.append(Publisher(address))
        except (OSError, KvsimError) as error:
            log.warning("kvsim: nothing is published at %s: %s", address, error)
    return Fanout(sinks) if sinks else None


def describe(scheduler: Any) -> dict[str, Any]:
    """Return the content of `meta.json` for a recording of this engine."""
    config = scheduler.vllm_config
    cache, model = config.cache_config, config.model_config
    pool = scheduler.kv_cache_manager.block_pool
    layout = layout_of(scheduler.kv_cache_config, pool.hash_block_size)
    parallel = config.parallel_config
    served = {
        "kv_cache_dtype": str(cache.cache_dtype),
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
    }
    shape = _shape(model, served, layout)
    if layout.is_uniform and speculates(scheduler):
        shape |= _draft_layers(layout, scheduler.block_size, shape)
    return {
        "format": FORMAT,
        "version": VERSION,
        "source": "vllm",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "engine": _engine(scheduler, served, layout.hash_block_size),
        "model": shape,
        "policy": {
            "name": "paged",
            "block_size": scheduler.block_size if layout.is_uniform else cache.block_size,
            "enable_prefix_caching": bool(cache.enable_prefix_caching),
        }
        | _features(scheduler),
        "pool": {
            "unit_tokens": scheduler.block_size,
            "num_units": pool.num_gpu_blocks - 1,
            "first_unit": 1,
            # In a pipeline, the layout is that of one stage, and all layers are of one kind.
            "bytes_per_unit": layout.bytes_per_block
            if parallel.pipeline_parallel_size == 1
            else scheduler.block_size * shape["kv_bytes_per_token"],
        },
        "kv_cache_groups": [group.as_meta() for group in layout.groups],
        **machine(),
        "created": date.today().isoformat(),
        "notes": "Block 0 is vLLM's null block and is not in the pool.",
    }


def _draft_layers(layout: KVCacheLayout, block_size: int, shape: dict[str, Any]) -> dict[str, int]:
    """Return `num_draft_layers`, those with KV in the pool, and `draft_bytes_per_token`; empty without such layers."""
    draft_bytes = layout.bytes_per_block // block_size - shape["kv_bytes_per_token"]
    num_layers = sum(group.num_layers for group in layout.groups) - shape["num_layers"]
    return {"num_draft_layers": num_layers, "draft_bytes_per_token": draft_bytes} if num_layers > 0 else {}


def _features(scheduler: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if speculates(scheduler):
        settings["speculative_config"] = json.dumps(speculative_config_of(scheduler), sort_keys=True)
    if (lora := scheduler.lora_config) is not None:
        settings |= {"enable_lora": True, "max_loras": lora.max_loras, "max_lora_rank": lora.max_lora_rank}
    return settings


def _engine(scheduler: Any, served: dict[str, Any], hash_block_size: int) -> dict[str, Any]:
    config = scheduler.vllm_config
    cache, scheduling, model = config.cache_config, config.scheduler_config, config.model_config
    return {
        "name": "vllm",
        "version": vllm.__version__,
        "torch": torch.__version__,
        "scheduler": _class_in_vllm(type(scheduler)).__name__,
        "async_scheduling": bool(scheduling.async_scheduling),
        "enforce_eager": bool(model.enforce_eager),
        "max_model_len": model.max_model_len,
        "max_num_seqs": scheduling.max_num_seqs,
        "max_num_batched_tokens": scheduling.max_num_batched_tokens,
        "enable_chunked_prefill": bool(scheduling.enable_chunked_prefill),
        "long_prefill_token_threshold": scheduling.long_prefill_token_threshold,
        "enable_prefix_caching": bool(cache.enable_prefix_caching),
        **served,
        **_data_parallel(config.parallel_config),
        "v2_model_runner": bool(getattr(scheduler, "use_v2_model_runner", False)),
        "hash_block_size": hash_block_size,
        "gpu_memory_utilization": cache.gpu_memory_utilization,
        "policy": scheduling.policy,
        **newer_settings(scheduler),
        "prefix_cache_retention_interval": retention_interval(scheduler),
        **(draft_settings(scheduler) if speculates(scheduler) else {}),
        **encoder_settings(scheduler),
        "scheduler_reserve_full_isl": bool(scheduling.scheduler_reserve_full_isl),
        "load_format": str(config.load_config.load_format),
        "in_process": multiprocessing.parent_process() is None,
    }


def _class_in_vllm(recording: type) -> type:
    """Return the class of vLLM that the scheduler class `recording` extends. A user's class may be between the two."""
    order = recording.__mro__
    return order[order.index(_RecordingHooks) + 1]


def _data_parallel(parallel: Any) -> dict[str, Any]:
    rank = _rank_of(parallel)
    if rank is None:
        return {}
    return {
        "data_parallel_size": parallel.data_parallel_size,
        "data_parallel_rank": rank,
        "enable_expert_parallel": bool(parallel.enable_expert_parallel),
    }


def _shape(model: Any, served_as: dict[str, Any], layout: KVCacheLayout) -> dict[str, Any]:
    """Return the shape of the model: from its configuration, or if kvsim cannot read that, from the engine.

    `served_as` has the arguments of `Model.served`. If `layout` has several kinds of layers, the engine's shape lacks
    the number and size of KV heads, so that readers do not take the model for a plain decoder.
    """
    text, name = model.hf_text_config, Path(model.model).name
    dtype = str(model.dtype).removeprefix("torch.")
    try:
        fields = model.hf_config.to_dict() | {"torch_dtype": dtype}
        read = from_fields(fields, name=name, where="the model's configuration", longest=model.max_model_len)
        served = read.served(**served_as)
    except (KvsimError, TypeError, ValueError):
        log.info("kvsim: the model's configuration cannot be read; its shape is taken from the engine.", exc_info=True)
    else:
        stated = {key: value for key, value in asdict(served).items() if value not in (None, (), "")}
        return stated | {"kv_bytes_per_token": served.kv_bytes_per_token}
    shape = {
        "name": name,
        "num_layers": text.num_hidden_layers,
        "hidden_size": text.hidden_size,
        "num_attention_heads": text.num_attention_heads,
        "intermediate_size": text.intermediate_size,
        "vocab_size": text.vocab_size,
        "max_position_embeddings": text.max_position_embeddings,
        "tie_word_embeddings": bool(text.tie_word_embeddings),
        "dtype": dtype,
    }
    if layout.is_uniform:
        [group] = layout.groups
        shape |= {
            "num_kv_heads": model.get_total_num_kv_heads(),
            "head_dim": model.get_head_size(),
            # The size of vLLM's own pages has the scales of each cache type, and heads that several GPUs hold.
            "kv_bytes_per_token": text.num_hidden_layers * group.page_bytes // group.block_size,
        }
    return shape
