"""Shapes of models: what each layer caches, the bytes of the weights, and the FLOPs per token.

The simulator and the sizing formulas take all facts about a model from here. A model is listed in `listed.toml`, or
read from a Hugging Face `config.json`. This package does not depend on GPUs, blocks or step times.
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
