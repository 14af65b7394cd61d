"""Model shapes: how many bytes a token's keys and values take, how many the weights, how much arithmetic a token costs.

The models known by name stand in `models.toml` beside this file, which is read when the first one is asked for. This
module knows nothing of GPUs, blocks or time.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import RecordingError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of one element, by the name that a configuration gives to its type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The shape of one decoder-only transformer. Keys and values are kept in `dtype`."""

    name: str
    num_layers: int
    num_kv_layers: int
    """Layers that keep keys and values for every token: all of them, but few in a hybrid of attention and Mamba."""
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    """Elements of one head of the queries, keys and values."""
    hidden_size: int
    intermediate_size: int
    """Width of a layer's feed-forward network; of one expert where every layer is a mixture."""
    vocab_size: int
    max_position_embeddings: int
    """Longest sequence in tokens, prompt and answer together."""
    tie_word_embeddings: bool
    """Whether one table serves both as input embedding and as output projection."""
    dtype: str
    """A key of `DTYPE_BYTES`."""
    num_parameters: int
    num_active_parameters: int
    """Parameters that one token passes through; fewer than `num_parameters` in a mixture of experts."""
    kv_lora_rank: int | None = None
    """Elements of the compressed latent that multi-head latent attention (MLA) keeps instead of keys and values."""
    qk_rope_head_dim: int | None = None
    """Elements that MLA keeps beside the latent, shared by all heads."""
    state_bytes_per_sequence: int = 0
    """Recurrent state that a sequence holds whatever its length (Mamba layers)."""
    sliding_window: int | None = None
    """Tokens that a sliding layer looks back. kvsim counts such layers as full ones, as vLLM does on request."""
    num_sliding_layers: int = 0
    stored_weight_bytes: int | None = None
    """Size of the published weights, where it is not `num_parameters` elements of `dtype`."""
    sources: tuple[str, ...] = ()
    """Where the shape was seen."""
    from_memory: tuple[str, ...] = ()
    """Figures that no source was seen for."""
    note: str = ""

    @classmethod
    def from_shape(cls, shape: Mapping[str, Any]) -> Model:
        """The model that a mapping of field names describes, such as `model` in a recording's `meta.json`.

        Keys that are no field of `Model` are ignored. `num_kv_layers` defaults to `num_layers`, `num_parameters` to the
        count of a decoder with a gated feed-forward network, `num_active_parameters` to `num_parameters`. Where the
        mapping states `kv_bytes_per_token`, it must agree with the shape.

        Raises:
            RecordingError: if a figure is missing, cannot be right, or contradicts another.
        """
        known: dict[str, Any] = {key: shape[key] for key in cls.__dataclass_fields__ if shape.get(key) is not None}
        known.setdefault("name", "unnamed")
        known.setdefault("num_kv_layers", shape.get("num_layers"))
        known.setdefault("tie_word_embeddings", False)
        known = {key: tuple(value) if isinstance(value, list) else value for key, value in known.items()}
        for key in (*_REQUIRED, *known):
            if right := _what_would_be_right(key, known.get(key)):
                raise RecordingError(_wrong(shape, key, right))
        known.setdefault("num_parameters", _gated_decoder_parameters(known))
        known.setdefault("num_active_parameters", known["num_parameters"])
        model = cls(**known)
        if shape.get("kv_bytes_per_token", model.kv_bytes_per_token) != model.kv_bytes_per_token:
            raise RecordingError(_wrong(shape, "kv_bytes_per_token", f"{model.kv_bytes_per_token:,}, by its shape"))
        return model

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one element of the weights, activations, keys and values."""
        return DTYPE_BYTES[self.dtype]

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that the keys and values of one token take in all layers, on one GPU."""
        return self.num_kv_layers * self.kv_bytes_per_token_and_layer()

    def kv_bytes_per_token_and_layer(self, tensor_parallel_size: int = 1) -> int:
        """Bytes that one token takes in one layer on each of `tensor_parallel_size` GPUs.

        Heads are dealt out among the GPUs, and repeated once there are more GPUs than heads. MLA's latent belongs to
        all heads at once, so every GPU keeps all of it.
        """
        if self.kv_lora_rank is not None:
            return (self.kv_lora_rank + (self.qk_rope_head_dim or 0)) * self.dtype_bytes
        return 2 * max(1, self.num_kv_heads // tensor_parallel_size) * self.head_dim * self.dtype_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, as published."""
        return self.num_parameters * self.dtype_bytes if self.stored_weight_bytes is None else self.stored_weight_bytes

    @property
    def num_lookup_parameters(self) -> int:
        """Parameters of an input embedding that is only looked up: its rows are neither streamed nor multiplied."""
        return 0 if self.tie_word_embeddings else self.vocab_size * self.hidden_size

    @property
    def flops_per_token(self) -> float:
        """FLOPs that one token costs in the layers: a multiplication and an addition per active parameter.

        Attention itself is `flops_per_attention_pair`; the output projection is `flops_per_logits`, since an engine
        computes logits only for the position it will sample from.
        """
        return 2.0 * (self.num_active_parameters - self.num_lookup_parameters) - self.flops_per_logits

    @property
    def flops_per_logits(self) -> float:
        """FLOPs of the output projection of one position."""
        return 2.0 * self.vocab_size * self.hidden_size

    @property
    def flops_per_attention_pair(self) -> float:
        """FLOPs in all layers for one query against one key: the score, and the value that it weighs."""
        return 4.0 * self.num_kv_layers * self.num_attention_heads * self.head_dim


_REQUIRED = (
    "num_layers",
    "num_kv_layers",
    "num_attention_heads",
    "num_kv_heads",
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "dtype",
)


@cache
def all_models() -> tuple[Model, ...]:
    """Every model that can be named on a command line."""
    table = tomllib.loads(Path(__file__).with_name("models.toml").read_text(encoding="utf-8"))
    return tuple(Model.from_shape(entry) for entry in table["model"])


def find_model(name: str) -> Model:
    """The model of that name, in any case: all of it, the part after the slash, or whole words of that part.

    "meta-llama/Meta-Llama-3-8B", "Meta-Llama-3-8B" and "llama-3-8b" are one model; "llama-3" could be two: refused.

    Raises:
        UnknownNameError: if no listed model, or more than one, goes by that name.
    """
    owner, _, title = name.strip().casefold().rpartition("/")
    listed = [model for model in all_models() if not owner or model.name.casefold().startswith(f"{owner}/")]
    matches = [model for model in listed if _title(model) == title]
    matches = matches or [model for model in listed if f"-{title}-" in f"-{_title(model)}-"]
    if len(matches) == 1:
        return matches[0]
    raise UnknownNameError(
        "model", name, [model.name for model in matches or all_models()], listed_by="kvsim size --list"
    )


def _title(model: Model) -> str:
    return model.name.casefold().rpartition("/")[2]


def _gated_decoder_parameters(shape: Mapping[str, Any]) -> int:
    """Parameters of a Llama-like decoder: attention, gate, up and down projections, norms, embeddings; no biases."""
    hidden: int = shape["hidden_size"]
    heads: int = shape["num_attention_heads"] + shape["num_kv_heads"]
    layer = 2 * hidden * heads * shape["head_dim"] + 3 * hidden * shape["intermediate_size"] + 2 * hidden
    embeddings = shape["vocab_size"] * hidden * (1 if shape["tie_word_embeddings"] else 2)
    return int(shape["num_layers"] * layer + embeddings + hidden)


def _what_would_be_right(key: str, value: object) -> str:
    """What the value of a field should have been; empty if it is right."""
    if key == "dtype":
        right, fine = f"one of {', '.join(DTYPE_BYTES)}", value in tuple(DTYPE_BYTES)
    elif key == "tie_word_embeddings":
        right, fine = "true or false", isinstance(value, bool)
    elif key in ("name", "note"):
        right, fine = "text", isinstance(value, str)
    elif key in ("sources", "from_memory"):
        right, fine = "a list", isinstance(value, tuple)
    else:
        least = 0 if key in ("state_bytes_per_sequence", "num_sliding_layers") else 1
        right = f"a whole number of at least {least}"
        fine = isinstance(value, int) and not isinstance(value, bool) and value >= least
    return "" if fine else right


def _wrong(shape: Mapping[str, Any], key: str, right: str) -> str:
    what = f"says {key} = {shape[key]!r}" if key in shape else f"does not say {key}"
    return f"the shape of the model {shape.get('name', 'without a name')!r} {what}; it must be {right}."
