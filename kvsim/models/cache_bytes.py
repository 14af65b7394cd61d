"""Compute the bytes of a token in the cache of one layer on one GPU, by cache type.

The rules are those of vLLM 0.25.1, including its waste: `int4_per_token_head` packs only the heads of full layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.errors import UsageError
from kvsim.models.dtypes import DTYPE_BYTES, KV_CACHE_DTYPES
from kvsim.models.layers import ChunkedLocal, FullAttention, Indexer, Mla, SlidingWindow

if TYPE_CHECKING:
    from kvsim.models.layers import Attention

_NOT_MLA = ("fp8_e5m2", "nvfp4", "fp8_per_token_head", "int8_per_token_head", "int4_per_token_head")
"""Cache types that no backend of vLLM supports for latent attention."""
_SPARSE = ("auto", "bfloat16", "fp8", "fp8_ds_mla")
"""Cache types that vLLM's backend supports for sparse latent attention."""
_SCALE_BYTES = 4
"""Bytes of the float32 scale that `per_token_head` types keep for every key and every value of a head."""


def check_kv_cache_dtype(kv_cache_dtype: str) -> None:
    """Raise a UsageError if the cache type is unknown."""
    if kv_cache_dtype not in KV_CACHE_DTYPES:
        raise UsageError(f"--kv-cache-dtype should be one of {', '.join(KV_CACHE_DTYPES)}, not {kv_cache_dtype!r}.")


def check_layer_takes(layer: Attention, kv_cache_dtype: str) -> None:
    """Raise a UsageError if no backend of vLLM 0.25.1 supports the cache type for such a layer."""
    if isinstance(layer, Mla):
        is_taken = kv_cache_dtype in _SPARSE if layer.sparse else kv_cache_dtype not in (*_NOT_MLA, "fp8_ds_mla")
        kind, instead = "sparse latent attention" if layer.sparse else "multi-head latent attention", "auto and fp8 are"
    else:
        is_taken = kv_cache_dtype != "fp8_ds_mla"
        kind, instead = "attention that keeps keys and values", "fp8 is"
    if not is_taken:
        raise UsageError(f"--kv-cache-dtype {kv_cache_dtype} is not for {kind} in vLLM; {instead}.")


def bytes_per_token(
    layer: Attention | Indexer, *, dtype: str, kv_cache_dtype: str = "auto", tensor_parallel_size: int = 1
) -> int:
    """Return the bytes per token in `layer` on each GPU; `dtype` is the model's type, used for `auto`."""
    check_kv_cache_dtype(kv_cache_dtype)
    if isinstance(layer, Indexer):
        return layer.bytes_per_token
    if isinstance(layer, Mla):
        return _mla_bytes(layer, element_bytes(dtype, kv_cache_dtype), kv_cache_dtype)
    heads = layer.heads_on_gpu(tensor_parallel_size)
    head_elements = sum(_stored(layer, size, kv_cache_dtype) for size in _key_and_value(layer))
    scales = 2 * _SCALE_BYTES if kv_cache_dtype.endswith("per_token_head") else 0
    return heads * (head_elements * element_bytes(dtype, kv_cache_dtype) + scales)


def element_bytes(dtype: str, kv_cache_dtype: str) -> int:
    """Return the bytes of one cache element, before packing."""
    if kv_cache_dtype == "auto":
        return DTYPE_BYTES[dtype]
    return 2 if kv_cache_dtype in ("bfloat16", "float16") else 1


def _key_and_value(layer: FullAttention) -> tuple[int, int]:
    # A chunked layer's page is computed from the key alone, twice.
    return (layer.head_dim, layer.head_dim if isinstance(layer, ChunkedLocal) else layer.value_head_dim)


def _stored(layer: FullAttention, head_dim: int, kv_cache_dtype: str) -> int:
    """Return the stored elements of `head_dim` elements of a head."""
    if kv_cache_dtype == "nvfp4":
        return head_dim // 2 + head_dim // 16
    if kv_cache_dtype == "int4_per_token_head" and not isinstance(layer, SlidingWindow):
        return head_dim // 2
    return head_dim


def _mla_bytes(layer: Mla, element_bytes: int, kv_cache_dtype: str) -> int:
    if kv_cache_dtype == "nvfp4":
        raise UsageError("--kv-cache-dtype nvfp4 is not for multi-head latent attention; auto and fp8 are.")
    if kv_cache_dtype == "fp8_ds_mla" or (layer.sparse and kv_cache_dtype.startswith("fp8")):
        # fp8 latent with a float32 scale for every 128 elements, and a 16-bit rotary key.
        return layer.kv_lora_rank + layer.kv_lora_rank // 128 * 4 + 2 * layer.rope_dim
    return (layer.kv_lora_rank + layer.rope_dim) * element_bytes
