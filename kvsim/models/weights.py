"""Bytes of a model's weights in GPU memory, quantized or not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kvsim.errors import UsageError
from kvsim.setting_fields import check_instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """Format of weights, with average bits per weight that include scales.

    Embeddings, norms and routers are not quantized.
    """

    method: str
    linear_bits: float
    """Bits per weight in linear layers that every token passes through; 0 if these are not quantized."""
    expert_bits: float
    """Bits per weight in routed experts; 0 if these are not quantized."""
    kv_cache_dtype: str = "auto"
    """Cache type that the checkpoint asks for. It applies if `--kv-cache-dtype` is `auto`."""

    @property
    def product_type(self) -> str:
        """Type in which linear layers multiply: "fp8", "nvfp4" or "bfloat16". Other weights are converted to bfloat16.

        Products in int8 count as "fp8", because GPUs that have both compute them at the same rate.
        """
        if not self.linear_bits:
            return "bfloat16"
        if self.method in ("fp8", "int8") or (self._is_compressed_tensors and self.linear_bits in (8, _FP8)):
            return "fp8"
        if self.method == "nvfp4" or (self._is_compressed_tensors and self.linear_bits == _NVFP4):
            return "nvfp4"
        return "bfloat16"

    @property
    def _is_compressed_tensors(self) -> bool:
        return self.method == "compressed-tensors"


_FP8 = 8 + 32 / 128**2
"""Bits per weight in fp8 with a float32 scale for each block of 128 x 128 weights."""
_SCALED_4 = 4 + (16 + 4) / 128
"""Bits per weight of 4 bits in groups of 128 weights, each with a 16-bit scale and a 4-bit zero point."""
_MXFP4 = 4 + 8 / 32
"""Bits per weight of 4 bits in groups of 32 weights, each with an 8-bit scale."""
_NVFP4 = 4 + 8 / 16
"""Bits per weight of 4 bits in groups of 16 weights, each with an 8-bit scale."""
_BLOCKED_4 = 4 + 32 / 64
"""Bits per weight of 4 bits in blocks of 64 weights, each with a float32 scale."""

QUANTIZATIONS: Mapping[str, Quantization | None] = {
    "none": None,
    "fp8": Quantization(method="fp8", linear_bits=_FP8, expert_bits=_FP8),
    "int8": Quantization(method="int8", linear_bits=8, expert_bits=8),
    "awq": Quantization(method="awq", linear_bits=_SCALED_4, expert_bits=_SCALED_4),
    "gptq": Quantization(method="gptq", linear_bits=_SCALED_4, expert_bits=_SCALED_4),
    "mxfp4": Quantization(method="mxfp4", linear_bits=0, expert_bits=_MXFP4),
    "nvfp4": Quantization(method="nvfp4", linear_bits=_NVFP4, expert_bits=_NVFP4),
    "bitsandbytes": Quantization(method="bitsandbytes", linear_bits=_BLOCKED_4, expert_bits=_BLOCKED_4),
}
"""Formats by the value of `--quantization`; None for no quantization. With mxfp4, only experts are quantized."""
_ALSO = {
    "awq_marlin": "awq",
    "gptq_marlin": "gptq",
    "fbgemm_fp8": "fp8",
    "modelopt": "fp8",
    "modelopt_fp8": "fp8",
    "modelopt_fp4": "nvfp4",
    "ptpc_fp8": "fp8",
    "w8a8_fp8": "fp8",
    "w8a8_int8": "int8",
}
"""Name in `QUANTIZATIONS` of further methods of vLLM and SGLang that have the same bytes and only other kernels."""


def find_quantization(name: str) -> Quantization | None:
    """Return the quantization with this name; None for "none".

    Raises:
        UsageError: the name is unknown.
    """
    check_instance("--quantization", name, str, f"one of {', '.join(QUANTIZATIONS)}")
    method = _ALSO.get(name.casefold(), name.casefold())
    if method not in QUANTIZATIONS:
        raise UsageError(f"--quantization should be one of {', '.join(QUANTIZATIONS)}, not {name!r}.")
    return QUANTIZATIONS[method]


def stored_bytes(
    quantization: Quantization | None,
    *,
    num_linear_parameters: int,
    num_expert_parameters: int,
    num_other_parameters: int,
    dtype_bytes: int,
) -> int:
    """Return the number of bytes of all weights.

    Parameters of linear layers and of experts take the bits that `quantization` has for them. If it is None, or has 0
    for them, they take `dtype_bytes` each, like all other parameters.
    """
    linear_bits = quantization.linear_bits if quantization else 0
    expert_bits = quantization.expert_bits if quantization else 0
    bits = (
        num_linear_parameters * (linear_bits or 8 * dtype_bytes)
        + num_expert_parameters * (expert_bits or 8 * dtype_bytes)
        + num_other_parameters * 8 * dtype_bytes
    )
    return math.ceil(bits / 8)
