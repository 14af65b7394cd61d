"""vLLM's configuration of an engine for a workload, with what the tests alone ask for: drafts, events, host memory.

Imported by processes that have vLLM's files on their path (`engine_process`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from vllm import ModelRegistry
from vllm.config import KVEventsConfig, KVTransferConfig, LoRAConfig, ModelConfig, SpeculativeConfig, VllmConfig
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

from kvsim.conformance import vllm_driver
from kvsim.conformance.vllm_driver import Workload, layers_of

_HEAD = "EagleLlamaForCausalLM"
"""vLLM's name for a head of a Llama."""


def configure(workload: Workload, folder: Path, scheduler_cls: str) -> VllmConfig:
    """The configuration that a server has with the settings of `workload` and this scheduler class."""
    _take_images(workload.get("mm"))
    config = vllm_driver.configure(workload, folder, scheduler_cls)
    if workload.get("mm", {}).get("whole"):
        config.scheduler_config.disable_chunked_mm_input = True
    if "spec" in workload:
        config.speculative_config = _drafting(workload["spec"], config, folder)
    if "lora" in workload:
        max_loras = workload["lora"]["max_loras"]
        config.lora_config = LoRAConfig(max_loras=max_loras, max_lora_rank=16, lora_dtype="bfloat16")
    if "rank" in workload:  # vLLM has set this on the engine of a rank of a dense model, and nothing else
        config.parallel_config.data_parallel_index = workload["rank"]
    if "kv" in workload:
        config.kv_transfer_config = _nixl(workload["kv"])
    if "watched_in" in workload:
        config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    if "offload" in workload:
        config.kv_transfer_config = _offload(workload, config)
    return config


def _take_images(limits: dict[str, Any] | None) -> None:
    """Let every model of this process take images, with these limits of the encoder; none where there are no limits."""
    from vllm.multimodal import MULTIMODAL_REGISTRY
    from vllm.v1.core.sched import scheduler
    from vllm.v1.engine import core

    class Budget:
        def __init__(self, *_: Any, **__: Any) -> None:
            assert limits is not None
            self.encoder_compute_budget, self.encoder_cache_size = limits["compute"], limits["cache"]
            self.mm_max_toks_per_item = {"image": 1}

    scheduler.MultiModalBudget = Budget
    type(MULTIMODAL_REGISTRY).supports_multimodal_inputs = lambda *_, **__: limits is not None
    ModelConfig.supports_multimodal_inputs = property(lambda _: limits is not None)
    for module in (MULTIMODAL_REGISTRY, core):
        if hasattr(module, "engine_receiver_cache_from_config"):
            module.engine_receiver_cache_from_config = lambda *_, **__: None


def _nixl(settings: dict[str, Any]) -> KVTransferConfig:
    """The scheduler's side of a server that pulls KV, or lets others pull it; no thread answers their handshakes."""
    for name in ("nixl.base_scheduler", "nixl.scheduler", "nixl_connector"):
        with suppress(ImportError):
            module = import_module(f"vllm.distributed.kv_transfer.kv_connector.v1.{name}")
            for each in vars(module).values():
                if isinstance(each, type) and "set_xfer_handshake_metadata" in vars(each):
                    each.set_xfer_handshake_metadata = lambda *_: None
    return KVTransferConfig(
        kv_connector="NixlConnector",
        kv_role=settings.get("role", "kv_both"),
        kv_load_failure_policy=settings.get("policy", "fail"),
        engine_id="engine",
    )


def _drafting(settings: dict[str, Any], config: VllmConfig, folder: Path) -> SpeculativeConfig:
    """Speculative decoding by n-grams or by a head: its model is the workload's own, since nothing is computed."""
    method, by_batch = settings["method"], settings.get("per_batch")
    ModelRegistry.register_model(_HEAD, type(_HEAD, (vllm_driver._Decoder,), {}))
    looks_up = method in ("ngram", "ngram_gpu")
    return SpeculativeConfig(
        method=method,
        num_speculative_tokens=settings["k"],
        target_model_config=config.model_config,
        target_parallel_config=config.parallel_config,
        **({"prompt_lookup_max": 4, "prompt_lookup_min": 2} if looks_up else {"model": str(folder)}),
        **({"num_speculative_tokens_per_batch_size": [tuple(entry) for entry in by_batch]} if by_batch else {}),
    )


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


def image(document: dict[str, Any]) -> MultiModalFeatureSpec:
    """An image of a prompt as vLLM's front end describes it; nothing looks at its pixels."""
    mask = None
    if runs := document.get("embed"):
        mask = torch.zeros(document["length"], dtype=torch.bool)
        for first, number in runs:
            mask[first : first + number] = True
    place = PlaceholderRange(offset=document["offset"], length=document["length"], is_embed=mask)
    name = document["hash"]
    known = {"mm_hash": name} if "mm_hash" in {each.name for each in fields(MultiModalFeatureSpec)} else {}
    return MultiModalFeatureSpec(data=None, modality="image", identifier=name, mm_position=place, **known)
