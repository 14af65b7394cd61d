"""Machines drawn at random: layers of all kinds, settings, memory; and what kvsim makes of each."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from kvsim.errors import BudgetError, UsageError
from kvsim.kv_groups.grouping import group_layers, pipeline_stages
from kvsim.kv_groups.plan import plan_cache
from kvsim.kv_groups.specs import CacheSettings, LayerSpec, layer_specs, smallest_block
from kvsim.models import Model
from kvsim.models.layers import (
    ChunkedLocal,
    FullAttention,
    GatedDeltaNet,
    Indexer,
    KimiDelta,
    Layer,
    Mamba1,
    Mamba2,
    Mla,
    ShortConv,
    SlidingWindow,
)

CACHE_DTYPES = ("auto", "auto", "auto", "fp8", "int8_per_token_head", "int4_per_token_head", "nvfp4")


def draw(seed: int) -> tuple[Model, CacheSettings, dict[str, Any]]:
    """A model, the settings of an engine, and the memory of its GPUs."""
    rng = random.Random(seed)
    kinds, caches = _layers(rng)
    latent = any(isinstance(layer, Mla) for layer in kinds)
    dtype = rng.choice(CACHE_DTYPES[:5] if latent else CACHE_DTYPES)
    tensor_parallel_size = rng.choice((1, 1, 1, 2, 4))
    model = Model(
        name=f"drawn {seed}",
        num_layers=len(caches),
        num_attention_heads=16,
        num_kv_heads=8,
        head_dim=64,
        hidden_size=1024,
        intermediate_size=4096,
        vocab_size=1000,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        dtype=rng.choice(("bfloat16", "float16")),
        num_parameters=10**9,
        num_active_parameters=10**9,
        layer_kinds=kinds,
        layer_caches=caches,
        mamba_chunk_size=rng.choice((None, 128, 256)),
        kv_cache_dtype=dtype,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=rng.choice((1, 1, 1, 2, 3)) if len(caches) >= 6 else 1,
    )
    settings = CacheSettings(
        max_model_len=rng.choice((64, 1000, 4096, 8192, 100_000)),
        max_num_batched_tokens=rng.choice((16, 512, 2048, 8192)),
        block_size=rng.choice((None, None, 16, 32, 64)),
        enable_prefix_caching=rng.choice((None, True, False)),
        keeps_every_state=True,
        hybrid_manager=rng.random() < 0.85,
    )
    scale = 10 ** rng.uniform(6.5, 10.5)
    memory = {
        "available": [int(scale * rng.uniform(0.8, 1.2)) for _ in range(model.pipeline_parallel_size)],
        "num_blocks": rng.choice((None, None, None, rng.randrange(1, 5000))),
        "find": rng.random() < 0.3,
    }
    return model, settings, memory


def _layers(rng: random.Random) -> tuple[tuple[Layer, ...], tuple[tuple[int, ...], ...]]:
    family = rng.choice(("full", "windows", "windows", "two windows", "heads", "chunked", "latent", "sparse", "hybrid",
                         "hybrid", "recurrent", "all three", "parallel"))  # fmt: skip
    heads, head = rng.choice((1, 2, 4, 8, 16)), rng.choice((64, 80, 128, 256))
    full = FullAttention(num_kv_heads=heads, head_dim=head, value_head_dim=head)
    kinds: list[Layer] = []
    count = rng.randrange(2, 40)
    if family in ("full", "heads"):
        kinds = [full]
        if family == "heads":
            kinds.append(FullAttention(num_kv_heads=rng.choice((1, 2, 4)), head_dim=2 * head, value_head_dim=head))
    elif family in ("windows", "two windows", "all three"):
        kinds = [_window(rng, heads, head), full]
        if family == "two windows":
            kinds.append(_window(rng, heads, head))
        if family == "all three":
            kinds.append(_recurrent(rng))
    elif family == "chunked":
        kinds = [
            full,
            ChunkedLocal(num_kv_heads=heads, head_dim=head, value_head_dim=head, window=rng.choice((128, 8192))),
        ]
    elif family == "latent":
        kinds = [Mla(kv_lora_rank=512, rope_dim=64)]
    elif family == "sparse":
        kinds = [Mla(kv_lora_rank=512, rope_dim=64, sparse=True), Indexer(head_dim=128)]
        return tuple(kinds), ((0, 1),) * count
    elif family == "recurrent":
        kinds = [_recurrent(rng)]
    else:
        kinds = [_recurrent(rng), full]
        if family == "parallel":
            return tuple(kinds), ((1, 0),) * count
    order = [0] * (count - 1) if len(kinds) == 1 else _order(rng, count - 1, len(kinds))
    order = [*order, rng.randrange(len(kinds))]
    caches: list[tuple[int, ...]] = [() if rng.random() < 0.03 else (index,) for index in order]
    if not any(caches):
        caches[0] = (0,)
    used = sorted({index for layer in caches for index in layer})
    return tuple(kinds[index] for index in used), tuple(tuple(used.index(index) for index in layer) for layer in caches)


def _order(rng: random.Random, count: int, num_kinds: int) -> list[int]:
    period = rng.randrange(2, 8)
    if rng.random() < 0.7:
        return [index % period % num_kinds if index % period < num_kinds else 0 for index in range(count)]
    return [rng.randrange(num_kinds) for _ in range(count)]


def _window(rng: random.Random, heads: int, head: int) -> SlidingWindow:
    heads, head = rng.choice(((heads, head), (heads, head), (heads, 64), (2 * heads, head)))
    return SlidingWindow(
        num_kv_heads=heads, head_dim=head, value_head_dim=head, window=rng.choice((1, 16, 100, 512, 1024, 4096))
    )


def _recurrent(rng: random.Random) -> Layer:
    dtype, state = "bfloat16", rng.choice(("bfloat16", "float32"))
    heads, groups = rng.choice((8, 32, 64)), rng.choice((1, 2, 8))
    return rng.choice(
        (
            Mamba1(inner_size=2048, state_size=16, conv_kernel=4, dtype=dtype, state_dtype=state),
            Mamba2(
                inner_size=heads * 64, num_heads=heads, head_dim=64, state_size=128, num_groups=groups, conv_kernel=4,
                dtype=dtype, state_dtype=state,
            ),
            GatedDeltaNet(
                num_key_heads=16, num_value_heads=32, key_head_dim=128, value_head_dim=128, conv_kernel=4, dtype=dtype,
                state_dtype=state,
            ),
            KimiDelta(num_heads=heads, head_dim=128, conv_kernel=4, dtype=dtype),
            ShortConv(inner_size=2048, conv_kernel=3, dtype=dtype),
        )
    )  # fmt: skip


def question(model: Model, settings: CacheSettings, memory: dict[str, Any]) -> dict[str, Any] | None:
    """The case as vLLM is asked; None where kvsim refuses the layers themselves."""
    try:
        by_layer = layer_specs(model, settings)
    except UsageError:
        return None
    starts = [0]
    for specs in by_layer:
        starts.append(starts[-1] + len(specs))
    stages = [
        (starts[stage.start], starts[stage.stop])
        for stage in pipeline_stages(model.num_layers, model.pipeline_parallel_size)
    ]
    if any(start == stop for start, stop in stages):
        return None  # a stage without a cache: vLLM divides by its layers
    layers = [layer for caches in model.layers for layer in caches]
    flat = [spec for specs in by_layer for spec in specs]
    return {
        "layers": [_asked(model, layer, spec) for layer, spec in zip(layers, flat, strict=True)],
        "stages": stages,
        "max_model_len": settings.max_model_len,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "hybrid_manager": settings.hybrid_manager and not any(isinstance(layer, ChunkedLocal) for layer in layers),
        "caches_prefixes": settings.caches_prefixes(model),
        "block_size": flat[0].block_size,
        **memory,
    }


def _asked(model: Model, layer: Layer, spec: LayerSpec) -> dict[str, Any]:
    cache_dtype = model.dtype if model.kv_cache_dtype == "auto" else model.kv_cache_dtype
    common = {
        "kind": layer.kind,
        "block_size": spec.block_size,
        "padded": spec.padded_page_bytes,
        "pads_pages": spec.pads_pages,
        "cache_dtype": cache_dtype,
    }
    match layer:
        case FullAttention():
            heads = layer.heads_on_gpu(model.tensor_parallel_size)
            common |= {"heads": heads, "head": layer.head_dim, "head_v": layer.value_head_dim, "window": spec.window}
        case Mla():
            common |= {"latent": layer.kv_lora_rank + layer.rope_dim}
            if layer.sparse and cache_dtype == "fp8":
                common["cache_dtype"] = "fp8_ds_mla"
        case Indexer():
            common |= {"head": layer.bytes_per_token}
        case _:
            tensors = layer.state(model.tensor_parallel_size)
            common |= {
                "kind": "mamba",
                "shapes": [tensor.shape for tensor in tensors],
                "dtypes": [tensor.dtype for tensor in tensors],
                "mode": str(spec.mamba_mode),
                "speculative": spec.num_speculative_blocks,
            }
    return common


def answer(model: Model, settings: CacheSettings, memory: dict[str, Any]) -> dict[str, Any]:
    """What kvsim makes of the case, in the form of `vllm_answers.py`."""
    specs = [spec for layer in layer_specs(model, settings) for spec in layer]
    pages = [spec.page_bytes for spec in specs]
    try:
        plan = plan_cache(
            model,
            settings,
            memory["available"],
            num_blocks=memory["num_blocks"],
            find_max_model_len=memory["find"],
        )
    except BudgetError as error:
        marker = "--max-model-len "
        words = str(error).partition(marker)[2].partition(" ")[0]
        return {"pages": pages, "error": "ValueError", "estimate": int(words) if words.isdecimal() else 0}
    except UsageError:
        return {"pages": pages, "error": "refused"}
    chunked = any(spec.kind == "chunked_local" for spec in specs)
    grouping = group_layers(specs, hybrid_manager=settings.hybrid_manager and not chunked)
    layout = plan.layout
    return {
        "pages": pages,
        "num_blocks": plan.num_blocks,
        "groups": [
            [sorted(layers), group.block_size, group.page_bytes]
            for layers, group in zip(grouping.groups, layout.groups, strict=True)
        ],
        "tokens": plan.num_tokens,
        "concurrency": plan.concurrency,
        "max_model_len": plan.settings.max_model_len,
        "scheduler_block_size": layout.scheduler_block_size,
        "hash_block_size": layout.hash_block_size,
    }


def differs(ours: dict[str, Any], theirs: dict[str, Any], *, several_stages: bool = False) -> str:
    """Where the two answers differ; empty if they agree."""
    if "error" in theirs or "error" in ours:
        if "error" not in ours or "error" not in theirs:
            return f"refused by one: {ours.get('error')}, {theirs.get('error')}"
        if ours["pages"] != theirs["pages"]:
            return "refused, with other pages"
        # vLLM's advice is about the first stage of a pipeline that is too small, kvsim's about all of them.
        ours_fits = ours.get("estimate", 0)
        same = ours_fits == theirs["estimate"] or (several_stages and ours_fits <= theirs["estimate"])
        return "" if same else f"refused: {ours_fits}, {theirs['estimate']}"
    keys = [key for key in ours if ours[key] != theirs[key] and not (key == "groups" and theirs["sums_pages"])]
    return "; ".join(f"{key}: {ours[key]}, {theirs[key]}" for key in keys)


def draw_hybrid(seed: int) -> tuple[Model, CacheSettings]:
    """A model of one attention layer and one recurrent layer, whose block must hold the state."""
    rng = random.Random(seed)
    recurrent, heads, head = _recurrent(rng), rng.choice((1, 2, 4, 8, 16)), rng.choice((64, 80, 128, 256))
    latent = rng.random() < 0.2
    attention = (
        Mla(kv_lora_rank=512, rope_dim=64)
        if latent
        else FullAttention(num_kv_heads=heads, head_dim=head, value_head_dim=head)
    )
    model = replace(
        draw(0)[0],
        num_layers=2,
        layer_kinds=(recurrent, attention),
        layer_caches=((0,), (1,)),
        mamba_chunk_size=rng.choice((None, 128, 256)),
        kv_cache_dtype=rng.choice(("auto", "fp8") if latent else ("auto", "fp8", "int8_per_token_head")),
        tensor_parallel_size=rng.choice((1, 2, 4)),
        pipeline_parallel_size=1,
    )
    settings = CacheSettings(
        max_model_len=9999,
        block_size=rng.choice((None, 16, 32, 48, 64)),
        enable_prefix_caching=rng.random() < 0.5,
        keeps_every_state=True,
    )
    return model, settings


def hybrid_question(model: Model, settings: CacheSettings) -> dict[str, Any]:
    """The case as vLLM's platform code is asked."""
    recurrent, attention = model.layer_kinds
    assert isinstance(attention, Mla | FullAttention)
    latent = isinstance(attention, Mla)
    tensors = recurrent.state(model.tensor_parallel_size)  # type: ignore[union-attr]
    smallest = smallest_block(model, settings)
    return {
        "cache_dtype": model.kv_cache_dtype,
        "dtype": model.dtype,
        "block_size": settings.block_size or smallest,
        "smallest": smallest,
        "mode": str(settings.mamba_mode(model)),
        "latent": latent,
        "heads": 1 if isinstance(attention, Mla) else attention.heads_on_gpu(model.tensor_parallel_size),
        "head": 576 if isinstance(attention, Mla) else attention.head_dim,
        "chunk": model.mamba_chunk_size or 2048,
        "shapes": [tensor.shape for tensor in tensors],
        "dtypes": [tensor.dtype for tensor in tensors],
    }


def hybrid_differs(model: Model, settings: CacheSettings, theirs: dict[str, Any]) -> str:
    """Where kvsim's blocks differ from vLLM's; empty if they agree."""
    (recurrent,), (attention,) = layer_specs(model, settings)
    ours = {"block_size": attention.block_size, "padded": recurrent.padded_page_bytes, "mamba": recurrent.block_size}
    if str(recurrent.mamba_mode) == "none":  # one block for the whole sequence, which this code does not choose
        ours["mamba"] = theirs["mamba"]
    return "" if ours == theirs else f"{ours}, {theirs}"
