"""Driver of vLLM's own engine, scheduler and KV-cache manager on a CPU with a fake model. Every decision is recorded.

`kvsim conform` runs this script with the interpreter of an environment with vLLM, so it imports no module of kvsim. The
first output line names the release. Each input line is an order: a JSON object with a `workload` in the format of
`golden.json`. It is answered with the records of an oracle and a closing line: `{"kind": "done"}` or `{"kind":
"failed", "error": ...}`.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import importlib.machinery
import inspect
import json
import logging
import os
import sys
import tempfile
import traceback
import types
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

_NOT_NEEDED = (
    *("xgrammar", "outlines_core", "llguidance", "lm_format_enforcer", "openai_harmony", "partial_json_parser"),
    *("fastapi", "starlette", "prometheus_fastapi_instrumentator", "model_hosting_container_standards", "mcp"),
    *("mistral_common", "gguf", "compressed_tensors", "depyf", "ray", "flashinfer", "ijson", "cbor2", "einops"),
)
"""Modules that vLLM imports but its scheduler does not need: for grammars, the front end, Ray and checkpoints."""


class StandIns:
    """Import finder that provides an empty module for each module in `_NOT_NEEDED`."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of an empty module for a name in `_NOT_NEEDED` or a submodule; None for other names."""
        is_stood_in = name.partition(".")[0] in _NOT_NEEDED
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_stood_in else None  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return a module in which every name is a class."""
        module = types.ModuleType(spec.name)
        module.__getattr__ = _stand_in  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Execute nothing."""


def _stand_in(attribute: str) -> type:
    """Return a class named `attribute` whose objects take any arguments and have any attribute."""
    if attribute.startswith("__"):
        raise AttributeError(attribute)
    return type(attribute, (), {"__init__": lambda *_, **__: None, "__getattr__": lambda _, name: name})


sys.meta_path.append(StandIns())  # the last finder: only for modules that are not installed
os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
if __name__ == "__main__":
    gc.disable()  # importing vLLM creates a million objects
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
    _ANSWERS, sys.stdout = sys.stdout, sys.stderr  # keeps the output of libraries out of the records

importlib.import_module("vllm")  # first, because it may be missing, and importing torch takes seconds

import torch
import vllm.config.vllm
import vllm.envs
import vllm.platforms
from vllm import ModelRegistry
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import ModelRunnerOutput

Workload = dict[str, Any]
Record = dict[str, Any]

STOP_TOKEN = 7
"""Id of the stop token of every request."""
MOST_CALLS = 4_000
"""Limit for the engine calls for a workload. A request that has not ended after them is taken to wait forever."""
_HOPELESS_CALLS = 100
"""Number of consecutive engine calls without a change after which no later call can change anything."""
_PLENTY = 1 << 40
_FIRST_SHARED, _FIRST_ANSWER, _TOKENS_OF_A_REQUEST = 900_000_000, 500_000_000, 1_000_000
"""First token ids of shared prefixes and of answers, and the distance between the ids of two consecutive requests."""
_LONGEST_MODEL = 131_072
_DTYPE = torch.bfloat16
_STATE_PAGE = 4096
_RETENTION = "prefix_cache_retention_interval"
_RETENTION_VARIABLE = f"VLLM_{_RETENTION.upper()}"
"""Environment variable of vLLM that became a setting in release 0.29."""
_RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
_MEMORY_CHECKS = ("_check_enough_kv_cache_memory", "check_enough_kv_cache_memory")
_SIZING = ("kv_cache_utils", "kv_cache_planning", "kv_cache_config_builder")
"""Modules of `vllm.v1.core`, one of which has vLLM's check of the memory, depending on the release.

The driver turns this check off, because it refuses pools as small as those of the workloads.
"""
_PLAIN, _COMPRESSED = "LlamaForCausalLM", "DeepseekV2ForCausalLM"
ARCHITECTURES = _PLAIN, _COMPRESSED
"""vLLM's names of the fake models' architectures."""
_CONFIG = {
    "architectures": [_PLAIN],
    "model_type": "llama",
    "vocab_size": 32_000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": _LONGEST_MODEL,
    "torch_dtype": "bfloat16",
}
_LATENTS = _CONFIG | {
    "architectures": [_COMPRESSED],
    "model_type": "deepseek_v2",
    "kv_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "q_lora_rank": None,
    "n_routed_experts": 0,
    "first_k_dense_replace": 2,
}


class _Decoder(torch.nn.Module):
    supports_pp = True

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        raise NotImplementedError

    def embed_input_ids(self, input_ids: Any) -> Any:
        raise NotImplementedError

    def forward(self, input_ids: Any, positions: Any, intermediate_tensors: Any = None) -> Any:
        raise NotImplementedError

    def compute_logits(self, hidden_states: Any) -> Any:
        raise NotImplementedError

    def make_empty_intermediate_tensors(self, batch_size: int, dtype: Any, device: Any) -> Any:
        raise NotImplementedError


def register_decoders() -> None:
    """Register models that compute nothing in place of vLLM's own, whose import would load kernels."""
    for architecture in ARCHITECTURES:
        ModelRegistry.register_model(architecture, type(architecture, (_Decoder,), {}))


# ---- the engine of a workload ---------------------------------------------------------------------------------------


def configure(workload: Workload, folder: Path, scheduler_cls: str | None = None) -> VllmConfig:
    """Return the configuration of a server, with those settings of `workload` that this release knows.

    The configuration of a model without weights is written to `folder`. `scheduler_cls` names another scheduler class
    than vLLM's own; None for vLLM's own.
    """
    block_size = workload.get("block_size", 16)
    longest = workload.get("max_model_len") or min((workload["num_blocks"] - 1) * block_size, _LONGEST_MODEL)
    _set_for_process(workload)
    _write_model(workload, folder)
    config = VllmConfig(
        model_config=ModelConfig(model=str(folder), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=longest),
        scheduler_config=_known(
            SchedulerConfig,
            max_num_seqs=workload.get("max_num_seqs", 128),
            max_num_batched_tokens=workload.get("max_num_batched_tokens", 2048),
            max_model_len=longest,
            is_encoder_decoder=False,
            # A threshold above the longest sequence has no effect, and vLLM refuses it from 0.27 on.
            long_prefill_token_threshold=min(workload.get("long_prefill_token_threshold", 0), longest),
            enable_chunked_prefill=workload.get("enable_chunked_prefill", True),
            policy=workload.get("policy", "fcfs"),
            watermark=workload.get("watermark", 0.0),
            scheduler_reserve_full_isl=workload.get("scheduler_reserve_full_isl", True),
            async_scheduling=workload.get("async_scheduling", True),
            scheduler_cls=scheduler_cls,
        ),
        cache_config=_known(
            CacheConfig,
            block_size=block_size,
            enable_prefix_caching=workload.get("enable_prefix_caching", True),
            num_gpu_blocks_override=workload["num_blocks"],
            **{_RETENTION: workload.get("retention_interval")},
        ),
        device_config=DeviceConfig(device="cpu"),
        parallel_config=ParallelConfig(),
    )
    # VllmConfig would derive these from a real model and from real devices.
    config.parallel_config.pipeline_parallel_size = workload.get("pipeline_parallel_size", 1)
    config.cache_config.mamba_cache_mode = workload.get("mamba_cache_mode", "none")
    config.scheduler_config.disable_hybrid_kv_cache_manager = bool(workload.get("disable_hybrid", False))
    return config


def _set_for_process(workload: Workload) -> None:
    new_runner = workload.get("v2_model_runner", True)
    vllm.config.vllm.HAS_TRITON = new_runner  # runner V2 needs Triton; 0.33 does not check this without a GPU
    os.environ.pop(_RUNNER_VARIABLE, None)
    if not new_runner:
        os.environ[_RUNNER_VARIABLE] = "0"
    for name in _SIZING:
        with suppress(ImportError):  # vLLM does not start with pools as small as those here
            module = importlib.import_module(f"vllm.v1.core.{name}")
            for check in _MEMORY_CHECKS:
                if hasattr(module, check):
                    setattr(module, check, lambda *_, **__: None)
    os.environ.pop(_RETENTION_VARIABLE, None)
    if workload.get("retention_interval") is not None and _RETENTION not in inspect.signature(CacheConfig).parameters:
        os.environ[_RETENTION_VARIABLE] = str(workload["retention_interval"])
    with suppress(AttributeError):
        vllm.envs.disable_envs_cache()


def _write_model(workload: Workload, folder: Path) -> None:
    """Write the model's `config.json`, with the layers of all groups.

    The model has multi-head latent attention (MLA) if all groups are of type `mla`.
    """
    entries = workload.get("groups", ())
    fields = _LATENTS if {entry["type"] for entry in entries} == {"mla"} else _CONFIG
    if entries:
        fields = fields | {"num_hidden_layers": sum(entry.get("num_layers", 1) for entry in entries)}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")


def _known(make: Callable[..., Any], **fields: Any) -> Any:
    known = inspect.signature(make).parameters
    return make(**{name: value for name, value in fields.items() if name in known})


def _filled(kind: Any, **fields: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        names = {each.name: each for each in dataclasses.fields(kind)}
        missing = (dataclasses.MISSING, dataclasses.MISSING)
        required = [name for name, each in names.items() if (each.default, each.default_factory) == missing]
    else:
        names = kind.__struct_fields__
        required = names[: len(names) - len(kind.__struct_defaults__)]
    make: Callable[..., Any] = kind
    return make(**dict.fromkeys(required) | {name: value for name, value in fields.items() if name in names})


def layers_of(workload: Workload, max_model_len: int) -> dict[str, KVCacheSpec]:
    """Return the KV-cache specs of the layers in `groups` by layer name, in order; by default, of full attention."""
    entries: list[dict[str, Any]] = workload.get("groups") or [
        {"type": "full", "num_layers": _CONFIG["num_hidden_layers"]}
    ]
    block_size = workload.get("block_size", 16)
    attention = [_attention(entry, block_size) for entry in entries]
    page_bytes = max((spec.page_size_bytes for spec in attention if spec is not None), default=_STATE_PAGE)
    mode = workload.get("mamba_cache_mode", "none")
    specs = [
        spec
        or MambaSpec(
            block_size=max_model_len if mode == "none" else entry.get("block_size", block_size),
            shapes=((16 + number,),),
            dtypes=(_DTYPE,),
            page_size_padded=page_bytes,
            mamba_cache_mode=mode,
        )
        for number, (entry, spec) in enumerate(zip(entries, attention, strict=True))
    ]
    order = workload.get("layer_order") or [
        number for number, entry in enumerate(entries) for _ in range(entry.get("num_layers", 1))
    ]
    return {f"model.layers.{place}.{entries[number]['type']}": specs[number] for place, number in enumerate(order)}


def _attention(entry: dict[str, Any], block_size: int) -> KVCacheSpec | None:
    is_mla = entry["type"] == "mla"
    common = {
        "block_size": entry.get("block_size", block_size),
        "num_kv_heads": 1 if is_mla else entry.get("num_kv_heads", 2),
        "head_size": entry.get("head_size", 64 if is_mla else 16),
        "dtype": _DTYPE,
        "indexes_kv_by_block_stride": entry.get("indexes_by_stride", False),
    }
    match entry["type"]:
        case "full":
            return _known(FullAttentionSpec, **common)
        case "mla":
            return _known(MLAAttentionSpec, **common)
        case "sliding_window":
            return _known(SlidingWindowSpec, **common, sliding_window=entry["window"])
        case "chunked_local":
            return _known(ChunkedLocalAttentionSpec, **common, attention_chunk_size=entry["window"])
        case "mamba":
            return None
        case other:
            raise ValueError(f"there are no layers of type {other}")


class FakeModel(Executor):
    """Executor for all stages of a model that computes nothing. Its outputs are the tokens in the workload."""

    def __init__(self, vllm_config: Any, workload: Workload) -> None:
        self._workload = workload
        super().__init__(vllm_config)

    def _init_executor(self) -> None:
        self.scheduler: Any = None
        self._number = {request["id"]: row for row, request in enumerate(self._workload["requests"], 1)}
        self._stop_at = {request["id"]: request.get("stop_at") for request in self._workload["requests"]}
        self._given: dict[str, int] = {}
        """Number of tokens of each request when it was last admitted. The model runner got these tokens."""
        self._num_answers = dict.fromkeys(self._number, 0)
        self.supported_tasks = ("generate",)

    @property
    def max_concurrent_batches(self) -> int:
        """Limit for the number of steps in flight. vLLM before 0.23 asks the executor for it."""
        stages = int(self.vllm_config.parallel_config.pipeline_parallel_size)
        return 2 if stages == 1 and self.vllm_config.scheduler_config.async_scheduling else stages

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        """Return True, so that the engine may schedule a step before it has the outputs of the last one."""
        return True

    def get_kv_cache_specs(self) -> list[Any]:
        """Return the KV-cache specs by layer, for each pipeline stage."""
        layers = layers_of(self._workload, self.vllm_config.model_config.max_model_len)
        stages, names = self._workload.get("pp", 1), list(layers)
        cuts = [len(names) * stage // stages for stage in range(stages + 1)]
        return [{name: layers[name] for name in names[cuts[at] : cuts[at + 1]]} for at in range(stages)]

    def determine_available_memory(self) -> list[int]:
        """Return, for each pipeline stage, more bytes than any pool needs."""
        return [_PLENTY] * self._workload.get("pp", 1)

    def initialize_from_config(self, kv_cache_configs: list[Any]) -> None:
        """Initialize nothing."""

    def get_supported_kv_cache_layouts(self) -> list[Any]:
        """Return every layout, for each pipeline stage. vLLM asks for them from 0.29 on."""
        return [["LBNHC", "LBHNC", "BLNHC", "BLHNC", "BHLNC", "LHBNC"]] * self._workload.get("pp", 1)

    def set_kv_cache_layout(self, *_: Any, **__: Any) -> None:
        """Set nothing."""

    def compile_or_warm_up_model(self) -> None:
        """Compile nothing."""

    def collective_rpc(self, *_: Any, **__: Any) -> list[None]:
        """Call nothing."""
        return [None]

    def check_health(self) -> None:
        """Check nothing."""

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Begin a step. Return the output of a step that computes nothing; return None for any other step."""
        self._step = scheduler_output
        admitted = [each.req_id for each in scheduler_output.scheduled_new_reqs]
        for name in (*admitted, *scheduler_output.scheduled_cached_reqs.resumed_req_ids):
            self._given[name] = self.scheduler.requests[name].num_tokens
        return _answer(None if scheduler_output.total_num_scheduled_tokens else self._output([]), non_block=non_block)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:  # noqa: ARG002
        """Return the outputs of the step: a token for each request whose known tokens are all computed."""
        return _answer(self._output(list(self._step.num_scheduled_tokens)), non_block=non_block)

    def _output(self, names: list[str]) -> Any:
        return _filled(
            ModelRunnerOutput,
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[self._sampled(name) for name in names],
        )

    def _sampled(self, name: str) -> list[int]:
        """Return the sampled token of a request; an empty list if its runner has not computed all tokens that it got.

        A runner also samples tokens that the scheduler does not await. This happens after a request was resumed while
        one of its tokens was in flight.
        """
        request = self.scheduler.requests[name]
        if request.num_computed_tokens < self._given[name]:
            return []
        self._num_answers[name] += 1
        stop_at = self._stop_at[name]
        if stop_at is not None and self._num_answers[name] >= stop_at:
            return [STOP_TOKEN]
        place = request.num_computed_tokens - request.num_prompt_tokens
        return [_FIRST_ANSWER + _TOKENS_OF_A_REQUEST * self._number[name] + place]


class _Later(Future):  # type: ignore[type-arg]
    """Result that is not ready before the engine waits for it, as on a GPU. vLLM before 0.23 checks `done`."""

    def done(self) -> bool:
        """Return False."""
        return False


def _answer(output: Any, *, non_block: bool) -> Any:
    if not non_block:
        return output
    future = _Later()
    future.set_result(output)
    return future


def make_engine(config: VllmConfig, model: Callable[[Any], FakeModel]) -> Any:
    """Start vLLM's engine with a fake model, which `model` makes from the engine's configuration."""
    engine = EngineCore(config, model, log_stats=True)
    engine.model_executor.scheduler = engine.scheduler
    return engine


# ---- its decisions --------------------------------------------------------------------------------------------------


class SchedulerDecisions:
    """Recorder that writes all decisions of a scheduler as the records of an oracle."""

    def __init__(self, scheduler: Any, emit: Callable[[Record], None]) -> None:
        self._scheduler, self._emit = scheduler, emit
        self._in_groups = False
        """True if records have one table for each KV-cache group; False if they have a single table."""
        self._numbers: dict[int, int] = {}
        self._num_steps = 0
        self._preempted: list[str] = []
        self._schedule, self._update = scheduler.schedule, scheduler.update_from_output
        self._preempt = scheduler._preempt_request
        scheduler.schedule, scheduler.update_from_output = self._scheduled, self._updated
        scheduler._preempt_request = self._preempting

    def begin(self, *, in_groups: bool) -> None:
        """Write the first record, with the settings of the engine."""
        scheduler, pool = self._scheduler, self._scheduler.kv_cache_manager.block_pool
        self._in_groups = in_groups
        record = {
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
            record |= {
                "groups": [group.kv_cache_spec.block_size for group in scheduler.kv_cache_config.kv_cache_groups],
                "scheduler_block_size": scheduler.block_size,
                "hash_block_size": pool.hash_block_size,
                "mamba_align_split": scheduler.need_mamba_block_aligned_split,
            }
        else:
            record |= {
                "block_size": scheduler.block_size,
                "reserve_full_isl": getattr(scheduler, "scheduler_reserve_full_isl", False),
            }
        self._emit(record)

    def _preempting(self, request: Any, *arguments: Any, **more: Any) -> Any:
        self._preempted.append(request.request_id)
        return self._preempt(request, *arguments, **more)

    def _copies(self) -> Record:
        """Return the record fields about a step's copies between GPU and host. A subclass overrides this."""
        return {}

    def _scheduled(self, *arguments: Any, **more: Any) -> Any:
        """Call vLLM's `schedule`, and emit the record of its step."""
        self._preempted = []
        output = self._schedule(*arguments, **more)
        self._numbers[id(output)] = self._num_steps
        cached, requests = output.scheduled_cached_reqs, self._scheduler.requests
        given = {each.req_id: each for each in output.scheduled_new_reqs}
        # Model runner V2 gets resumed requests as new ones.
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
                "new_block_ids": {name: self._tables(blocks) for name, blocks in tables.items()},
                "preempted": self._preempted,
                "finished_ids_sent": sorted(output.finished_req_ids),
            }
            | self._copies()
            | self._state()
        )
        self._num_steps += 1
        return output

    def _updated(self, output: Any, sampled: Any) -> Any:
        requests = self._scheduler.requests
        before = {name: requests[name].num_output_tokens for name in output.num_scheduled_tokens if name in requests}
        outputs = self._update(output, sampled)
        answers = [each for of_client in (outputs or {}).values() for each in of_client.outputs]
        record = {
            "kind": "update",
            "i": self._numbers.pop(id(output)),
            "tokens": {each.request_id: len(each.new_token_ids) for each in answers if each.new_token_ids},
            "finished": [
                [each.request_id, str(each.finish_reason)] for each in answers if each.finish_reason is not None
            ],
        }
        self._emit(record | ({} if self._in_groups else {"prev_outputs": before}) | self._state())
        return outputs

    def _state(self) -> Record:
        """Return the part of a record with the state of vLLM: queues, block tables and free blocks."""
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
                name: self._tables(manager.get_block_ids(name))
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
        return state

    def _tables(self, tables: Any) -> Any:
        return [list(table) for table in tables] if self._in_groups else list(tables[0])


def _skipped(scheduler: Any) -> Any:
    """Return the queue that the scheduler looks at before `waiting`.

    It has skipped requests, and from vLLM 0.31 on requests that hold blocks.
    """
    return scheduler.skipped_waiting if hasattr(scheduler, "skipped_waiting") else scheduler.kv_holding_waiting


# ---- its requests ---------------------------------------------------------------------------------------------------


def play(
    engine: Any,
    workload: Workload,
    *,
    arrival_time_of: Callable[[int], float] = float,
    on_request: Callable[[Any], None] = lambda _: None,
    on_call: Callable[[int, Any], None] = lambda *_: None,
    before_call: Callable[[int], None] = lambda _: None,
) -> Record:
    """Run the engine until all requests have ended, and return the fields of the last record.

    Requests arrive and are aborted before the calls that the workload states.

    Args:
        engine: vLLM's engine with a fake model.
        workload: the requests.
        arrival_time_of: function that returns the arrival time of the request at a row of the workload.
        on_request: function called with every request before the engine gets it.
        on_call: function called after every engine call with the call's index and its outputs.
        before_call: function called before every engine call with the call's index.
    """
    scheduler = engine.scheduler
    rows = sorted(enumerate(workload["requests"]), key=lambda item: item[1].get("arrival_step", 0))
    due, aborts = deque(rows), deque(sorted(_aborts(workload)))
    call = calls_without_change = 0
    while call < workload.get("most_calls", MOST_CALLS):
        if not scheduler.has_requests() and not engine.batch_queue:
            if not due:
                return {"engine_calls": call}
            call = max(call, due[0][1].get("arrival_step", 0))
        while due and due[0][1].get("arrival_step", 0) <= call:
            row, request = due.popleft()
            made = _request(row, request, arrival_time_of(row))
            on_request(made)
            engine.add_request(*engine.preprocess_add_request(made))
        while aborts and aborts[0][0] <= call:
            engine.abort_requests([aborts.popleft()[1]])
        before_call(call)
        before = _progress(scheduler)
        answers, _ = engine.step_fn()
        on_call(call, answers)
        engine.post_step(True)
        call += 1
        calls_without_change = calls_without_change + 1 if _progress(scheduler) == before else 0
        comes_later = aborts or (due and due[0][1].get("arrival_step", 0) > call)
        if calls_without_change >= _HOPELESS_CALLS and not comes_later:
            break
    return {"engine_calls": call, "deadlock": True}


def _progress(scheduler: Any) -> tuple[int, int]:
    requests = scheduler.requests.values()
    return sum(each.num_computed_tokens + each.num_output_tokens for each in requests), len(requests)


def _aborts(workload: Workload) -> Iterator[tuple[int, str]]:
    for request in workload["requests"]:
        if request.get("abort_step") is not None:
            yield request["abort_step"], request["id"]


def _request(row: int, request: Record, arrival_time: float) -> Any:
    return _filled(
        EngineCoreRequest,
        request_id=request["id"],
        external_req_id=request["id"],
        prompt_token_ids=request.get("prompt_token_ids") or _made_up_prompt(row, request),
        sampling_params=SamplingParams(max_tokens=request["output_len"], ignore_eos=True, stop_token_ids=[STOP_TOKEN]),
        arrival_time=arrival_time,
        priority=request.get("priority", 0),
    )


def _made_up_prompt(row: int, request: Record) -> list[int]:
    group = request.get("prefix_group")
    num_shared = 0 if group is None else request.get("prefix_len", 0)
    shared = _FIRST_SHARED + _TOKENS_OF_A_REQUEST * (group or 0)
    own = _TOKENS_OF_A_REQUEST * (row + 1)
    return [*range(shared, shared + num_shared), *range(own + num_shared, own + request["prompt_len"])]


def serve(order: Record, scratch: Path, emit: Callable[[Record], None]) -> None:
    """Serve the workload of `order` with an engine, and emit the records. `scratch` gets the model's files."""
    workload = order["workload"]
    engine = make_engine(configure(workload, scratch), partial(FakeModel, workload=workload))
    SchedulerDecisions(engine.scheduler, emit).begin(in_groups="groups" in workload)
    emit({"kind": "end"} | play(engine, workload))


def answer(serve: Callable[[Record, Path, Callable[[Record], None]], None], answers: Any) -> None:
    """Serve the orders on standard input, one on each line, and write records and closing lines to `answers`."""

    def emit(record: Record) -> None:
        answers.write(json.dumps(record) + "\n")

    register_decoders()
    gc.enable()
    emit({"kind": "ready", "vllm": vllm.__version__})
    answers.flush()
    with tempfile.TemporaryDirectory() as scratch:
        for line in sys.stdin:
            closing = {"kind": "done"}
            try:
                serve(json.loads(line), Path(scratch), emit)
            except Exception as error:  # an error in one workload must not stop the next
                logging.getLogger("kvsim").exception("failed")
                closing = {"kind": "failed", "error": _words_of(error)}
            emit(closing)
            answers.flush()


def _words_of(error: Exception) -> str:
    if str(error):
        return f"{type(error).__name__}: {error}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {last.name} ({Path(last.filename).name}): {last.line}"


if __name__ == "__main__":
    with suppress(AttributeError, ImportError):  # run on the CPU, also if there is a GPU
        from vllm.platforms.interface import UnspecifiedPlatform

        vllm.platforms._current_platform = UnspecifiedPlatform()
    answer(serve, _ANSWERS)
