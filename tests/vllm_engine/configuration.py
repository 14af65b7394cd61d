"""vLLM's configuration of an engine for a workload of the golden kind, and the layers of its model.

Imported by processes that have vLLM's files on their path (`engine_process`).
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import vllm.config.vllm
import vllm.envs
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVEventsConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

Workload = dict[str, Any]

_LONGEST_MODEL = 131_072
_DTYPE = torch.bfloat16
_STATE_PAGE = 4096
_RETENTION = "prefix_cache_retention_interval"
_RETENTION_VARIABLE = f"VLLM_{_RETENTION.upper()}"
"""A variable before vLLM 0.29, and a setting from then on."""
_RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
_MEMORY_CHECK = "_check_enough_kv_cache_memory"
_SIZING = ("vllm.v1.core.kv_cache_utils", "vllm.v1.core.kv_cache_planning")
"""Modules that have the memory check, before vLLM 0.33 and from then on."""
ARCHITECTURES = _PLAIN, _COMPRESSED = "LlamaForCausalLM", "DeepseekV2ForCausalLM"
"""What kinds of models there are here, in the names that vLLM has for them."""
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


def configure(workload: Workload, folder: Path, scheduler_cls: str) -> VllmConfig:
    """The configuration that a server has with the settings of `workload` and this scheduler class.

    A model is written into `folder`, without weights: nothing is computed.
    """
    model = _write_model(workload, folder)
    asynchronous = workload.get("async_scheduling", True)
    block_size = workload.get("block_size", 16)
    longest = workload.get("max_model_len") or min((workload["num_blocks"] - 1) * block_size, _LONGEST_MODEL)
    _set_for_process(workload)
    config = VllmConfig(
        model_config=ModelConfig(model=str(model), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=longest),
        scheduler_config=_known(
            SchedulerConfig,
            max_num_seqs=workload.get("max_num_seqs", 128),
            max_num_batched_tokens=workload.get("max_num_batched_tokens", 2048),
            max_model_len=longest,
            is_encoder_decoder=False,
            # Beyond the longest sequence it never binds, and vLLM refuses it from 0.27 on.
            long_prefill_token_threshold=min(workload.get("long_prefill_token_threshold", 0), longest),
            enable_chunked_prefill=workload.get("enable_chunked_prefill", True),
            policy=workload.get("policy", "fcfs"),
            watermark=workload.get("watermark", 0.0),
            scheduler_reserve_full_isl=workload.get("scheduler_reserve_full_isl", True),
            async_scheduling=asynchronous,
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
    # What VllmConfig would settle by looking at a real model and at real devices.
    config.parallel_config.pipeline_parallel_size = workload.get("pipeline_parallel_size", 1)
    config.cache_config.mamba_cache_mode = workload.get("mamba_cache_mode", "none")
    config.scheduler_config.disable_hybrid_kv_cache_manager = bool(workload.get("disable_hybrid", False))
    if "num_speculative_tokens" in workload:
        config.speculative_config = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=workload["num_speculative_tokens"],
            prompt_lookup_max=2,
            target_model_config=config.model_config,
            target_parallel_config=config.parallel_config,
        )
    if "watched_in" in workload:
        config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    if "offload" in workload:
        config.kv_transfer_config = _offload(workload, config)
    return config


def _known(make: Callable[..., Any], **fields: Any) -> Any:
    """What `make` makes of those of the fields that this release of vLLM has."""
    taken = inspect.signature(make).parameters
    return make(**{name: value for name, value in fields.items() if name in taken})


def _write_model(workload: Workload, folder: Path) -> Path:
    """A model with as many layers, as far as they are alike; a plain decoder where they are of several kinds."""
    entries = workload.get("groups", ())
    fields = _LATENTS if {entry["type"] for entry in entries} == {"mla"} else _CONFIG
    if entries:
        fields = fields | {"num_hidden_layers": sum(entry.get("num_layers", 1) for entry in entries)}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    return folder


def layers_of(workload: Workload, max_model_len: int) -> dict[str, KVCacheSpec]:
    """The layers of the model, by name, in their order: those that `groups` lists, or one of full attention."""
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
    """The spec of an entry of attention layers; None for recurrent ones."""
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


def _offload(workload: Workload, config: VllmConfig) -> KVTransferConfig:
    """vLLM's native offload, with room for `host_blocks` blocks, and half a block that must not count."""
    import vllm.v1.core.kv_cache_utils as sizing
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

    settings = workload["offload"]
    factor = settings.get("factor", 1)
    register_all_kvcache_specs(config)
    groups = sizing.get_kv_cache_groups(config, layers_of(workload, config.model_config.max_model_len))
    block_bytes = sizing._pool_bytes_per_block(config, groups) * factor
    extra = {
        "cpu_bytes_to_use": int((settings["host_blocks"] + 0.5) * block_bytes),
        "eviction_policy": settings.get("policy", "lru"),
        "offload_prompt_only": settings.get("prompt_only", True),
        "store_threshold": settings.get("store_threshold", 0),
    }
    if factor > 1:
        extra["block_size"] = factor * groups[0].kv_cache_spec.block_size
    return KVTransferConfig(kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=extra)


def _set_for_process(workload: Workload) -> None:
    """What vLLM keeps for a whole process, and each engine here wants its own way."""
    new_runner = workload.get("v2_model_runner", True)
    vllm.config.vllm.HAS_TRITON = new_runner  # its runner V2 needs it; from 0.33 on that is not asked without a GPU
    os.environ.pop(_RUNNER_VARIABLE, None)
    if not new_runner:
        os.environ[_RUNNER_VARIABLE] = "0"
    for name in _SIZING:
        with suppress(ImportError):  # pools here are far smaller than any that vLLM starts
            setattr(importlib.import_module(name), _MEMORY_CHECK, lambda *_, **__: None)
    os.environ.pop(_RETENTION_VARIABLE, None)
    if workload.get("retention_interval") is not None and _RETENTION not in inspect.signature(CacheConfig).parameters:
        os.environ[_RETENTION_VARIABLE] = str(workload["retention_interval"])
    vllm.envs.disable_envs_cache()
