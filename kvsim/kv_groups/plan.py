"""How many blocks an engine's memory makes, whether its longest sequence fits, and how many sequences at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from kvsim.errors import BudgetError, UsageError
from kvsim.kv_groups.grouping import Grouping, group_layers, pipeline_stages
from kvsim.kv_groups.specs import CacheSettings, as_full, layer_specs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.kv_groups.group import KVCacheLayout
    from kvsim.kv_groups.specs import LayerSpec
    from kvsim.models import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """The block pool of one engine."""

    layout: KVCacheLayout
    num_blocks: int
    """vLLM's N. Block 0 is its null block, so one block fewer can be given to requests."""
    bytes_per_block: tuple[int, ...]
    """Bytes of one block id on a GPU of every stage of the pipeline."""
    settings: CacheSettings
    """The settings as given, with the `max_model_len` that was found where it was to be found."""

    @property
    def concurrency(self) -> float:
        """Sequences of `max_model_len` tokens that fit at once, as vLLM prints it: the null block is counted."""
        return self.num_blocks / self.blocks_for(self.settings.max_model_len)

    @property
    def num_tokens(self) -> int:
        """vLLM's "GPU KV cache size": the concurrency in tokens."""
        return int(self.concurrency * self.settings.max_model_len)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks without which a sequence of `num_tokens` tokens is not admitted."""
        return self.layout.blocks_for(num_tokens, self.settings.max_num_batched_tokens)

    def longest_sequence(self) -> int:
        """The longest sequence in tokens, up to `max_model_len`, that the pool admits; 0 if not even one token."""
        low, high = 0, self.settings.max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_for(middle) <= self.num_blocks:
                low = middle
            else:
                high = middle - 1
        return low

    def max_sequences(self, num_tokens: int) -> int:
        """How many sequences of `num_tokens` tokens decode at once, each in whole blocks.

        Raises:
            UsageError: if `num_tokens` is not positive.
        """
        if num_tokens < 1:
            raise UsageError(f"tokens is {num_tokens}; it must be a whole number of at least 1.")
        return (self.num_blocks - 1) // self.layout.held_blocks(num_tokens)


def cache_layout(model: Model, settings: CacheSettings) -> KVCacheLayout:
    """The groups of `model` under `settings`, whatever memory there is.

    Raises:
        UsageError: if a setting cannot be right, or vLLM could not serve the model so.
    """
    grouping, stages = _grouped(model, settings)
    return _layout(model, settings, grouping, stages)


def bytes_per_block(model: Model, settings: CacheSettings) -> tuple[int, ...]:
    """Bytes of one block id on one GPU of every stage of the pipeline.

    Raises:
        UsageError: if a setting cannot be right, or vLLM could not serve the model so.
    """
    grouping, stages = _grouped(model, settings)
    return tuple(grouping.bytes_per_block(stage) for stage in stages)


def plan_cache(
    model: Model,
    settings: CacheSettings,
    available_bytes: Sequence[int],
    *,
    num_blocks: int | None = None,
    find_max_model_len: bool = False,
    insist: bool = False,
) -> CachePlan:
    """The block pool that vLLM makes of the memory that is left on its GPUs.

    Args:
        model: What is served.
        settings: How the cache is cut up.
        available_bytes: For every stage of the pipeline, the bytes left on one of its GPUs.
        num_blocks: Blocks to take instead of what the memory makes.
        find_max_model_len: Whether `max_model_len` gives way to the longest sequence that fits.
        insist: Make the pool even if one sequence of `max_model_len` tokens does not fit.

    Raises:
        BudgetError: if one sequence of `max_model_len` tokens does not fit; the message says which would.
        UsageError: if a setting cannot be right, or vLLM could not serve the model so.
    """
    grouping, stages = _grouped(model, settings)
    layout = _layout(model, settings, grouping, stages)
    sizes = tuple(grouping.bytes_per_block(stage) for stage in stages)
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
def _grouped(model: Model, settings: CacheSettings) -> tuple[Grouping, tuple[range, ...]]:
    """The groups, and the specs' indices in every stage."""
    by_layer = layer_specs(model, settings)
    if settings.uniform and model.recurrent_layers:
        raise UsageError(
            f"{model.name} has {len(model.recurrent_layers)} recurrent layers, which keep no tokens: there is no "
            "uniform cache to compare with."
        )
    specs: list[LayerSpec] = [as_full(spec) if settings.uniform else spec for caches in by_layer for spec in caches]
    starts = [0]
    for caches in by_layer:
        starts.append(starts[-1] + len(caches))
    stages = pipeline_stages(len(by_layer), model.pipeline_parallel_size)
    grouping = group_layers(specs, hybrid_manager=settings.hybrid_manager and not _is_chunked(specs))
    return grouping, tuple(range(starts[stage.start], starts[stage.stop]) for stage in stages)


def _is_chunked(specs: Sequence[LayerSpec]) -> bool:
    # vLLM switches the manager off for these models unless an environment variable says otherwise.
    return any(spec.kind == "chunked_local" for spec in specs)


def _layout(model: Model, settings: CacheSettings, grouping: Grouping, stages: Sequence[range]) -> KVCacheLayout:
    return grouping.layout(
        hash_block_size=settings.hash_block_size, caches_prefixes=settings.caches_prefixes(model), stages=stages
    )


def _too_long(plan: CachePlan, longest: int) -> str:
    needed = plan.blocks_for(plan.settings.max_model_len)
    remedy = f"--max-model-len {longest} would fit; " if longest else ""
    return (
        f"one sequence of {plan.settings.max_model_len:,} tokens needs {needed:,} blocks of the KV cache, and there is "
        f"room for {plan.num_blocks:,}; {remedy}a larger share of the GPU, more GPUs or a smaller cache type would "
        "help, and --oversize insists."
    )
