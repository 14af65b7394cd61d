"""How many bytes the weights of a model take in the type in which they are stored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvsim.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """Bits of one stored weight, scales included. Embeddings, norms and routers keep the model's own type."""

    method: str
    linear_bits: float
    """Bits of a weight of the linear layers that every token passes through; 0: the model's own type."""
    expert_bits: float
    """Bits of a weight of a routed expert; 0: the model's own type."""


_GROUP_SIZE = 128
_FP8 = 8 + 32 / 128**2
_SCALED_4 = 4 + (16 + 4) / _GROUP_SIZE
_MXFP4 = 4 + 8 / 32
_NVFP4 = 4 + 8 / 16

QUANTIZATIONS: Mapping[str, Quantization | None] = {
    "none": None,
    "fp8": Quantization(method="fp8", linear_bits=_FP8, expert_bits=_FP8),
    "int8": Quantization(method="int8", linear_bits=8, expert_bits=8),
    "awq": Quantization(method="awq", linear_bits=_SCALED_4, expert_bits=_SCALED_4),
    "gptq": Quantization(method="gptq", linear_bits=_SCALED_4, expert_bits=_SCALED_4),
    "mxfp4": Quantization(method="mxfp4", linear_bits=0, expert_bits=_MXFP4),
    "nvfp4": Quantization(method="nvfp4", linear_bits=_NVFP4, expert_bits=_NVFP4),
}
"""Values of `--quantization`: fp8 with a float32 scale for every 128 x 128 weights, 4 bits in groups of 128 weights
with a 16-bit scale and a zero point, mxfp4 (experts alone) in groups of 32 with an 8-bit scale."""


def find_quantization(name: str) -> Quantization | None:
    """The quantization of that name; None for `none`.

    Raises:
        UsageError: if there is none of that name.
    """
    if name.casefold() not in QUANTIZATIONS:
        raise UsageError(f"--quantization should be one of {', '.join(QUANTIZATIONS)}, not {name!r}.")
    return QUANTIZATIONS[name.casefold()]


def from_config(config: Mapping[str, Any], where: str) -> Quantization | None:
    """The quantization that `quantization_config` of a `config.json` describes; None where there is none.

    Raises:
        UsageError: if kvsim does not know the method; the message names `where`.
    """
    stated = config.get("quantization_config") or config.get("compression_config")
    if stated is None:
        return None
    if not isinstance(stated, dict):
        raise UsageError(f"{where} says quantization_config = {stated!r}; it must be an object with quant_method.")
    method = str(stated.get("quant_method", "")).casefold().replace("_", "-")
    if method in ("awq", "gptq", "awq-marlin", "gptq-marlin", "auto-round", "intel/auto-round"):
        return _grouped(method, stated.get("bits", 4), stated.get("group_size", _GROUP_SIZE), where)
    if method in ("fp8", "fbgemm-fp8"):
        return QUANTIZATIONS["fp8"]
    if method in ("mxfp4", "gpt-oss-mxfp4"):
        return QUANTIZATIONS["mxfp4"]
    if method == "modelopt":
        algorithm = str(stated.get("quant_algo", "")).casefold()
        if algorithm in ("fp8", "nvfp4"):
            return QUANTIZATIONS[algorithm]
    if method == "compressed-tensors":
        return _compressed_tensors(stated, where)
    raise UsageError(
        f"{where} says quant_method = {stated.get('quant_method')!r}, which kvsim does not know; say "
        f"--quantization with one of {', '.join(QUANTIZATIONS)}."
    )


def _grouped(method: str, bits: object, group_size: object, where: str) -> Quantization:
    if not (isinstance(bits, int) and 1 <= bits <= 8) or not isinstance(group_size, int):
        raise UsageError(
            f"{where} says bits = {bits!r} and group_size = {group_size!r} of its quantization; bits must be 1 to 8, "
            "and group_size a whole number."
        )
    stored = bits + ((16 + bits) / group_size if group_size > 0 else 0)
    return Quantization(method=method, linear_bits=stored, expert_bits=stored)


def _compressed_tensors(stated: Mapping[str, Any], where: str) -> Quantization:
    groups = stated.get("config_groups")
    schemes = list(groups.values()) if isinstance(groups, dict) else []
    weights = schemes[0].get("weights") if len(schemes) == 1 and isinstance(schemes[0], dict) else None
    if not isinstance(weights, dict):
        raise UsageError(
            f"{where} does not say one config_groups entry with weights in its quantization_config; say --quantization "
            f"with one of {', '.join(QUANTIZATIONS)}."
        )
    bits, group_size = weights.get("num_bits"), weights.get("group_size")
    scheme = _grouped("compressed-tensors", bits, group_size or 0, where)
    experts_alone = _targets_experts_alone(schemes[0]) or _ignores_attention(stated)
    return Quantization(
        method=scheme.method, linear_bits=0 if experts_alone else scheme.linear_bits, expert_bits=scheme.expert_bits
    )


def _ignores_attention(stated: Mapping[str, Any]) -> bool:
    """Whether attention stays as it is in all layers: then so does whatever every token passes through."""
    ignored = stated.get("ignore")
    patterns = [str(item) for item in ignored] if isinstance(ignored, list) else []
    return any(pattern.startswith("re:") and "attn" in pattern for pattern in patterns)


def _targets_experts_alone(scheme: Mapping[str, Any]) -> bool:
    targets = scheme.get("targets")
    return isinstance(targets, list) and bool(targets) and all("expert" in str(target) for target in targets)


def stored_bytes(
    quantization: Quantization | None,
    *,
    num_linear_parameters: int,
    num_expert_parameters: int,
    num_other_parameters: int,
    dtype_bytes: int,
) -> int:
    """Bytes of weights of which some are quantized; a part's bits of 0 stand for the model's own type."""
    linear_bits = quantization.linear_bits if quantization else 0
    expert_bits = quantization.expert_bits if quantization else 0
    bits = (
        num_linear_parameters * (linear_bits or 8 * dtype_bytes)
        + num_expert_parameters * (expert_bits or 8 * dtype_bytes)
        + num_other_parameters * 8 * dtype_bytes
    )
    return math.ceil(bits / 8)
