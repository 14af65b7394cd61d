"""Settings of the KV pool that follow from those of the scheduler, and the layers and weights of draft models.

Layers and weights for drafting leave less memory for the KV cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.errors import UnknownNameError, UsageError
from kvsim.models import find_model
from kvsim.models.layers import FullAttention
from kvsim.policies.pipeline import Pipeline
from kvsim.policies.releases import defaults_of
from kvsim.sizing.pool_settings import Drafter, PoolSettings

if TYPE_CHECKING:
    from kvsim.models import Model
    from kvsim.policies.settings import ContinuousSettings
    from kvsim.policies.speculative_config import SpeculativeConfig

_EAGLE3_VOCABULARY = 32_000
"""Vocabulary size of published EAGLE3 heads."""


def pool_settings(settings: ContinuousSettings, model: Model, *, captured: bool, **others: Any) -> PoolSettings:
    """Return the settings of the pool of a vLLM server with the scheduler's `settings`.

    `captured` is True if steps are launched as captured graphs. `others` are fields of `PoolSettings` that do not
    follow from the scheduler.

    Raises:
        UsageError: the draft model is not known, or a value is out of range.
    """
    defaults, drafting = defaults_of(settings.vllm), settings.drafting
    if drafting is not None:
        others |= {"drafter": drafter_of(drafting, model), "num_drafts": drafting.num_tokens}
    if settings.enable_lora:
        others |= {"max_loras": settings.max_loras, "max_lora_rank": settings.max_lora_rank}
    return PoolSettings(
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_in_flight_tokens=Pipeline.of(model, settings.vllm).max_in_flight_tokens(settings),
        keeps_every_state=defaults.keeps_every_state,
        estimates_graphs=defaults.estimates_graphs and captured,
        **others,
    )


def drafter_of(config: SpeculativeConfig, model: Model) -> Drafter | None:
    """Return the draft layers of `config` for `model`; None if drafts are copied from earlier tokens instead.

    Raises:
        UsageError: the draft model is not known, or has MLA or recurrent layers.
    """
    if config.looks_up:
        return None
    if config.method == "draft_model":
        return _draft_model(config, model)
    gpus = model.tensor_parallel_size
    if config.method == "mtp":
        layer = model.attention_layers[-1]
        tables = model.vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2) * model.dtype_bytes
        weights = (model.weight_bytes - tables) // model.num_layers
        weights += 2 * model.hidden_size**2 * model.dtype_bytes
        return Drafter(
            layers=(layer,) * config.num_modules,
            weight_bytes=config.num_modules * weights // gpus,
            why="estimate: a layer of the model, and the projection before it",
        )
    layer = FullAttention(num_kv_heads=model.num_kv_heads, head_dim=model.head_dim, value_head_dim=model.head_dim)
    parameters = _head_parameters(model, is_eagle3=config.method == "eagle3")
    return Drafter(
        layers=(layer,),
        weight_bytes=parameters * model.dtype_bytes // gpus,
        why=f"estimate: one layer shaped as the model's, {parameters:,} parameters; embeddings are shared",
    )


def _head_parameters(model: Model, *, is_eagle3: bool) -> int:
    hidden, heads = model.hidden_size, model.num_attention_heads * model.head_dim
    kv = model.num_kv_heads * model.head_dim
    wide = 2 * hidden if is_eagle3 else hidden
    layer = wide * (heads + 2 * kv) + heads * hidden + 3 * hidden * model.intermediate_size
    if is_eagle3:
        return layer + 3 * hidden**2 + _EAGLE3_VOCABULARY * hidden
    return layer + 2 * hidden**2


def _draft_model(config: SpeculativeConfig, model: Model) -> Drafter:
    assert config.model is not None
    try:
        draft = find_model(config.model)
    except UnknownNameError as error:
        raise UsageError(f"the draft model decides how large a block is: {error}") from error
    if draft.recurrent_layers or draft.kv_lora_rank is not None:
        raise UsageError(f"kvsim does not know the cache of {draft.name} as a draft model: its layers are not of plain "
                         "attention.")  # fmt: skip
    size = config.tensor_parallel_size or model.tensor_parallel_size
    return Drafter(
        layers=draft.attention_layers,
        weight_bytes=draft.weight_bytes // size,
        why=f"{draft.name}, {draft.num_parameters:,} parameters",
    )
