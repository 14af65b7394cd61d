"""List the caches of attention layers by the rules of vLLM 0.25.1: sliding, chunked or latent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.models.layers import ChunkedLocal, FullAttention, Indexer, Mla, SlidingWindow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.models.config import Config
    from kvsim.models.layers import Layer

MOST_LAYERS = 10_000
"""Maximum number of layers of a model; real models have far fewer."""

Caches = list[tuple["Layer", ...]]
"""Caches of each layer of a model."""


def num_layers(config: Config) -> int:
    """Return the number of decoder layers; the length of the layer pattern if only that is stated."""
    for pattern in ("hybrid_override_pattern", "layers_block_type"):
        stated = config.fields.get(pattern)
        if isinstance(stated, str | list) and stated and not config.states("num_hidden_layers"):
            return len(stated)
    return config.count("num_hidden_layers", "n_layer", "num_layers", "n_layers", most=MOST_LAYERS)


def num_heads(config: Config) -> int:
    """Return the number of query heads."""
    return config.count("num_attention_heads", "n_head", "n_heads")


def num_kv_heads(config: Config) -> int:
    """Return the number of key and value heads."""
    heads = num_heads(config)
    names = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
    found = config.count(*names, default=heads, most=heads)
    if heads % found:
        raise config.wrong(next(filter(config.states, names)), f"a divisor of the {heads} attention heads")
    return found


def head_dim(config: Config) -> int:
    """Return the elements of one head."""
    hidden, heads = hidden_size(config), num_heads(config)
    divides = hidden % heads == 0 or config.states("kv_lora_rank")  # of a latent, heads have their own sizes
    return config.count("head_dim", "attention_head_dim", default=hidden // heads if divides else None)


def hidden_size(config: Config) -> int:
    """Return the width of the residual stream."""
    return config.count("hidden_size", "n_embd", "d_model")


def full(config: Config) -> FullAttention:
    """Return a layer of full attention with the model's main heads."""
    size = head_dim(config)
    return FullAttention(
        num_kv_heads=num_kv_heads(config), head_dim=size, value_head_dim=config.count("v_head_dim", default=size)
    )


def plain(config: Config) -> Caches:
    """List layers by `layer_types`; without it, all layers slide if `sliding_window` applies, or none."""
    kinds = config.texts("layer_types", num_layers(config))
    if kinds is not None:
        unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
        if unknown:
            raise config.wrong("layer_types", "a list of full_attention and sliding_attention", shown=repr(unknown[0]))
        if len(set(kinds)) > 1:
            return windowed(config, [kind == "sliding_attention" for kind in kinds])
    elif config.states("sliding_window_pattern"):
        raise config.wrong("layer_types", "a list, since sliding_window_pattern is stated")
    slides = config.states("sliding_window") and config.flag("use_sliding_window", default=True)
    if slides and config.fields["sliding_window"] == 0:  # in some checkpoints, 0 means no window
        slides = False
    return windowed(config, [slides] * num_layers(config))


def windowed(config: Config, slides: Sequence[bool]) -> Caches:
    """List layers with equal heads; `slides` tells which are sliding."""
    layer = full(config)
    if not any(slides):
        return [(layer,)] * len(slides)
    sliding = SlidingWindow(
        num_kv_heads=layer.num_kv_heads,
        head_dim=layer.head_dim,
        value_head_dim=layer.value_head_dim,
        window=config.count("sliding_window"),
    )
    return [(sliding,) if slide else (layer,) for slide in slides]


def every(pattern: int, config: Config) -> Caches:
    """Make all layers sliding but every `pattern`-th; `layer_types` or `sliding_window_pattern` overrides this."""
    if config.states("layer_types"):
        return plain(config)
    pattern = config.count("sliding_window_pattern", "_sliding_window_pattern", default=pattern)
    return windowed(config, [(index + 1) % pattern != 0 for index in range(num_layers(config))])


def even_layers_slide(config: Config) -> Caches:
    """List the layers of gpt-oss: those of even index slide, regardless of the configuration."""
    return windowed(config, [index % 2 == 0 for index in range(num_layers(config))])


def gemma_3n(config: Config) -> Caches:
    """List the layers of Gemma 3n: the last layers read the caches of earlier layers and have none."""
    return _with_shared(config, every(5, config))


def _with_shared(config: Config, layers: Caches) -> Caches:
    shared = config.count("num_kv_shared_layers", default=0, least=0, most=len(layers) - 1)
    return layers[: len(layers) - shared] + [()] * shared


def gemma_4(config: Config) -> Caches:
    """List the layers of Gemma 4: full layers have other heads, and the last layers may have no cache."""
    layers = every(6, config)
    layers[-1] = (full(config),)
    layers = [
        (_global(config, index),) if isinstance(caches[0], FullAttention) and caches[0].kind == "full" else caches
        for index, caches in enumerate(layers)
    ]
    return _with_shared(config, layers)


def _global(config: Config, index: int) -> FullAttention:
    """Return a full layer of Gemma 4, whose heads are stated once for all full layers, or for each."""
    stated = config.fields.get("per_layer_config")
    own = stated.get(f"{index:02d}", stated.get(str(index))) if isinstance(stated, dict) else None
    nested = type(config)(own if isinstance(own, dict) else {}, f"per_layer_config of {config.where}")
    size = nested.count("head_dim", default=config.count("global_head_dim", default=head_dim(config)))
    heads = config.count("num_global_key_value_heads", default=num_kv_heads(config))
    heads = nested.count("num_key_value_heads", default=heads)
    return FullAttention(num_kv_heads=heads, head_dim=size, value_head_dim=size)


def llama_4(config: Config) -> Caches:
    """List the layers of Llama 4: three of four are chunked; layers without rotary positions are full."""
    count = num_layers(config)
    layer = full(config)
    if config.fields.get("attention_chunk_size", 8192) is None:
        return [(layer,)] * count
    chunk = config.count("attention_chunk_size", default=8192)
    chunked = ChunkedLocal(
        num_kv_heads=layer.num_kv_heads, head_dim=layer.head_dim, value_head_dim=layer.value_head_dim, window=chunk
    )
    rotary = config.fields.get("no_rope_layers")
    if rotary is not None and rotary != []:
        whole = isinstance(rotary, list | tuple) and all(type(one) is int and one in (0, 1) for one in rotary)
        if not whole or len(rotary) != count:
            raise config.wrong("no_rope_layers", f"a list of {count} ones and zeros, one for every layer")
        return [(chunked,) if is_rotary else (layer,) for is_rotary in rotary]
    interval = config.count("no_rope_layer_interval", default=4)
    return [(chunked,) if (index + 1) % interval else (layer,) for index in range(count)]


def latent(config: Config) -> Caches:
    """List the layers of DeepSeek: a latent in every layer, and indexer keys if attention is sparse."""
    sparse = config.count("index_topk", default=0, least=0) > 0
    layer = Mla(
        kv_lora_rank=config.count("kv_lora_rank"), rope_dim=config.count("qk_rope_head_dim", least=0), sparse=sparse
    )
    caches = (layer, Indexer(head_dim=config.count("index_head_dim", default=128))) if sparse else (layer,)
    return [caches] * num_layers(config)
