"""Longest sequence of a model from its configuration, as vLLM 0.25.1 computes `max_model_len`.

It is the stated number of positions. If rotary positions are scaled by a kind in `_STRETCHING`, such as `yarn`, the
factor multiplies this number. With another kind, such as `llama3`, the stated number already includes the factor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsim.models.config import Config

_LENGTH_FIELDS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "max_seq_length",
    "seq_len",
)  # fmt: skip
"""Fields that may state the longest sequence. If there are several, vLLM takes the smallest value."""
_STRETCHING = ("linear", "dynamic", "ntk", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Kinds of scaling whose factor multiplies the longest sequence."""
_KEEPING = ("default", "llama3", "longrope", "su", "mrope", "proportional")
"""Kinds of scaling whose factor does not multiply the longest sequence.

`max_position_embeddings` already includes the factor.
"""
_PLAIN = ("default", "mrope", "proportional")
"""Kinds of scaling that have no factor."""
_LAYER_KINDS = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention")
"""Kinds of layers that may each have a scaling of positions."""
_NUMBER_FIELDS = ("factor", "attn_factor", "beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor", "alpha")


def longest_sequence(text: Config, given: int | None = None) -> int:
    """Return the number of tokens in the longest sequence. `given` is used if the configuration states none.

    Raises:
        UsageError: the configuration states none and `given` is None, or a field is invalid.
    """
    stated = [text.count(name) for name in _LENGTH_FIELDS if text.states(name)]
    if not stated and not text.states("model_max_length"):
        if given is None:
            raise text.wrong(_LENGTH_FIELDS[0], "stated, or given by --max-model-len: vLLM would assume 2,048 tokens")
        return given
    positions = text.count("model_max_length", default=min(stated, default=None))
    scalings = _scalings(text)
    if not scalings or text.architecture.startswith("Gemma3"):
        return positions
    by_kind = {(_kind(scaling), _stretch(scaling, positions)) for scaling in scalings}
    stretches = {stretch for kind, stretch in by_kind if kind in _STRETCHING}
    if len(stretches) > 1:
        raise text.wrong(_field(text), "of one factor for all layers: vLLM scales the longest sequence once")
    if any(kind in ("longrope", "su") for kind, _ in by_kind):
        return text.count("original_max_position_embeddings", default=positions)
    original, factor = stretches.pop() if stretches else (positions, 1.0)
    longest = int(original * factor)
    # Reading the product as a field checks its range, with an error that names it.
    return type(text)({"scaled max_position_embeddings": longest}, text.where).count("scaled max_position_embeddings")


def _field(text: Config) -> str:
    return "rope_scaling" if text.states("rope_scaling") else "rope_parameters"


def _scalings(text: Config) -> list[Config]:
    """Return the stated scalings of positions: one for all layers, one for each kind of layer, or none."""
    if text.states("rope_scaling") and text.states("rope_parameters"):
        both = [_without_base(text.fields[name]) for name in ("rope_scaling", "rope_parameters")]
        if both[0] != both[1]:
            raise text.wrong("rope_scaling", "what rope_parameters says, where both are there")
    name = _field(text)
    stated = text.fields.get(name)
    if stated is None:
        return []
    if not isinstance(stated, dict):
        raise text.wrong(name, "an object with rope_type, and factor where it scales")
    nested = {key: value for key, value in stated.items() if isinstance(value, dict)}
    if nested and not (set(stated) <= set(_LAYER_KINDS) and len(nested) == len(stated)):
        raise text.wrong(
            name, f"one object, or one for each kind of layers ({', '.join(_LAYER_KINDS)}) and nothing beside"
        )
    scalings = nested.values() if nested else [stated]
    return [type(text)(scaling, f"{name} of {text.where}") for scaling in scalings]


def _without_base(scaling: Any) -> Any:
    """Return a scaling without its rotary base. Two scalings count as equal even if only one states the base."""
    if not isinstance(scaling, dict):
        return scaling
    kind = {"rope_type": scaling.get("rope_type", scaling.get("type"))}
    return {key: value for key, value in (scaling | kind).items() if key not in ("rope_theta", "type")}


def _kind(scaling: Config) -> str:
    """Return the kind of a scaling; "default" if not stated."""
    known = (*_KEEPING, *_STRETCHING)
    kinds = {name: scaling.fields[name] for name in ("rope_type", "type") if scaling.states(name)}
    if wrong := [name for name, kind in kinds.items() if kind not in known]:
        raise scaling.wrong(wrong[0], f"one of {', '.join(known)}")
    values = list(dict.fromkeys(kinds.values()))
    if len(values) > 1 and values not in (["longrope", "su"], ["default", "mrope"]):
        raise scaling.wrong("type", f"what rope_type says, which is {values[0]!r}")
    if not values and scaling.states("factor"):
        raise scaling.wrong("rope_type", f"one of {', '.join(known)}, since factor is stated")
    return str(values[0]) if values else "default"


def _stretch(scaling: Config, positions: int) -> tuple[int, float]:
    """Return (number of positions, factor) of a scaling. In `longest_sequence`, the factor multiplies this number.

    `positions` is the number that the configuration states. Only `yarn` may multiply another number.
    """
    for name in _NUMBER_FIELDS:
        if scaling.states(name):
            scaling.positive(name)
    kind = _kind(scaling)
    original = scaling.count("original_max_position_embeddings", default=positions)
    needs_none = kind in _KEEPING or (kind == "dynamic" and scaling.states("alpha"))
    factor = scaling.positive("factor", default=1.0 if needs_none else None)
    if factor < 1 or (factor > 1 and kind in _PLAIN):
        raise scaling.wrong("factor", "at least 1" if factor < 1 else f"left out, since {kind} scales nothing")
    return original if kind == "yarn" else positions, factor
