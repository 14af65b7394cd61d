"""Model shapes: the cache of every layer, the bytes of the weights, the arithmetic of a token.

Models are listed (`listed.toml`), or read from the `config.json` that Hugging Face publishes. This room knows neither
GPUs nor blocks nor time.
"""

from __future__ import annotations

from kvsim.models.dtypes import DTYPE_BYTES, KV_CACHE_DTYPES
from kvsim.models.listed import all_models, find_model, taken_for
from kvsim.models.shape import Model
from kvsim.models.weights import QUANTIZATIONS, find_quantization

__all__ = [
    "DTYPE_BYTES",
    "KV_CACHE_DTYPES",
    "QUANTIZATIONS",
    "Model",
    "all_models",
    "find_model",
    "find_quantization",
    "taken_for",
]
