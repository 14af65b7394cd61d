"""Asks vLLM itself: reads cases as JSON lines, writes what its `get_kv_cache_configs` makes of each.

Runs where vLLM 0.25.1 can be imported (no GPU is needed), and imports nothing of kvsim: `differential.py` says how.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import torch

# Structured output is never used here, but vLLM names its classes when it is imported.
for name in ("xgrammar", "outlines_core"):
    sys.modules.setdefault(name, MagicMock())
from vllm.model_executor.models import ModelRegistry  # noqa: E402
from vllm.platforms.interface import Platform  # noqa: E402
from vllm.v1.attention.backend import MultipleOf  # noqa: E402
from vllm.v1.core import kv_cache_utils as utils  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    get_kv_quant_mode,
)

logging.disable(logging.CRITICAL)
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def spec_of(layer: dict[str, Any]) -> Any:
    kind, block_size, dtype = layer["kind"], layer["block_size"], DTYPES.get(layer["cache_dtype"], torch.uint8)
    padded, stride = layer["padded"], layer["pads_pages"]
    if kind == "mla":
        sparse = layer["cache_dtype"] == "fp8_ds_mla"
        return MLAAttentionSpec(
            block_size=block_size, num_kv_heads=1, head_size=layer["latent"], dtype=dtype,
            cache_dtype_str="fp8_ds_mla" if sparse else layer["cache_dtype"],
        )  # fmt: skip
    if kind == "indexer":
        return MLAAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=layer["head"], dtype=torch.uint8)
    if kind == "mamba":
        return MambaSpec(
            block_size=block_size, shapes=tuple(map(tuple, layer["shapes"])),
            dtypes=tuple(DTYPES[name] for name in layer["dtypes"]), page_size_padded=padded,
            mamba_cache_mode=layer["mode"], num_speculative_blocks=layer["speculative"],
        )  # fmt: skip
    common = {
        "block_size": block_size, "num_kv_heads": layer["heads"], "head_size": layer["head"], "dtype": dtype,
        "kv_quant_mode": get_kv_quant_mode(layer["cache_dtype"]), "page_size_padded": padded,
        "indexes_kv_by_block_stride": stride,
    }  # fmt: skip
    if kind == "full":
        return FullAttentionSpec(**common, head_size_v=layer["head_v"])
    if kind == "sliding_window":
        return SlidingWindowSpec(**common, head_size_v=layer["head_v"], sliding_window=layer["window"])
    return ChunkedLocalAttentionSpec(**common, attention_chunk_size=layer["window"])


def config_of(case: dict[str, Any], modes: set[str]) -> Any:
    length = case["max_model_len"]
    return SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=length, original_max_model_len=-1 if case["find"] else length),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=case["num_blocks"], mamba_cache_mode=modes.pop() if modes else "none",
            enable_prefix_caching=case["caches_prefixes"], hash_block_size=None, block_size=case["block_size"],
            gpu_memory_utilization=0.9,
        ),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=not case["hybrid_manager"],
            max_num_batched_tokens=case["max_num_batched_tokens"], max_num_encoder_input_tokens=0,
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, prefill_context_parallel_size=1, tensor_parallel_size=1,
            pipeline_parallel_size=len(case["available"]),
        ),
        kv_transfer_config=None, speculative_config=None,
    )  # fmt: skip


def answer_hybrid(case: dict[str, Any]) -> dict[str, Any]:
    """Tokens of the attention block and bytes of the padded recurrent page that vLLM's platform code chooses."""
    cache = SimpleNamespace(
        cache_dtype=case["cache_dtype"], kv_cache_dtype_skip_layers=[], mamba_block_size=None,
        user_specified_mamba_block_size=False, block_size=case["block_size"], mamba_cache_mode=case["mode"],
        mamba_page_size_padded=None,
    )  # fmt: skip
    model = SimpleNamespace(
        dtype=DTYPES[case["dtype"]], use_mla=case["latent"], get_num_kv_heads=lambda _: case["heads"],
        get_head_size=lambda: case["head"], architecture="", get_mamba_chunk_size=lambda: case["chunk"],
    )  # fmt: skip
    states = SimpleNamespace(
        get_mamba_state_shape_from_config=lambda _: [tuple(shape) for shape in case["shapes"]],
        get_mamba_state_dtype_from_config=lambda _: [DTYPES[name] for name in case["dtypes"]],
    )
    backend = SimpleNamespace(get_supported_kernel_block_sizes=lambda: [MultipleOf(case["smallest"])])
    config = SimpleNamespace(cache_config=cache, model_config=model, parallel_config=None)
    with (
        patch("vllm.config.vllm.set_current_vllm_config", lambda _: nullcontext()),
        patch.object(ModelRegistry, "resolve_model_cls", lambda *_, **__: (states, None)),
    ):
        Platform._align_hybrid_block_size(config, backend)
    return {"block_size": cache.block_size, "padded": cache.mamba_page_size_padded, "mamba": cache.mamba_block_size}


def answer(case: dict[str, Any]) -> dict[str, Any]:
    modes = {layer["mode"] for layer in case["layers"] if layer["kind"] == "mamba"}
    config = config_of(case, modes)
    names = [f"layers.{index}" for index in range(len(case["layers"]))]
    workers = [
        {names[index]: spec_of(case["layers"][index]) for index in range(start, stop)} for start, stop in case["stages"]
    ]
    pages = [spec.page_size_bytes for worker in workers for spec in worker.values()]
    try:
        configs = utils.get_kv_cache_configs(config, workers, list(case["available"]))
    except (ValueError, NotImplementedError, AssertionError) as error:
        words = str(error)
        marker = "estimated maximum model length is "
        estimate = int(words.partition(marker)[2].partition(".")[0]) if marker in words else 0
        return {"pages": pages, "error": type(error).__name__, "estimate": estimate}
    made = utils.generate_scheduler_kv_cache_config(configs)
    groups = [[group.kv_cache_spec.block_size, group.kv_cache_spec.page_size_bytes] for group in made.kv_cache_groups]
    sizes = [size for size, _ in groups]
    if len(groups) > 1:
        config.cache_config.block_size = min(sizes)
    else:
        config.cache_config.block_size = sizes[0]
    tokens, concurrency = utils.get_kv_cache_capacity(config, configs[0])
    layers = [[] for _ in groups]
    for worker in configs:
        for index, group in enumerate(worker.kv_cache_groups):
            layers[index] += [int(name.partition(".")[2]) for name in group.layer_names]
    aligned, hashed = utils.resolve_kv_cache_block_sizes(made, config)
    return {
        "pages": pages,
        "num_blocks": made.num_blocks,
        "groups": [[sorted(members), *facts] for members, facts in zip(layers, groups, strict=True)],
        "sums_pages": isinstance(configs[0].kv_cache_groups[0].kv_cache_spec, UniformTypeKVCacheSpecs),
        "tokens": tokens,
        "concurrency": concurrency,
        "max_model_len": config.model_config.max_model_len,
        "scheduler_block_size": aligned,
        "hash_block_size": hashed,
    }


if __name__ == "__main__":
    for line in sys.stdin:
        asked = json.loads(line)
        sys.stdout.write(json.dumps(answer_hybrid(asked) if "smallest" in asked else answer(asked)) + "\n")
