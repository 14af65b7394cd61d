"""Translation of the KV-cache specs of a running vLLM engine to the groups of a recording.

Nothing of vLLM is imported: specs are identified by their class names.
"""

from __future__ import annotations

from dataclasses import replace
from math import lcm
from typing import Any

from kvsim.errors import RecordingError
from kvsim.kv_groups import CacheKind, KVCacheGroup, KVCacheLayout, MambaMode

_KINDS = {
    "FullAttentionSpec": CacheKind.FULL,
    "MLAAttentionSpec": CacheKind.MLA,
    "SlidingWindowSpec": CacheKind.SLIDING_WINDOW,
    "ChunkedLocalAttentionSpec": CacheKind.CHUNKED_LOCAL,
    "MambaSpec": CacheKind.MAMBA,
}


def layout_of(kv_cache_config: Any, hash_block_size: int) -> KVCacheLayout:
    """Return the groups in `kv_cache_config`, which is the `KVCacheConfig` of vLLM's first worker.

    Raises:
        RecordingError: a group is of a kind whose blocks kvsim does not follow.
    """
    specs = [_first(group.kv_cache_spec) for group in kv_cache_config.kv_cache_groups]
    distinct: list[Any] = []
    groups = []
    for group, spec in zip(kv_cache_config.kv_cache_groups, specs, strict=True):
        if spec not in distinct:
            distinct.append(spec)
        described = _group(spec, len(group.layer_names), distinct.index(spec))
        groups.append(replace(described, has_draft_layers=bool(getattr(group, "is_eagle_group", False))))
    return KVCacheLayout(
        groups=tuple(groups),
        bytes_per_block=_allocated_bytes(kv_cache_config.kv_cache_tensors) // kv_cache_config.num_blocks,
        scheduler_block_size=lcm(*(group.block_size for group in groups)),
        hash_block_size=hash_block_size,
    )


def _allocated_bytes(tensors: list[Any]) -> int:
    """Return the bytes of all blocks. From vLLM 0.29, all tensors share an allocation, and each states its size."""
    sizes = [tensor.size for tensor in tensors]
    return int(sum(sizes) if hasattr(tensors[0], "shared_by") else max(sizes))


def _first(spec: Any) -> Any:
    """Return `spec`, or the spec of a group's first layer if the layers have pages of different sizes."""
    return next(iter(spec.kv_cache_specs.values())) if hasattr(spec, "kv_cache_specs") else spec


def _group(spec: Any, num_layers: int, number: int) -> KVCacheGroup:
    """Return the group of `num_layers` layers that have vLLM's `spec`; `number` becomes `KVCacheGroup.spec`."""
    kind = _KINDS.get(type(spec).__name__)
    if kind is None:
        raise RecordingError(
            f"the model has layers of vLLM's {type(spec).__name__}, whose blocks kvsim does not follow."
        )
    content_bytes = replace(spec, page_size_padded=None).page_size_bytes
    window = getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None)
    windowed = kind in (
        CacheKind.SLIDING_WINDOW,
        CacheKind.CHUNKED_LOCAL,
    )  # vLLM may keep a window in a full group's spec
    is_mamba = kind is CacheKind.MAMBA
    if is_mamba and spec.num_speculative_blocks:
        raise RecordingError("recurrent layers with speculative decoding keep states that kvsim does not follow.")
    return KVCacheGroup(
        kind=kind,
        block_size=spec.block_size,
        num_layers=max(num_layers, 1),
        page_bytes=spec.page_size_bytes,
        content_bytes=None if content_bytes == spec.page_size_bytes else content_bytes,
        window=window if windowed else None,
        spec=number,
        mamba_mode=MambaMode(spec.mamba_cache_mode) if is_mamba else None,
    )
