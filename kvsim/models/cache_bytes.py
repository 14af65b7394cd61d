"""Bytes of one token in the cache of one layer on one GPU, for every value of `--kv-cache-dtype`.

The sizes are those that vLLM 0.25.1 allocates. With `int4_per_token_head`, vLLM packs two elements into a byte only in
full-attention layers. In sliding layers, and in chunked layers converted to full ones, it allocates twice as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.errors import UsageError
from kvsim.models.dtypes import DTYPE_BYTES, KV_CACHE_DTYPES
from kvsim.models.layers import ChunkedLocal, FullAttention, Indexer, Mla, SlidingWindow

if TYPE_CHECKING:
    from kvsim.models.layers import Attention

_NOT_MLA = ("fp8_e5m2", "nvfp4", "fp8_per_token_head", "int8_per_token_head", "int4_per_token_head")
"""Cache types that no MLA backend of vLLM supports."""
_SPARSE = ("auto", "bfloat16", "fp8", "fp8_ds_mla")
"""Cache types that vLLM's backend for sparse MLA supports."""
_SCALE_BYTES = 4
"""Bytes of a float32 scale. `per_token_head` types have a scale for each key and each value of each head."""


def check_kv_cache_dtype(kv_cache_dtype: str) -> None:
    """Raise a `UsageError` if the cache type is unknown."""
    if kv_cache_dtype not in KV_CACHE_DTYPES:
        raise UsageError(f"--kv-cache-dtype should be one of {', '.join(KV_CACHE_DTYPES)}, not {kv_cache_dtype!r}.")


def check_layer_takes(layer: Attention, kv_cache_dtype: str) -> None:
    """Raise a `UsageError` if vLLM 0.25.1 has no attention backend for `layer` with this cache type."""
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
    """Return the number of bytes of one token in `layer` on each GPU. `auto` means the model's `dtype`.

    The keys of an indexer have a type of their own. Each GPU holds these keys and latents as a whole. The size follows
    from vLLM's layout of the cache, which is defined for more types than the backends support: see `check_layer_takes`.

    Raises:
        UsageError: the cache type is unknown, or it is nvfp4 and the layer has a latent.
    """
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
    """Return the bytes of one stored element. A byte with two elements of 4 bits counts as one stored element."""
    if kv_cache_dtype == "auto":
        return DTYPE_BYTES[dtype]
    return 2 if kv_cache_dtype in ("bfloat16", "float16") else 1


def _key_and_value(layer: FullAttention) -> tuple[int, int]:
    # For a chunked layer, vLLM takes values to be as large as keys.
    return (layer.head_dim, layer.head_dim if isinstance(layer, ChunkedLocal) else layer.value_head_dim)


def _stored(layer: FullAttention, head_dim: int, kv_cache_dtype: str) -> int:
    """Return the number of elements that are stored for a key or value with `head_dim` elements, without scales."""
    if kv_cache_dtype == "nvfp4":
        return head_dim // 2 + head_dim // 16  # two in a byte, and a one-byte scale for every 16
    if kv_cache_dtype == "int4_per_token_head" and not isinstance(layer, SlidingWindow):
        return head_dim // 2
    return head_dim


def _mla_bytes(layer: Mla, latent_element_bytes: int, kv_cache_dtype: str) -> int:
    if kv_cache_dtype == "nvfp4":
        check_layer_takes(layer, kv_cache_dtype)
    if kv_cache_dtype == "fp8_ds_mla" or (layer.sparse and kv_cache_dtype.startswith("fp8")):
        # fp8 latent with a float32 scale for every 128 elements, and a 16-bit rotary key.
        return layer.kv_lora_rank + layer.kv_lora_rank // 128 * 4 + 2 * layer.rope_dim
    return (layer.kv_lora_rank + layer.rope_dim) * latent_element_bytes
