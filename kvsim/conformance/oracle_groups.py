"""KV-cache groups of an oracle's workload with several kinds of layers.

The layers of the oracle's fake model have fixed, tiny sizes. The same sizes are stated here, so that pages have as many
bytes as the oracle's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvsim.errors import UsageError, WorkloadError
from kvsim.kv_groups import CacheKind, KVCacheLayout, MambaMode
from kvsim.kv_groups.grouping import group_layers
from kvsim.kv_groups.specs import LayerSpec

if TYPE_CHECKING:
    from kvsim.policies.settings import ContinuousSettings, PagedSettings

_HEADS, _HEAD_SIZE, _MLA_SIZE = 2, 16, 64
_BYTES = 2
_INDEXER, _INDEXER_BYTES = "indexer", 132
"""Type of the key cache of a sparse-attention indexer, and its bytes per token: 128 numbers of 8 bits, and a scale."""
_BYTES_OF = {"fp8_ds_mla": 656}
"""Bytes per token of latents, by type: 512 numbers of 8 bits, four scales, and 64 numbers of 16 bits."""
_STATE_PAGE = 4096


def layout_of(
    document: dict[str, Any], where: str, scheduler: ContinuousSettings, cache: PagedSettings
) -> KVCacheLayout:
    """Return the layout of the KV-cache groups that vLLM makes of the layers in `document["groups"]`.

    Raises:
        WorkloadError: the layers are invalid or not simulated; `where` begins the message.
    """
    try:
        entries: list[dict[str, Any]] = [dict(entry) for entry in document["groups"]]
        _divide_contexts(entries, int(document.get("dcp", 1)))
        mode = MambaMode(document.get("mamba_cache_mode", "none"))
        specs = [_attention(entry, cache.block_size) for entry in entries]
        page_bytes = max((spec.page_bytes for spec in specs if spec is not None), default=_STATE_PAGE)
        filled = [
            spec or _recurrent(number, entry, mode, page_bytes, scheduler.max_model_len, cache.block_size)
            for number, (entry, spec) in enumerate(zip(entries, specs, strict=True))
        ]
        order = document.get("layer_order") or [
            number for number, entry in enumerate(entries) for _ in range(int(entry.get("num_layers", 1)))
        ]
        drafting = [bool(entry.get("draft", False)) for entry in entries]
        layers = [replace(filled[int(number)], is_draft=drafting[int(number)]) for number in order]
        grouping = group_layers(layers, hybrid_manager=not document.get("disable_hybrid", False))
        return grouping.layout(
            hash_block_size=None, caches_prefixes=cache.enable_prefix_caching, stages=[range(len(layers))]
        )
    except (KeyError, IndexError, TypeError, ValueError, UsageError) as error:
        raise WorkloadError(f"{where}: groups cannot be right: {str(error).rstrip('.')}.") from error


def _divide_contexts(entries: list[dict[str, Any]], num_ranks: int) -> None:
    """Change the layers `entries`, in place, for decode context parallelism over `num_ranks` ranks.

    A block then has slots on every rank, so its stated size is multiplied by `num_ranks`.

    Raises:
        UsageError: a layer does not keep all tokens.
    """
    for entry in entries:
        if num_ranks > 1 and entry["type"] not in (_INDEXER, CacheKind.FULL.value, CacheKind.MLA.value):
            raise UsageError(
                f"decode context parallelism is followed where layers keep all tokens, not {entry['type']}"
            )
        if "block_size" in entry:
            entry["block_size"] *= num_ranks


def _attention(entry: dict[str, Any], block_size: int) -> LayerSpec | None:
    if entry["type"] == _INDEXER:
        return LayerSpec(
            kind=CacheKind.MLA,
            block_size=int(entry.get("block_size", block_size)),
            bytes_per_token=int(entry.get("head_size", _INDEXER_BYTES)),
            other_properties=(_INDEXER,),
        )
    kind = CacheKind(entry["type"])
    if kind is CacheKind.MAMBA:
        return None
    is_mla = kind is CacheKind.MLA
    heads = 1 if is_mla else int(entry.get("num_kv_heads", _HEADS))
    size = int(entry.get("head_size", _MLA_SIZE if is_mla else _HEAD_SIZE))
    return LayerSpec(
        kind=kind,
        block_size=int(entry.get("block_size", block_size)),
        bytes_per_token=_BYTES_OF.get(entry.get("cache_dtype", ""), heads * size * (1 if is_mla else 2) * _BYTES),
        window=int(entry["window"]) if kind in (CacheKind.SLIDING_WINDOW, CacheKind.CHUNKED_LOCAL) else None,
        pads_pages=bool(entry.get("indexes_by_stride", False)),
        other_properties=(heads, size),
        bytes_per_token_as_full=None if kind in (CacheKind.FULL, CacheKind.MLA) else heads * size * 2 * _BYTES,
    )


def _recurrent(
    number: int, entry: dict[str, Any], mode: MambaMode, page_bytes: int, max_model_len: int, block_size: int
) -> LayerSpec:
    return LayerSpec(
        kind=CacheKind.MAMBA,
        block_size=max_model_len if mode is MambaMode.NONE else int(entry.get("block_size", block_size)),
        bytes_per_token=0,
        state_bytes=_BYTES * (16 + number),
        padded_page_bytes=page_bytes,
        mamba_mode=mode,
        other_properties=(number,),
    )
