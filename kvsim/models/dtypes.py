"""Names of the element types that models and caches may have, as configurations and vLLM spell them."""

from __future__ import annotations

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Types of weights and activations, and the number of bytes of one element."""

KV_CACHE_DTYPES = (
    "auto",
    "bfloat16",
    "float16",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_ds_mla",
    "fp8_per_token_head",
    "int8_per_token_head",
    "int4_per_token_head",
    "nvfp4",
)
"""Values of `--kv-cache-dtype`. `auto` means the model's own type."""
