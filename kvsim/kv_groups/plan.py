"""Compute the blocks in an engine's memory, the longest sequence that fits, and how many fit at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

from kvsim.errors import BudgetError, UsageError
from kvsim.kv_groups.grouping import group_layers, pipeline_stages
from kvsim.kv_groups.specs import CacheSettings, as_full, layer_specs
from kvsim.setting_fields import whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.kv_groups.group import KVCacheLayout
    from kvsim.kv_groups.specs import LayerSpec
    from kvsim.models import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """Block pool of one engine: its groups, its number of blocks, and the bytes of a block."""

    layout: KVCacheLayout
    num_blocks: int
    """Number of blocks in vLLM's count. Requests can use one block less, because block 0 is the null block."""
    bytes_per_block: tuple[int, ...]
    """Number of bytes that one block id takes on one GPU, by pipeline stage."""
    settings: CacheSettings
    """Settings of the cache. With `find_max_model_len`, `plan_cache` has set `max_model_len` to a length that fits."""

    @property
    def concurrency(self) -> float:
        """Number of sequences of `max_model_len` tokens that fit at the same time, not rounded. As vLLM prints it, with
        the null block counted as if requests could use it.
        """
        return self.num_blocks / self.blocks_for(self.settings.max_model_len)

    @property
    def num_tokens(self) -> int:
        """Number of tokens that vLLM prints as "GPU KV cache size": the concurrency times `max_model_len`."""
        return int(self.concurrency * self.settings.max_model_len)

    @property
    def divided_tokens(self) -> int:
        """Number of tokens that older releases of vLLM print as "GPU KV cache size". They divide the blocks equally
        among the groups, and count the tokens of one group, the one with the fewest tokens per block.
        """
        groups = self.layout.groups
        return self.num_blocks // len(groups) * min(group.block_size for group in groups)

    def blocks_for(self, num_tokens: int) -> int:
        """Return the number of blocks that must be in the pool for vLLM to accept a sequence of `num_tokens` tokens."""
        return self.layout.blocks_for(num_tokens, self.settings.max_num_batched_tokens)

    def longest_sequence(self) -> int:
        """Return the tokens, up to `max_model_len`, of the longest sequence that fits into the pool alone; or 0."""
        low, high = 0, self.settings.max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_for(middle) <= self.num_blocks:
                low = middle
            else:
                high = middle - 1
        return low

    def max_sequences(self, num_tokens: int) -> int:
        """Return the number of sequences whose blocks fit into the pool at the same time, if each has `num_tokens`
        tokens and decodes.

        Raises:
            UsageError: `num_tokens` is not an integer of at least 1.
        """
        return (self.num_blocks - 1) // self.layout.held_blocks(whole_number("tokens", num_tokens))


def cache_layout(model: Model, settings: CacheSettings) -> KVCacheLayout:
    """Return the groups of `model` for `settings`, which do not depend on the memory of the GPU.

    Raises:
        UsageError: a setting is invalid, or vLLM could not serve the model with it.
    """
    return _grouped(model, settings)[0]


def bytes_per_block(model: Model, settings: CacheSettings) -> tuple[int, ...]:
    """Return, for each pipeline stage, the number of bytes that one block id takes on one GPU.

    Raises:
        UsageError: a setting is invalid, or vLLM could not serve the model with it.
    """
    return _grouped(model, settings)[1]


def plan_cache(
    model: Model,
    settings: CacheSettings,
    available_bytes: Sequence[int],
    *,
    num_blocks: int | None = None,
    find_max_model_len: bool = False,
    insist: bool = False,
) -> CachePlan:
    """Return the block pool that vLLM creates in the memory that is left on its GPUs.

    Args:
        model: the model to serve.
        settings: settings of the cache.
        available_bytes: for each pipeline stage, the number of bytes that are left on one GPU.
        num_blocks: number of blocks, which replaces `available_bytes`; None to compute it.
        find_max_model_len: True to replace `max_model_len` by the longest sequence that fits, if that is shorter.
        insist: True to return the pool even if a sequence of `max_model_len` tokens does not fit.

    Raises:
        BudgetError: one sequence of `max_model_len` tokens does not fit; the message names the longest that does.
        UsageError: a setting is invalid, or vLLM could not serve the model with it.
    """
    layout, sizes = _grouped(model, settings)
    if num_blocks is not None:
        if num_blocks < 1:
            raise UsageError(f"--num-blocks should be at least 1, not {num_blocks}.")
        available_bytes = [num_blocks * size for size in sizes]
    fitting = min(bytes_left // size for bytes_left, size in zip(available_bytes, sizes, strict=True) if size)
    plan = CachePlan(layout=layout, num_blocks=max(0, fitting), bytes_per_block=sizes, settings=settings)
    longest = plan.longest_sequence()
    if find_max_model_len and longest:
        return replace(plan, settings=replace(settings, max_model_len=longest))
    if longest < settings.max_model_len and not insist:
        raise BudgetError(_too_long(plan, longest))
    return plan


@lru_cache(maxsize=256)
def _grouped(model: Model, settings: CacheSettings) -> tuple[KVCacheLayout, tuple[int, ...]]:
    """Return the results of (`cache_layout`, `bytes_per_block`)."""
    specs_of_layers = layer_specs(model, settings)  # in the order of the model; a layer may have several caches
    if settings.uniform and model.recurrent_layers:
        raise UsageError(
            f"{model.name} has {len(model.recurrent_layers)} recurrent layers, which keep no tokens: there is no "
            "uniform cache to compare with."
        )
    num_layers = len(specs_of_layers) - len(settings.draft_layers)
    specs: list[LayerSpec] = [
        replace(as_full(spec) if settings.uniform else spec, is_draft=layer >= num_layers)
        for layer, caches in enumerate(specs_of_layers)
        for spec in caches
    ]
    # Grouping counts caches, pipeline stages count layers: `first_cache` converts the index of a layer.
    first_cache = list(accumulate(map(len, specs_of_layers), initial=0))
    layers_of_stages = list(pipeline_stages(num_layers, model.pipeline_parallel_size))
    layers_of_stages[-1] = range(layers_of_stages[-1].start, len(specs_of_layers))  # with the draft layers
    stages = tuple(range(first_cache[layers.start], first_cache[layers.stop]) for layers in layers_of_stages)
    # vLLM disables the hybrid manager for chunked models, unless an environment variable enables it.
    is_chunked = any(spec.kind == "chunked_local" for spec in specs)
    grouping = group_layers(specs, hybrid_manager=settings.hybrid_manager and not is_chunked)
    layout = grouping.layout(
        hash_block_size=settings.hash_block_size, caches_prefixes=settings.caches_prefixes(model), stages=stages
    )
    return layout, tuple(grouping.bytes_per_block(stage) for stage in stages)


def _too_long(plan: CachePlan, longest: int) -> str:
    """Return the message for a `max_model_len` that does not fit. `longest` is the number of tokens that fit, or 0."""
    needed = plan.blocks_for(plan.settings.max_model_len)
    remedy = f"--max-model-len {longest} would fit; " if longest else ""
    return (
        f"one sequence of {plan.settings.max_model_len:,} tokens needs {needed:,} blocks of the KV cache, and there is "
        f"room for {plan.num_blocks:,}; {remedy}a larger share of the GPU, more GPUs or a smaller cache type would "
        "help, and --oversize allows it."
    )
