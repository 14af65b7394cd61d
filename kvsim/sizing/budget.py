"""Compute the pool of KV blocks from GPU memory, term by term, as vLLM 0.25.1 does.

The pool is a share of the GPU's memory, minus weights, activations, memory outside PyTorch and captured graphs. vLLM
measures activations and overheads by running the model once. Here, `kvsim.sizing.activations` estimates them from the
shape of the model, and their terms say so. A known pool can be stated with `kv_memory_bytes` or `num_blocks`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from kvsim.display.text import html_text, size_column, size_words
from kvsim.errors import BudgetError
from kvsim.hardware import GIB, Gpu
from kvsim.kv_groups import (
    CacheKind,
    CachePlan,
    CacheSettings,
    bytes_per_block,
    cache_layout,
    pipeline_stages,
    plan_cache,
)
from kvsim.models import Model
from kvsim.setting_fields import check_instance, whole_number
from kvsim.sizing.budget_terms import (
    BudgetTerm,
    added_terms,
    allowance_terms,
    encoder_cache_tokens,
    overhead_terms,
    weight_terms,
)
from kvsim.sizing.pool_settings import PoolSettings

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """KV pool of one GPU, and the terms from which it follows. All bytes are those of one GPU."""

    gpu: Gpu
    model: Model
    """Served model, with its types and parallel sizes."""
    plan: CachePlan
    terms: tuple[BudgetTerm, ...]
    """Terms of the budget in the order of printing; their sum is `kv_bytes`."""
    stage: int = 0
    """Index of the pipeline stage with room for the fewest blocks. The terms are those of one of its GPUs."""
    encoder_cache_tokens: int = 0
    """Number of image tokens that the encoder cache holds; 0 for a text model, or if the number is unknown."""

    def __repr__(self) -> str:
        pool = f"{self.num_blocks:,} blocks, {self.capacity_tokens:,} tokens, {self.kv_bytes / GIB:.2f} GiB"
        return f"<Budget: {self.gpu.name}, {self.model.name}: {pool}>"

    def _repr_html_(self) -> str:
        sizes = size_column(term.size_bytes for term in self.terms)
        cells = ((term.label, size, term.why) for term, size in zip(self.terms, sizes, strict=True))
        lines = "".join(f"<tr>{''.join(f'<td>{html_text(cell)}</td>' for cell in line)}</tr>" for line in cells)
        return f"<p>{html_text(repr(self))}</p><table>{lines}</table>"

    @property
    def num_blocks(self) -> int:
        """Number of blocks as vLLM counts them: block 0, the null block, is included, but never used by requests."""
        return self.plan.num_blocks

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block in all layers of the stage."""
        return self.plan.bytes_per_block[self.stage]

    @property
    def block_size(self) -> int:
        """Number of tokens in a block; with several KV-cache groups, the smallest number."""
        return min(group.block_size for group in self.plan.layout.groups)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the whole pool, null block included."""
        return self.num_blocks * self.bytes_per_block

    @property
    def kv_bytes_of_stages(self) -> int:
        """Bytes of the pool, summed over one GPU of every pipeline stage."""
        return self.num_blocks * sum(self.plan.bytes_per_block)

    @property
    def num_usable_blocks(self) -> int:
        """Number of blocks that requests can use."""
        return self.num_blocks - 1

    @property
    def capacity_tokens(self) -> int:
        """Number of tokens that the usable blocks hold.

        With several KV-cache groups, it is computed for sequences of `max_model_len` tokens.
        """
        if self.plan.layout.is_uniform:
            return self.num_usable_blocks * self.block_size
        length = self.plan.settings.max_model_len
        return self.num_usable_blocks * length // self.plan.blocks_for(length)

    def max_sequences(self, tokens: int) -> int:
        """Return the number of sequences of `tokens` tokens that can decode at once. Each takes whole blocks."""
        return self.plan.max_sequences(tokens)

    def with_full_layers(self) -> CachePlan | None:
        """Return the plan for a pool of the same size if every layer kept every token.

        Return None if no layer has a window, or if some layers are recurrent.
        """
        is_windowed = any(group.kind is CacheKind.SLIDING_WINDOW for group in self.plan.layout.groups)
        if not is_windowed or self.model.recurrent_layers:
            return None
        pool = [self.num_blocks * size for size in self.plan.bytes_per_block]
        return plan_cache(self.model, replace(self.plan.settings, uniform=True), pool, insist=True)

    def with_divided_latents(self) -> CachePlan | None:
        """Return the plan of the same pool if the GPUs divided every latent. vLLM keeps a copy of it on each GPU.

        Return None if some layers have no MLA, if there is one GPU, or if the GPUs divide the tokens of each sequence
        already.
        """
        size = self.model.tensor_parallel_size
        if (
            size == 1
            or self.model.decode_context_parallel_size > 1
            or any(group.kind is not CacheKind.MLA for group in self.plan.layout.groups)
        ):
            return None
        return replace(self.plan, num_blocks=size * self.num_blocks)


def blocks_for(kv_memory_bytes: int, model: Model, block_size: int) -> int:
    """Return how many blocks of `block_size` tokens fit into `kv_memory_bytes` on each GPU, null block included."""
    settings = CacheSettings(max_model_len=model.max_position_embeddings, block_size=block_size)
    return whole_number("kv_memory_bytes", kv_memory_bytes) // cache_layout(model, settings).bytes_per_block


def plan_budget(gpu: Gpu, model: Model, settings: PoolSettings | None = None) -> Budget:
    """Return the KV pool that vLLM would create on `gpu` for `model`.

    Args:
        gpu: GPU; with parallelism, each of several equal ones.
        model: Served model; `Model.served` sets its types and number of GPUs.
        settings: Settings of the engine; None for vLLM's defaults.

    Raises:
        UsageError: a setting is out of range.
        BudgetError: the weights do not fit, or no memory is left for blocks.
    """
    check_instance("gpu", gpu, Gpu, "a Gpu, as find_gpu returns it")
    check_instance("model", model, Model, "a Model, as find_model returns it")
    check_instance("settings", settings, PoolSettings | None, "PoolSettings, or None for vLLM's defaults")
    settings = settings or PoolSettings()
    cache, additions = settings.of_cache(gpu, model), added_terms(model, settings)
    if settings.num_blocks is not None or settings.kv_memory_bytes is not None:
        stages = _with_stated_pool(gpu, model, settings, cache, additions)
    else:
        stages = _with_estimated_pool(gpu, model, settings, additions)
    if not settings.oversize:
        for each in stages:
            _check_weights_fit(gpu, model, each)
    plan, terms, stage = _fill(gpu, model, settings, cache, [each.terms for each in stages])
    kept = encoder_cache_tokens(model, settings.max_num_batched_tokens)
    return Budget(gpu=gpu, model=model, plan=plan, terms=terms, stage=stage, encoder_cache_tokens=kept)


class _StageBudget(NamedTuple):
    """Terms of the budget of one pipeline stage, and the memory into which its weights must fit."""

    terms: tuple[BudgetTerm, ...]
    """Terms of the stage, rounding left out. Their sum is the memory for the pool."""
    weights: tuple[BudgetTerm, ...]
    weight_limit_bytes: int
    limited_by: str
    """Cause of the limit, for an error message: "--gpu-memory-utilization" or "the KV cache"."""


def _with_stated_pool(
    gpu: Gpu, model: Model, settings: PoolSettings, cache: CacheSettings, additions: tuple[BudgetTerm, ...]
) -> list[_StageBudget]:
    """Return the stages for a pool of stated size. Their weights may take all other memory of the GPU.

    `additions` are the terms of the draft model and of slots for adapters.
    """
    stages = []
    layers_of = pipeline_stages(model.num_layers, model.pipeline_parallel_size)
    for layers, block_bytes in zip(layers_of, bytes_per_block(model, cache), strict=True):
        pool = _stated(settings, block_bytes)
        weights = (*weight_terms(model, layers), *additions)
        stages.append(_StageBudget((pool,), weights, gpu.memory_bytes - pool.size_bytes, "the KV cache"))
    return stages


def _with_estimated_pool(
    gpu: Gpu, model: Model, settings: PoolSettings, additions: tuple[BudgetTerm, ...]
) -> list[_StageBudget]:
    """Return the stages for a pool that takes the memory left by weights, activations and all other terms.

    `additions` are the terms of the draft model and of slots for adapters.
    """
    allowance = allowance_terms(gpu, settings.gpu_memory_utilization)
    limit_bytes = sum(term.size_bytes for term in allowance)
    stages = []
    for layers in pipeline_stages(model.num_layers, model.pipeline_parallel_size):
        weights = (*weight_terms(model, layers), *additions)
        terms = (*allowance, *weights, *overhead_terms(model, settings, layers))
        stages.append(_StageBudget(terms, weights, limit_bytes, "--gpu-memory-utilization"))
    return stages


def _fill(
    gpu: Gpu,
    model: Model,
    settings: PoolSettings,
    cache: CacheSettings,
    terms_of: Sequence[tuple[BudgetTerm, ...]],
) -> tuple[CachePlan, tuple[BudgetTerm, ...], int]:
    """Fill the pool with as many blocks as fit on the pipeline stage that has room for the fewest.

    `terms_of` has the terms of each stage. Their sum is the memory for blocks. Return the plan, the terms of the stage
    with the fewest blocks, rounding included, and the index of this stage.
    """
    sizes = bytes_per_block(model, cache)
    available = [max(0, sum(term.size_bytes for term in terms)) for terms in terms_of]
    stage = min(range(len(terms_of)), key=lambda index: available[index] // sizes[index])
    if available[stage] < 2 * sizes[stage]:
        is_stated = settings.kv_memory_bytes is not None or settings.num_blocks is not None
        why = _nothing_left(gpu, model, terms_of[stage], sizes[stage], is_stated=is_stated)
        raise BudgetError(why, _lines(terms_of[stage]))
    try:
        insist, finds = settings.max_model_len is None or settings.oversize, settings.find_max_model_len
        plan = plan_cache(model, cache, available, find_max_model_len=finds, insist=insist)
    except BudgetError as error:
        raise BudgetError(str(error), _lines(terms_of[stage])) from None
    pool = plan.num_blocks * sizes[stage]
    rounding = BudgetTerm("rounding", pool - available[stage], f"whole blocks of {size_words(sizes[stage])}")
    return plan, (*terms_of[stage], rounding), stage


def _stated(settings: PoolSettings, block_bytes: int) -> BudgetTerm:
    if settings.kv_memory_bytes is not None:
        return BudgetTerm("KV memory", settings.kv_memory_bytes, "as stated; nothing is estimated")
    count = settings.num_blocks or 0
    return BudgetTerm("KV memory", count * block_bytes, f"{count:,} blocks, as stated; nothing is estimated")


def _lines(terms: Sequence[BudgetTerm]) -> list[tuple[str, int, str]]:
    return [(term.label, term.size_bytes, term.why) for term in terms]


def _check_weights_fit(gpu: Gpu, model: Model, stage: _StageBudget) -> None:
    size = -sum(term.size_bytes for term in stage.weights)
    if size > stage.weight_limit_bytes:
        raise BudgetError(
            f"the weights of {model.name} take {size_words(size)} on each {gpu.name}, and {stage.limited_by} leaves "
            f"{size_words(max(0, stage.weight_limit_bytes))} of its {size_words(gpu.memory_bytes)} for them; a larger "
            "GPU, a higher --tensor-parallel-size, a --quantization or a smaller model would help, and --oversize "
            "allows it.",
            _lines(stage.terms),
        )


def _nothing_left(gpu: Gpu, model: Model, terms: Sequence[BudgetTerm], block_bytes: int, *, is_stated: bool) -> str:
    if is_stated:
        return (
            f"the stated KV memory, {size_words(terms[0].size_bytes)}, is too small for {model.name}: two blocks take "
            f"{size_words(2 * block_bytes)}, the null block included; give more with --kv-gib or --num-blocks."
        )
    *sizes, left = size_column([*(term.size_bytes for term in terms), sum(term.size_bytes for term in terms)])
    listed = ", ".join(f"{term.label} {size}" for term, size in zip(terms, sizes, strict=True))
    return (
        f"too little memory is left on {gpu.name} for the KV cache of {model.name}: {listed} make {left}, and two "
        f"blocks take {size_words(2 * block_bytes)}; a larger GPU, a higher --gpu-memory-utilization or "
        "--tensor-parallel-size, or a smaller --max-num-batched-tokens or --max-num-seqs would help."
    )
