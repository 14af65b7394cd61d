"""Caches of each layer of a model with recurrent layers, by the rules of vLLM 0.25.1.

Most functions are for one family of architectures. Models without recurrent layers are in `kvsim.models.attention`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsim.models.attention import full, head_dim, hidden_size, latent, num_layers
from kvsim.models.dtypes import DTYPE_BYTES
from kvsim.models.layers import GatedDeltaNet, KimiDelta, Mamba1, Mamba2, ShortConv

if TYPE_CHECKING:
    from kvsim.models.attention import Caches
    from kvsim.models.config import Config
    from kvsim.models.layers import Layer


def model_dtype(config: Config) -> str:
    """Return the type in which vLLM runs the model: the stated type, or bfloat16 if that is float32 or missing."""
    names = [name for name in ("dtype", "torch_dtype") if config.states(name)]
    stated = {name: str(config.fields[name]).removeprefix("torch.") for name in names}
    for name, dtype in stated.items():
        if dtype not in DTYPE_BYTES or len(set(stated.values())) > 1:
            raise config.wrong(name, f"one of {', '.join(DTYPE_BYTES)}, and dtype and torch_dtype the same")
    dtype = next(iter(stated.values()), "bfloat16")
    return "bfloat16" if dtype == "float32" else dtype


def _state_dtype(config: Config, *names: str, default: str) -> str:
    """Return the type of a recurrent state: that in the first of the fields `names` that is stated, or `default`."""
    for name in names:
        if config.states(name):
            dtype = str(config.fields[name])
            if dtype not in DTYPE_BYTES:
                raise config.wrong(name, f"one of {', '.join(DTYPE_BYTES)}")
            return dtype
    return default


def _mamba_1(config: Config) -> Mamba1:
    inner = config.count("mamba_expand", "expand", default=2) * hidden_size(config)
    dtype = model_dtype(config)
    return Mamba1(
        inner_size=config.count("intermediate_size", default=inner) if config.states("state_size") else inner,
        state_size=config.count("mamba_d_state", "state_size", default=16),
        conv_kernel=config.count("mamba_d_conv", "conv_kernel", default=4),
        dtype=dtype,
        state_dtype=dtype,
    )


def _mamba_2(config: Config, *, state_dtype: str | None = None) -> Mamba2:
    """Return the cache of a Mamba-2 layer. Its state has the type of the model, unless `state_dtype` is given."""
    dtype = model_dtype(config)
    expanded = config.count("mamba_expand", "expand", default=2) * hidden_size(config)
    heads = config.count("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads", default=128)
    size = config.count("mamba_d_head", "mamba_head_dim", "mamba_headdim", default=expanded // heads)
    return Mamba2(
        inner_size=config.count("mamba_d_ssm", default=expanded),
        num_heads=heads,
        head_dim=size,
        state_size=config.count("mamba_d_state", "ssm_state_size", "state_size", default=128),
        num_groups=config.count("mamba_n_groups", "n_groups", "mamba_ngroups", default=1),
        conv_kernel=config.count("mamba_d_conv", "conv_kernel", default=4),
        dtype=dtype,
        state_dtype=state_dtype or dtype,
    )


def _by_names(config: Config, kinds: dict[str, Layer | None], field: str = "layer_types") -> Caches:
    """List the caches of the layers that `field` names. `kinds` has the cache for each name; None for no cache."""
    names = config.texts(field, num_layers(config))
    if names is None:
        raise config.wrong(field, f"a list with one of {', '.join(kinds)} for every layer")
    unknown = sorted(set(names) - set(kinds))
    if unknown:
        raise config.wrong(field, f"a list of {', '.join(kinds)}", shown=f"a list with {unknown[0]!r}")
    layers = [kinds[name] for name in names]
    return [() if layer is None else (layer,) for layer in layers]


def granite_hybrid(config: Config) -> Caches:
    """List the caches of Granite 4 H and Bamba: Mamba 2, with some attention layers."""
    mamba, attention = _mamba_2(config), full(config)
    kinds: dict[str, Layer | None] = {
        "mamba": mamba, "linear_attention": mamba, "attention": attention, "full_attention": attention,
    }  # fmt: skip
    if config.states("attn_layer_indices"):
        indices = config.indices("attn_layer_indices", num_layers(config))
        return [(attention,) if index in indices else (mamba,) for index in range(num_layers(config))]
    return _by_names(config, kinds, "layer_types" if config.states("layer_types") else "layers_block_type")


def nemotron_h(config: Config) -> Caches:
    """List the caches of Nemotron-H from its pattern of letters.

    `M` is Mamba 2, `*` is attention, and `-` and `E` are feed-forward layers, which have no cache.
    """
    state_dtype = _state_dtype(config, "mamba_ssm_cache_dtype", default="float32")
    heads, size = config.count("mamba_num_heads"), config.count("mamba_head_dim")
    base = _mamba_2(config, state_dtype=state_dtype)
    mamba = replace(base, inner_size=heads * size, num_heads=heads, head_dim=size)
    attention = full(config)
    pattern = config.fields.get("hybrid_override_pattern")
    if isinstance(pattern, str) and set(pattern) <= set("M*-E"):
        kinds: dict[str, tuple[Layer, ...]] = {"M": (mamba,), "*": (attention,), "-": (), "E": ()}
        return [kinds[letter] for letter in pattern]
    named: dict[str, Layer | None] = {
        "mamba": mamba, "linear_attention": mamba, "attention": attention, "full_attention": attention,
        "mlp": None, "moe": None,
    }  # fmt: skip
    if config.states("layers_block_type"):
        return _by_names(config, named, "layers_block_type")
    raise config.wrong("hybrid_override_pattern", "a text of M, *, - and E with one letter for every layer")


def qwen_linear(config: Config) -> Caches:
    """List the caches of Qwen3-Next and Qwen3.5: full attention in every fourth layer, linear attention in all others.

    This is the default; the configuration may state other layers.
    """
    dtype = model_dtype(config)
    state_dtype = dtype
    if config.architecture.startswith("Qwen3_5"):
        state_dtype = _state_dtype(config, "mamba_ssm_dtype", default=dtype)
    linear = GatedDeltaNet(
        num_key_heads=config.count("linear_num_key_heads"),
        num_value_heads=config.count("linear_num_value_heads"),
        key_head_dim=config.count("linear_key_head_dim"),
        value_head_dim=config.count("linear_value_head_dim"),
        conv_kernel=config.count("linear_conv_kernel_dim", default=4),
        dtype=dtype,
        state_dtype=state_dtype,
    )
    attention = full(config)
    if config.states("layer_types"):
        return _by_names(config, {"linear_attention": linear, "full_attention": attention})
    interval = config.count("full_attention_interval", default=4)
    return [(linear,) if (index + 1) % interval else (attention,) for index in range(num_layers(config))]


def falcon_h1(config: Config) -> Caches:
    """List the caches of Falcon-H1. Every layer has two: attention, then Mamba 2."""
    return [(full(config), _mamba_2(config))] * num_layers(config)


def jamba(config: Config) -> Caches:
    """List the caches of Jamba: by default, attention in every eighth layer, and Mamba 1 in all others."""
    period = config.count("attn_layer_period", default=8)
    offset = config.count("attn_layer_offset", default=4, least=0, most=period - 1)
    attention, mamba = full(config), _mamba_1(config)
    return [(attention,) if index % period == offset else (mamba,) for index in range(num_layers(config))]


def mamba_1(config: Config) -> Caches:
    """List the caches of Mamba and Falcon Mamba: every layer has a state."""
    return [(_mamba_1(config),)] * num_layers(config)


def mamba_2(config: Config) -> Caches:
    """List the caches of Mamba 2: every layer has a state."""
    return [(_mamba_2(config),)] * num_layers(config)


def lfm2(config: Config) -> Caches:
    """List the caches of LFM2: short convolutions, with some attention layers."""
    conv = ShortConv(
        inner_size=config.count("conv_dim", default=hidden_size(config)),
        conv_kernel=config.count("conv_L_cache", default=3, least=2),
        dtype=model_dtype(config),
    )
    attention = full(config)
    if config.states("layer_types"):
        return _by_names(config, {"conv": conv, "full_attention": attention})
    if not config.states("full_attn_idxs"):
        raise config.wrong("layer_types", "a list of conv and full_attention for every layer")
    indices = config.indices("full_attn_idxs", num_layers(config))
    return [(attention,) if index in indices else (conv,) for index in range(num_layers(config))]


def kimi_linear(config: Config) -> Caches:
    """List the caches of Kimi-Linear: a latent in `full_attn_layers` (from 1), linear attention in all others."""
    stated = config.fields.get("linear_attn_config")
    if not isinstance(stated, dict) or stated.get("full_attn_layers") is None:
        raise config.wrong("linear_attn_config", "an object with full_attn_layers, num_heads and head_dim")
    nested = type(config)(stated, f"linear_attn_config of {config.where}")
    linear = KimiDelta(
        num_heads=nested.count("num_heads"),
        head_dim=nested.count("head_dim", default=head_dim(config)),
        conv_kernel=nested.count("short_conv_kernel_size", default=4),
        dtype=model_dtype(config),
    )
    latents = latent(config)
    full_layers = nested.indices("full_attn_layers", len(latents), first=1)
    if nested.states("kda_layers") and len(nested.indices("kda_layers", len(latents), first=1) | full_layers) < len(
        latents
    ):
        raise nested.wrong("kda_layers", "a list of all layers that full_attn_layers does not name")
    return [latents[index] if index in full_layers else (linear,) for index in range(len(latents))]
