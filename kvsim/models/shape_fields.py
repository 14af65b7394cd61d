"""Shape of a model from a mapping, such as `model` in a recording's `meta.json`, with checks."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast, get_args

from kvsim.errors import RecordingError, UsageError, described, shortened
from kvsim.files.values import is_integer
from kvsim.models.dtypes import DTYPE_BYTES, KV_CACHE_DTYPES
from kvsim.models.layers import LAYER_CLASSES, Layer, Mla
from kvsim.models.vision import VisionTower, tower_of
from kvsim.models.weights import Quantization
from kvsim.setting_fields import check_instance, is_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_REQUIRED = (
    "num_layers",
    "num_attention_heads",
    "num_kv_heads",
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "dtype",
)
_TEXTS = ("name", "note", "architecture", "image_class")
_TRUTHS = ("tie_word_embeddings", "enable_expert_parallel")
_LISTS_OF_TEXTS = ("sources", "from_memory")
_LISTS = ("layer_kinds", "layer_caches")
_MAY_BE_ZERO = (
    "intermediate_size",
    "num_experts",
    "num_experts_per_token",
    "expert_intermediate_size",
    "num_expert_parameters",
    "num_encoder_parameters",
)
"""Fields with a whole number that may be 0. Other fields with a whole number must be at least 1."""
_MAY_BE_NONE = ("mamba_chunk_size", "vision", "quantization", "stored_weight_bytes")
_MOST_LAYERS, _MOST = 1 << 16, (1 << 63) - 1
"""Largest `num_layers`, and largest value of any other field with a whole number."""
_LAYER_FIELDS_MAY_BE_ZERO = ("rope_dim",)
"""Fields of a layer that may be 0. All other numbers of a layer must be at least 1."""


def read_shape(shape: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return the arguments `names` of `Model` from the mapping `shape`, checked and completed.

    Raises:
        RecordingError: a field is missing or invalid.
    """
    known: dict[str, Any] = {key: shape[key] for key in names if shape.get(key) is not None}
    known.setdefault("name", "unnamed")
    known.setdefault("tie_word_embeddings", False)
    known = {key: tuple(value) if isinstance(value, list) else value for key, value in known.items()}
    for key in (*_REQUIRED, *known):
        if expected := _field_expected(key, known.get(key)):
            raise RecordingError(_wrong(shape, key, expected))
    if "quantization" in known:
        known["quantization"] = _quantization(shape)
    if "vision" in known:
        known["vision"] = tower_of(known["vision"])
    if known.get("layer_kinds"):
        known["layer_kinds"] = tuple(_layer(shape, entry) for entry in known["layer_kinds"])
        known["layer_caches"] = _layer_caches(shape, known)
    elif shape.get("kv_lora_rank") is not None:  # older recordings state a latent without `layer_kinds`
        known["layer_kinds"] = (_latent(shape),)
        known["layer_caches"] = ((0,),) * known["num_layers"]
    elif shape.get("num_kv_layers", known["num_layers"]) != known["num_layers"]:
        raise RecordingError(_wrong(shape, "num_kv_layers", "left out where layer_kinds does not say what layers keep"))
    known.setdefault("num_parameters", _gated_decoder_parameters(known))
    known.setdefault("num_active_parameters", known["num_parameters"])
    return known


def check_fields(model: Any) -> None:
    """Check every field of a `Model`. Convert whole numbers of NumPy, and lists to tuples.

    Raises:
        UsageError: a field is invalid.
    """
    for each in fields(model):
        value = getattr(model, each.name)
        if value is None and each.name in _MAY_BE_NONE:
            continue
        if type(value) not in (int, str, tuple) and (is_whole(value) or isinstance(value, list)):
            object.__setattr__(model, each.name, value := tuple(value) if isinstance(value, list) else int(value))
        if each.name == "quantization":
            check_instance("quantization of a Model", value, Quantization, "a Quantization or None")
        elif each.name == "vision":
            check_instance("vision of a Model", value, VisionTower, "a VisionTower or None")
        elif expected := _field_expected(each.name, value):
            raise UsageError(f"{each.name} of a Model should be {expected}, not {described(value)}.")
    for layer in model.layer_kinds:
        if not isinstance(layer, get_args(Layer)):
            raise UsageError(
                f"layer_kinds of a Model should have layers such as FullAttention, not {described(layer)}."
            )
        for each in fields(layer):
            value = getattr(layer, each.name)
            if each.init and (expected := _layer_field_expected(each.name, str(each.type), value)):
                raise UsageError(
                    f"{each.name} of a {type(layer).__name__} should be {expected}, not {described(value)}."
                )
    if model.layer_caches and not _are_caches(model.layer_caches, model.num_layers, len(model.layer_kinds)):
        raise UsageError(
            f"layer_caches of a Model should be a tuple of indices into layer_kinds for each of the {model.num_layers} "
            f"layers, not {shortened(model.layer_caches)}."
        )
    object.__setattr__(model, "layer_caches", tuple(map(tuple, model.layer_caches)))


def _gated_decoder_parameters(shape: Mapping[str, Any]) -> int:
    """Count the parameters of a decoder like Llama's: attention, gated feed-forward network, norms and embeddings.

    Experts are not counted: a shape that has experts should state `num_parameters`.
    """
    hidden: int = shape["hidden_size"]
    heads: int = shape["num_attention_heads"] + shape["num_kv_heads"]
    layer = 2 * hidden * heads * shape["head_dim"] + 3 * hidden * shape["intermediate_size"] + 2 * hidden
    embeddings = shape["vocab_size"] * hidden * (1 if shape["tie_word_embeddings"] else 2)
    return int(shape["num_layers"] * layer + embeddings + hidden)


def _latent(shape: Mapping[str, Any]) -> Mla:
    """Return the latent of an older recording, which states `kv_lora_rank` and has no `layer_kinds`."""
    rank: Any = shape.get("kv_lora_rank")
    rope: Any = shape.get("qk_rope_head_dim", 0)
    if not is_integer(rank, 1):
        raise RecordingError(_wrong(shape, "kv_lora_rank", "a whole number of at least 1"))
    if not is_integer(rope, 0):
        raise RecordingError(_wrong(shape, "qk_rope_head_dim", "a whole number of at least 0"))
    return Mla(kv_lora_rank=rank, rope_dim=rope)


def _layer(shape: Mapping[str, Any], entry: Any) -> Layer:
    if isinstance(entry, get_args(Layer)):
        return cast("Layer", entry)
    layer_class = LAYER_CLASSES.get(str(entry.get("kind"))) if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or layer_class is None:
        raise RecordingError(_wrong(shape, "layer_kinds", f"a list of objects of kind {', '.join(LAYER_CLASSES)}"))
    values = {}
    for item in fields(layer_class):
        if item.init and item.name in entry:
            values[item.name] = value = entry[item.name]
            if expected := _layer_field_expected(item.name, str(item.type), value):
                what = f"says {item.name} = {value!r} in layer_kinds, kind {entry['kind']}"
                raise RecordingError(_message(shape, what, expected))
    try:
        return layer_class(**values)
    except TypeError:
        needed = ", ".join(item.name for item in fields(layer_class) if item.init)
        raise RecordingError(_wrong(shape, "layer_kinds", f"complete: {entry['kind']} needs {needed}")) from None


def _layer_field_expected(name: str, type_name: str, value: object) -> str:
    """Describe the valid values of a field of a layer; empty if `value` is valid."""
    if type_name == "int":
        least = 0 if name in _LAYER_FIELDS_MAY_BE_ZERO else 1
        expected, is_valid = f"a whole number of at least {least}", is_integer(value, least)
    elif type_name == "bool":
        expected, is_valid = "true or false", isinstance(value, bool)
    else:
        expected, is_valid = f"one of {', '.join(DTYPE_BYTES)}", isinstance(value, str) and value in DTYPE_BYTES
    return "" if is_valid else expected


def _layer_caches(shape: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    caches = known.get("layer_caches", ())
    if not _are_caches(caches, known["num_layers"], len(known["layer_kinds"])):
        expected = f"a list of indices into layer_kinds for each of the {known['num_layers']} layers"
        raise RecordingError(_wrong(shape, "layer_caches", expected))
    return tuple(tuple(layer) for layer in caches)


def _are_caches(caches: Sequence[object], num_layers: int, num_kinds: int) -> bool:
    """Tell whether `caches` has indices of `num_kinds` caches for each of `num_layers` layers."""
    return len(caches) == num_layers and all(
        isinstance(layer, list | tuple) and all(is_integer(index, 0, num_kinds - 1) for index in layer)
        for layer in caches
    )


def _quantization(shape: Mapping[str, Any]) -> Quantization:
    value = shape["quantization"]
    if isinstance(value, Quantization):
        return value
    bits: list[Any] = [value.get("linear_bits"), value.get("expert_bits")] if isinstance(value, dict) else []
    if not bits or not all(isinstance(item, int | float) and 0 <= item <= 64 for item in bits):
        raise RecordingError(_wrong(shape, "quantization", "an object with method, linear_bits and expert_bits"))
    cache = value.get("kv_cache_dtype", "auto")
    if cache not in KV_CACHE_DTYPES:
        raise RecordingError(_wrong(shape, "quantization", f"of a kv_cache_dtype among {', '.join(KV_CACHE_DTYPES)}"))
    return Quantization(
        method=str(value.get("method", "")), linear_bits=bits[0], expert_bits=bits[1], kv_cache_dtype=cache
    )


def _field_expected(key: str, value: object) -> str:
    """Describe the valid values of field `key`; empty if `value` is valid."""
    if key in ("dtype", "kv_cache_dtype"):
        allowed = tuple(DTYPE_BYTES) if key == "dtype" else KV_CACHE_DTYPES
        expected, is_valid = f"one of {', '.join(allowed)}", isinstance(value, str) and value in allowed
    elif key in _TRUTHS:
        expected, is_valid = "true or false", isinstance(value, bool)
    elif key in _TEXTS:
        expected, is_valid = "text", isinstance(value, str)
    elif key in _LISTS_OF_TEXTS:
        expected = "a list of texts"
        is_valid = isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    elif key in _LISTS:
        expected, is_valid = "a list", isinstance(value, tuple)
    elif key == "quantization":  # checked by `_quantization`
        expected, is_valid = "", True
    elif key == "vision":
        expected, is_valid = "an object with every figure of a vision tower", tower_of(value) is not None
    else:
        least, most = 0 if key in _MAY_BE_ZERO else 1, _MOST_LAYERS if key == "num_layers" else _MOST
        if is_integer(value, least, most):
            return ""
        is_below = not is_integer(value) or value < least
        expected, is_valid = f"a whole number of at {f'least {least}' if is_below else f'most {most:,}'}", False
    return "" if is_valid else expected


def _wrong(shape: Mapping[str, Any], key: str, right: str) -> str:
    what = f"says {key} = {shape[key]!r}" if key in shape else f"does not say {key}"
    return _message(shape, what, right)


def _message(shape: Mapping[str, Any], what: str, right: str) -> str:
    return f"the shape of the model {shape.get('name', 'without a name')!r} {what}; it must be {right}."
