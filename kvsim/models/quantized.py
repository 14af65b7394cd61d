"""The `quantization_config` of a `config.json`: bits per weight, and the cache type that the checkpoint asks for.

If kvsim cannot compute the bytes of a format, it refuses the model.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from kvsim.models.weights import QUANTIZATIONS, Quantization

if TYPE_CHECKING:
    from kvsim.errors import UsageError
    from kvsim.models.config import Config

_FIELDS = ("quantization_config", "compression_config")
"""Names of the field that describes the quantization. A configuration has at most one."""
_FIELDS_OF_PARTS_LEFT_OUT = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
_SMALL = re.compile(
    r"lm_head|shared_head|embed|norm|router|(^|[._])gate($|[^_a-z])|shared_expert_gate|vision|visual|image|img|audio|projector|mtp|nextn"
    r"|eh_proj|conv1d|in_proj_(a|b|ba)|dt_proj|bias"
)
"""Pattern for names of parts that no method quantizes, or that are tiny.

If a file lists such parts as not quantized, the result is the same as without them.
"""
_ATTENTION = re.compile(r"attn|attention")
_OF_EVERY_TOKEN = re.compile(
    r"attn|attention|shared_expert|mlp\W*\((gate|up|down|gate_up|\|)+\)|feed_forward\.(gate|up|down)"
)
"""Pattern for names of parts that every token passes through, in a model with experts."""


def quantization_of(config: Config, text: Config, *, num_layers: int, has_experts: bool) -> Quantization | None:
    """Return the quantization that the model or its text model states; None if none is stated."""
    places = [config] if config is text else [config, text]
    statements = [(place, name) for place in places for name in _FIELDS if place.states(name)]
    if not statements:
        return None
    place, name = statements[0]
    stated = place.fields[name]
    if any(other.fields[field] != stated for other, field in statements):
        raise place.wrong(name, "the same wherever it is stated")
    if not isinstance(stated, dict):
        raise place.wrong(name, "an object with quant_method")
    scheme = type(config)(stated, f"{name} of {place.where}")
    weights = _kept(scheme, _weights(scheme), num_layers=num_layers, has_experts=has_experts)
    cache = _cache(scheme)
    if cache != "auto" and place is not config and _method(scheme).startswith("modelopt"):
        raise place.wrong(name, "beside text_config, where vLLM looks for the type of the cache", shown="an object")
    return replace(weights, kv_cache_dtype=cache)


def _method(scheme: Config) -> str:
    """Return the stated quantization method in lower case; empty if none is stated."""
    method = scheme.fields.get("quant_method")
    producer = scheme.fields.get("producer")
    if method is None and isinstance(producer, dict) and producer.get("name") == "modelopt":
        return "modelopt"
    return method.casefold().replace("_", "-") if isinstance(method, str) else ""


def _weights(scheme: Config) -> Quantization:
    """Return the quantization of the linear layers, as if no part was left out."""
    method = _method(scheme)
    if method in ("awq", "awq-marlin", "auto-awq"):
        return _grouped(
            scheme, method, bits_names=("bits", "w_bit"), group_names=("group_size", "q_group_size"), widths=(4, 8)
        )
    if method in ("gptq", "gptq-marlin", "auto-gptq", "auto-round", "intel/auto-round", "inc"):
        return _grouped(scheme, method, bits_names=("bits",), group_names=("group_size",), widths=(2, 3, 4, 8))
    if method in ("fp8", "fbgemm-fp8"):
        return _fp8(scheme)
    if method in ("mxfp4", "gpt-oss-mxfp4"):
        return _named("mxfp4")
    if method.startswith("modelopt"):
        return _modelopt(scheme)
    if method == "compressed-tensors":
        return _compressed_tensors(scheme)
    raise _unknown(scheme, "quant_method", "a method that kvsim knows")


def _named(name: str) -> Quantization:
    known = QUANTIZATIONS[name]
    assert known is not None
    return known


def _unknown(scheme: Config, field: str, right: str) -> UsageError:
    """Return the error for `field` with an unknown method, whose right value is `right`.

    The message lists the methods of `--quantization`.
    """
    methods = ", ".join(name for name in QUANTIZATIONS if name != "none")
    return scheme.wrong(field, f"{right}; or remove the whole object, and give --quantization one of {methods}")


def _grouped(
    scheme: Config, method: str, *, bits_names: tuple[str, ...], group_names: tuple[str, ...], widths: tuple[int, ...]
) -> Quantization:
    """Return a quantization to integers, in which each group of weights has a 16-bit scale and a zero point.

    `bits_names` and `group_names` are fields that may state the bits of a weight and the weights of a group. `widths`
    has the possible numbers of bits.
    """
    bits = scheme.count(*bits_names)
    if bits not in widths:
        raise scheme.wrong(bits_names[0], f"one of {', '.join(map(str, widths))}")
    size = scheme.count(*group_names, least=-1, most=1 << 14)
    if size != -1 and (size < 1 or size % 8):
        raise scheme.wrong(group_names[0], "-1, or a multiple of 8")
    stored = bits + ((16 + bits) / size if size > 0 else 0)  # a size of -1 means one group per output: no overhead
    return Quantization(method=method, linear_bits=stored, expert_bits=stored)


def _fp8(scheme: Config) -> Quantization:
    block = scheme.fields.get("weight_block_size")
    if block is None:
        return _named("fp8")
    if not (
        isinstance(block, list | tuple)
        and len(block) == 2
        and all(type(size) is int and 16 <= size <= 1 << 14 for size in block)
    ):
        raise scheme.wrong("weight_block_size", "two whole numbers from 16 on")
    stored = 8 + 32 / (block[0] * block[1])
    return Quantization(method="fp8", linear_bits=stored, expert_bits=stored)


def _modelopt(scheme: Config) -> Quantization:
    inner = scheme.fields.get("quantization", scheme.fields)
    if not isinstance(inner, dict):
        raise scheme.wrong("quantization", "an object with quant_algo")
    algorithm = inner.get("quant_algo")
    named = algorithm.casefold() if isinstance(algorithm, str) else ""
    if named in ("fp8", "fp8_per_channel_per_token", "fp8_pb_wo"):
        return _named("fp8")
    if named == "nvfp4":
        return _named("nvfp4")
    raise _unknown(type(scheme)(inner, scheme.where), "quant_algo", "FP8 or NVFP4")


def _compressed_tensors(scheme: Config) -> Quantization:
    """Return the quantization of a `compressed-tensors` scheme, which must have a single group of layers."""
    groups = scheme.fields.get("config_groups")
    schemes = list(groups.values()) if isinstance(groups, dict) else []
    weights = schemes[0].get("weights") if len(schemes) == 1 and isinstance(schemes[0], dict) else None
    if not isinstance(weights, dict):
        raise _unknown(scheme, "config_groups", "an object of one entry with weights")
    group = type(scheme)(weights, f"weights of {scheme.where}")
    kind = group.fields.get("type", "int")
    if kind not in ("int", "float"):
        raise group.wrong("type", "int or float")
    if kind == "float":
        bits, size = group.count("num_bits"), group.count("group_size", default=-1, least=-1)
        floats = {(8, -1): "fp8", (8, 128): "fp8", (4, 16): "nvfp4", (4, 32): "mxfp4"}
        if (bits, size) not in floats:
            raise group.wrong("num_bits", "8, or 4 in groups of 16 or 32, since they are floats")
        stored = _named(floats[bits, size]).expert_bits
        quantization = Quantization(method="compressed-tensors", linear_bits=stored, expert_bits=stored)
    else:
        stated = group.fields.get("group_size")
        filled = {**group.fields, "group_size": -1 if stated is None else stated}
        filled_group = type(scheme)(filled, group.where)
        quantization = _grouped(
            filled_group,
            "compressed-tensors",
            bits_names=("num_bits",),
            group_names=("group_size",),
            widths=(2, 3, 4, 8),
        )
    targets = schemes[0].get("targets")
    experts_alone = isinstance(targets, list) and bool(targets) and all("expert" in str(target) for target in targets)
    return replace(quantization, linear_bits=0) if experts_alone else quantization


def _cache(scheme: Config) -> str:
    """Return the cache type that the checkpoint asks for; "auto" if it asks for none."""
    method = _method(scheme)
    inner = scheme.fields.get("quantization", scheme.fields) if method.startswith("modelopt") else scheme.fields
    place = type(scheme)({**scheme.fields, **inner}, scheme.where)
    stated, algorithm = place.fields.get("kv_cache_scheme"), place.fields.get("kv_cache_quant_algo")
    if method == "compressed-tensors" and stated is not None:
        fine = (
            isinstance(stated, dict)
            and stated.get("strategy") in ("tensor", "attn_head")
            and stated.get("symmetric") is True
        )
        if not (fine and (stated.get("type"), stated.get("num_bits")) == ("float", 8)):
            raise place.wrong("kv_cache_scheme", "symmetric floats of 8 bits by tensor or attn_head")
        return "fp8"
    if not method.startswith("modelopt"):
        if stated is not None or algorithm is not None:
            raise place.wrong(
                "kv_cache_scheme" if stated is not None else "kv_cache_quant_algo", f"left out, since {method} has none"
            )
        return "auto"
    kinds = {"FP8": "fp8", "NVFP4": "nvfp4"}
    types = set()
    if algorithm is not None:
        if not isinstance(algorithm, str) or algorithm.upper() not in kinds:
            raise place.wrong("kv_cache_quant_algo", f"one of {', '.join(kinds)}")
        types.add(kinds[algorithm.upper()])
    if stated is not None:
        bits = (stated.get("type"), stated.get("num_bits")) if isinstance(stated, dict) else None
        if bits == ("float", 8) and stated.get("dynamic") is False:
            types.add("fp8")
        elif bits == ("float", 4):
            types.add("nvfp4")
        else:
            raise place.wrong("kv_cache_scheme", "floats of 8 bits with dynamic = false, or of 4 bits")
    if len(types) > 1:
        raise place.wrong("kv_cache_quant_algo", "what kv_cache_scheme says")
    return types.pop() if types else "auto"


def _kept(scheme: Config, weights: Quantization, *, num_layers: int, has_experts: bool) -> Quantization:
    """Return `weights`, without quantization in the parts that the configuration leaves out.

    Of the large parts, only attention may be left out, and only in all layers of a model with experts. Then only the
    routed experts are quantized.
    """
    names: list[str] = []
    for field in _FIELDS_OF_PARTS_LEFT_OUT:
        stated = scheme.fields.get(field)
        if stated is None:
            continue
        if not isinstance(stated, list | tuple) or not all(isinstance(name, str) for name in stated):
            raise scheme.wrong(field, "a list of names of layers")
        names += stated
    large = [name for name in names if not _SMALL.search(name)]
    if not large or not weights.linear_bits:
        return weights
    attention = [name for name in large if _ATTENTION.search(name)]
    indices = {number for name in attention for number in re.findall(r"\.(\d+)\.", name)}
    in_all_layers = any(not re.search(r"\.\d+\.", name) for name in attention) or len(indices) == num_layers
    if (
        has_experts
        and in_all_layers
        and all(_OF_EVERY_TOKEN.search(name) or re.search(r"\.\d+\.", name) for name in large)
    ):
        return replace(weights, linear_bits=0)
    field = next(field for field in _FIELDS_OF_PARTS_LEFT_OUT if scheme.states(field))
    raise scheme.wrong(
        field, "without parts of layers, whose size kvsim cannot tell", shown=f"a list with {large[0]!r}"
    )
