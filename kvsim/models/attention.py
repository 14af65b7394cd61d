"""Caches of each decoder layer of a transformer, from its `config.json`, by the rules of vLLM 0.25.1.

The size of the KV cache follows from these caches. Most functions are for one family of architectures, and tell which
layers have full attention, a sliding window, chunks or a latent. Models with recurrent layers are in
`kvsim.models.recurrent`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.models.layers import ChunkedLocal, FullAttention, Indexer, Mla, SlidingWindow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.models.config import Config
    from kvsim.models.layers import Layer

MOST_LAYERS = 10_000
"""Limit for the number of layers of a model; real models have far fewer."""

Caches = list[tuple["Layer", ...]]
"""Caches of each decoder layer: an empty tuple for a layer without a cache."""


def num_layers(config: Config) -> int:
    """Return the number of decoder layers: as stated, or else the length of the stated list of layers."""
    for field in ("hybrid_override_pattern", "layers_block_type"):
        pattern = config.fields.get(field)
        if isinstance(pattern, str | list) and pattern and not config.states("num_hidden_layers"):
            return len(pattern)
    return config.count("num_hidden_layers", "n_layer", "num_layers", "n_layers", most=MOST_LAYERS)


def num_heads(config: Config) -> int:
    """Return the number of query heads."""
    return config.count("num_attention_heads", "n_head", "n_heads")


def num_kv_heads(config: Config) -> int:
    """Return the number of KV heads, a divisor of the number of query heads. If not stated, it is that number."""
    heads = num_heads(config)
    names = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
    kv_heads = config.count(*names, default=heads, most=heads)
    if heads % kv_heads:
        raise config.wrong(next(filter(config.states, names)), f"a divisor of the {heads} attention heads")
    return kv_heads


def head_dim(config: Config) -> int:
    """Return the number of elements of one attention head."""
    hidden, heads = hidden_size(config), num_heads(config)
    # With latent attention, other fields state the sizes of heads, so that this quotient may be inexact.
    has_default = hidden % heads == 0 or config.states("kv_lora_rank")
    return config.count("head_dim", "attention_head_dim", default=hidden // heads if has_default else None)


def hidden_size(config: Config) -> int:
    """Return the number of elements of the vector that passes from layer to layer."""
    return config.count("hidden_size", "n_embd", "d_model")


def full(config: Config) -> FullAttention:
    """Return a full-attention layer with the number of KV heads and the head size that the configuration states."""
    size = head_dim(config)
    return FullAttention(
        num_kv_heads=num_kv_heads(config), head_dim=size, value_head_dim=config.count("v_head_dim", default=size)
    )


def by_layer_types(config: Config) -> Caches:
    """List the caches of full and sliding layers as `layer_types` names them, if that list has both kinds.

    Otherwise all layers are of one kind: sliding if `sliding_window` is above 0 and `use_sliding_window` is not false,
    else full. vLLM, too, ignores a list with one kind (`is_interleaved` is false) and applies the model's window to all
    layers.
    """
    kinds = config.texts("layer_types", num_layers(config))
    if kinds is not None:
        unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
        if unknown:
            raise config.wrong("layer_types", "a list of full_attention and sliding_attention", shown=repr(unknown[0]))
        if len(set(kinds)) > 1:
            return windowed(config, [kind == "sliding_attention" for kind in kinds])
    elif config.states("sliding_window_pattern"):
        raise config.wrong("layer_types", "a list, since sliding_window_pattern is stated")
    has_window = config.states("sliding_window") and config.flag("use_sliding_window", default=True)
    if has_window and config.fields["sliding_window"] == 0:  # in some checkpoints, 0 means no window
        has_window = False
    return windowed(config, [has_window] * num_layers(config))


def windowed(config: Config, is_sliding: Sequence[bool]) -> Caches:
    """List the caches of full and sliding layers with the same heads. `is_sliding` is True for each sliding layer."""
    layer = full(config)
    if not any(is_sliding):
        return [(layer,)] * len(is_sliding)
    sliding = SlidingWindow(
        num_kv_heads=layer.num_kv_heads,
        head_dim=layer.head_dim,
        value_head_dim=layer.value_head_dim,
        window=config.count("sliding_window"),
    )
    return [(sliding,) if slides else (layer,) for slides in is_sliding]


def full_every_nth(n: int, config: Config) -> Caches:
    """List the caches of layers of which every `n`-th has full attention, and all others a sliding window.

    Counted from 0, layers n - 1, 2n - 1, ... have full attention. If the configuration states `layer_types`,
    `by_layer_types` decides instead. If it states `sliding_window_pattern`, that number replaces `n`.
    """
    if config.states("layer_types"):
        return by_layer_types(config)
    n = config.count("sliding_window_pattern", "_sliding_window_pattern", default=n)
    return windowed(config, [(index + 1) % n != 0 for index in range(num_layers(config))])


def gpt_oss(config: Config) -> Caches:
    """List the caches of gpt-oss. Every second layer, from the first on, has a sliding window.

    `layer_types` has no effect.
    """
    return windowed(config, [index % 2 == 0 for index in range(num_layers(config))])


def gemma_3n(config: Config) -> Caches:
    """List the caches of Gemma 3n. Its last layers have no cache: they read the caches of earlier layers."""
    return _without_shared(config, full_every_nth(5, config))


def _without_shared(config: Config, layers: Caches) -> Caches:
    """Return `layers` without the caches of the last `num_kv_shared_layers` layers, which read other layers' caches."""
    num_shared = config.count("num_kv_shared_layers", default=0, least=0, most=len(layers) - 1)
    return layers[: len(layers) - num_shared] + [()] * num_shared


def gemma_4(config: Config) -> Caches:
    """List the caches of Gemma 4. Full and sliding layers differ in number and size of KV heads.

    The last layers may have no cache: they read the caches of earlier layers.
    """
    layers = full_every_nth(6, config)
    layers[-1] = (full(config),)  # the last layer is full, even if the pattern makes it sliding
    layers = [
        (_gemma_4_full_layer(config, index),)
        if isinstance(caches[0], FullAttention) and caches[0].kind == "full"
        else caches
        for index, caches in enumerate(layers)
    ]
    return _without_shared(config, layers)


def _gemma_4_full_layer(config: Config, index: int) -> FullAttention:
    """Return the full-attention layer with index `index` of Gemma 4.

    The configuration states its heads in `per_layer_config`, under "05" or "5" for layer 5, or in fields for all full
    layers.
    """
    per_layer = config.fields.get("per_layer_config")
    stated = per_layer.get(f"{index:02d}", per_layer.get(str(index))) if isinstance(per_layer, dict) else None
    nested = type(config)(stated if isinstance(stated, dict) else {}, f"per_layer_config of {config.where}")
    size = nested.count("head_dim", default=config.count("global_head_dim", default=head_dim(config)))
    heads = config.count("num_global_key_value_heads", default=num_kv_heads(config))
    heads = nested.count("num_key_value_heads", default=heads)
    return FullAttention(num_kv_heads=heads, head_dim=size, value_head_dim=size)


def llama_4(config: Config) -> Caches:
    """List the caches of Llama 4: chunked attention in layers with rotary positions, full attention in all others.

    By default, every fourth layer has no rotary positions.
    """
    count = num_layers(config)
    layer = full(config)
    if config.fields.get("attention_chunk_size", 8192) is None:
        return [(layer,)] * count
    chunk = config.count("attention_chunk_size", default=8192)
    chunked = ChunkedLocal(
        num_kv_heads=layer.num_kv_heads, head_dim=layer.head_dim, value_head_dim=layer.value_head_dim, window=chunk
    )
    # Despite its name, this list has 1 for layers with rotary positions and 0 for layers without.
    has_rotary = config.fields.get("no_rope_layers")
    if has_rotary is not None and has_rotary != []:
        is_list = isinstance(has_rotary, list | tuple) and all(type(x) is int and x in (0, 1) for x in has_rotary)
        if not is_list or len(has_rotary) != count:
            raise config.wrong("no_rope_layers", f"a list of {count} ones and zeros, one for every layer")
        return [(chunked,) if is_rotary else (layer,) for is_rotary in has_rotary]
    interval = config.count("no_rope_layer_interval", default=4)
    return [(chunked,) if (index + 1) % interval else (layer,) for index in range(count)]


def latent(config: Config) -> Caches:
    """List the caches of DeepSeek. Every layer has a latent and, with sparse attention, the keys of an indexer."""
    sparse = config.count("index_topk", default=0, least=0) > 0
    layer = Mla(
        kv_lora_rank=config.count("kv_lora_rank"), rope_dim=config.count("qk_rope_head_dim", least=0), sparse=sparse
    )
    caches = (layer, Indexer(head_dim=config.count("index_head_dim", default=128))) if sparse else (layer,)
    return [caches] * num_layers(config)
