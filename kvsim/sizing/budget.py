"""Compute the pool of KV blocks from GPU memory, term by term, as vLLM 0.25.1 does.

The pool is a share of the GPU's memory, minus weights, activations, memory outside PyTorch and captured graphs. vLLM
measures activations and overheads by running the model once. Here, `kvsim.sizing.activations` estimates them from the
shape of the model, and their terms say so. A known pool can be stated with `kv_memory_bytes` or `num_blocks`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from kvsim.display.text import html_text, plural
from kvsim.errors import BudgetError, UsageError
from kvsim.hardware import GIB
from kvsim.kv_groups import (
    CacheKind,
    CachePlan,
    CacheSettings,
    bytes_per_block,
    cache_layout,
    pipeline_stages,
    plan_cache,
)
from kvsim.kv_groups.specs import BACKEND_BLOCK, FLASHINFER_MLA_BLOCK
from kvsim.models.image_rules import RULES
from kvsim.sizing.activations import captured_graphs, outside_pytorch, peak_activations, slot_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.hardware import Gpu
    from kvsim.models import Model
    from kvsim.models.layers import Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """Model or head that drafts tokens: its layers, and its weights."""

    layers: tuple[Layer, ...]
    """Draft layers that need a KV cache."""
    weight_bytes: int
    """Bytes of the weights of the drafter on each GPU."""
    why: str
    """Explanation of `weight_bytes`, for the budget."""


@dataclass(frozen=True, slots=True)
class BudgetTerm:
    """Line of the budget."""

    label: str
    size_bytes: int
    """Bytes of the term; negative if this memory is not available to the pool."""
    why: str
    """Explanation of `size_bytes`: its source, or the calculation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """KV pool of one GPU, and the terms from which it follows. All bytes are those of one GPU."""

    gpu: Gpu
    model: Model
    """Served model, with its types and parallel sizes."""
    plan: CachePlan
    terms: tuple[BudgetTerm, ...]
    """Terms of the budget in order; their sum is `kv_bytes`."""
    stage: int = 0
    """Number of the pipeline stage with the least memory for the pool, from 0. The budget is that of a GPU of this
    stage.
    """
    encoder_cache_tokens: int = 0
    """Number of image tokens that the encoder cache holds; 0 for a text model, or if the number is unknown."""

    def __repr__(self) -> str:
        pool = f"{self.num_blocks:,} blocks, {self.capacity_tokens:,} tokens, {self.kv_bytes / GIB:.2f} GiB"
        return f"<Budget: {self.gpu.name}, {self.model.name}: {pool}>"

    def _repr_html_(self) -> str:
        cells = ((term.label, f"{term.size_bytes / GIB:,.2f} GiB", term.why) for term in self.terms)
        lines = "".join(f"<tr>{''.join(f'<td>{html_text(cell)}</td>' for cell in line)}</tr>" for line in cells)
        return f"<p>{html_text(repr(self))}</p><table>{lines}</table>"

    @property
    def num_blocks(self) -> int:
        """Number of blocks as vLLM counts them. Block 0, the null block, is included, although requests never use
        it.
        """
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
    def kv_bytes_in_all(self) -> int:
        """Bytes of the pool, summed over one GPU of every pipeline stage."""
        return self.num_blocks * sum(self.plan.bytes_per_block)

    @property
    def num_usable_blocks(self) -> int:
        """Number of blocks that requests can use."""
        return self.num_blocks - 1

    @property
    def capacity_tokens(self) -> int:
        """Number of tokens that the usable blocks hold. With several KV-cache groups, all sequences are assumed to have
        `max_model_len`.
        """
        if self.plan.layout.is_uniform:
            return self.num_usable_blocks * self.block_size
        length = self.plan.settings.max_model_len
        return self.num_usable_blocks * length // self.plan.blocks_for(length)

    def max_sequences(self, tokens: int) -> int:
        """Return the number of sequences of `tokens` tokens that can decode at once. Each takes whole blocks."""
        _check_count("tokens", tokens)
        return self.plan.max_sequences(tokens)

    def with_full_layers(self) -> CachePlan | None:
        """Return the plan for a pool of the same size if every layer kept every token; None if no layer has a
        window.
        """
        is_windowed = any(group.kind is CacheKind.SLIDING_WINDOW for group in self.plan.layout.groups)
        if not is_windowed or self.model.recurrent_layers:
            return None
        pool = [self.num_blocks * size for size in self.plan.bytes_per_block]
        return plan_cache(self.model, replace(self.plan.settings, uniform=True), pool, insist=True)

    def with_divided_latents(self) -> CachePlan | None:
        """Return the plan of the same pool if the GPUs divided every latent. Without this, each GPU keeps a copy of it.

        Return None if the model has no latent attention, if there is one GPU, or if the GPUs divide the tokens of each
        sequence already.
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
    """Return the number of blocks of `block_size` tokens that fit into `kv_memory_bytes` on each GPU, null block
    included.
    """
    _check_count("kv_memory_bytes", kv_memory_bytes)
    _check_count("block_size", block_size)
    settings = CacheSettings(max_model_len=model.max_position_embeddings, block_size=block_size)
    return kv_memory_bytes // cache_layout(model, settings).bytes_per_block


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Settings of vLLM that determine the KV pool. The defaults are those of its `LLM` class on a large GPU."""

    gpu_memory_utilization: float = 0.92
    """Share of the GPU's memory that may be used, in (0, 1]."""
    max_num_batched_tokens: int = 16384
    """Number of tokens in the largest step, from which activations and the blocks of windows follow."""
    max_in_flight_tokens: int | None = None
    """Number of tokens in all steps in flight, for which windows have room; None for `max_num_batched_tokens`."""
    max_num_seqs: int = 1024
    """Number of sequences in the largest step, from which the size of the logits follows."""
    max_model_len: int | None = None
    """Longest sequence in tokens. None for the limit of the model, which may be more than the pool holds."""
    find_max_model_len: bool = False
    """True to reduce `max_model_len` to the longest sequence that fits."""
    block_size: int | None = None
    """Number of tokens in a block of full attention; None for the choice of the attention backend."""
    enable_prefix_caching: bool | None = None
    """True to cache prefixes; None for vLLM's choice: True, except with recurrent layers."""
    keeps_every_state: bool = False
    """True to keep the recurrent state at the end of every block, if the model supports this."""
    hybrid_manager: bool = True
    """True to give layers of different kinds separate KV-cache groups."""
    kv_memory_bytes: int | None = None
    """Bytes of the pool on each GPU, before rounding to blocks; None to estimate. If stated, no term is estimated."""
    num_blocks: int | None = None
    """Exact number of blocks; None to estimate. If stated, no term is estimated."""
    oversize: bool = False
    """True to create the pool even if the GPU's memory is too small for it and the weights."""
    estimates_graphs: bool = True
    """True if the memory of CUDA graphs reduces the pool."""
    drafter: Drafter | None = None
    """Draft layers of speculative decoding; None without drafts."""
    num_drafts: int = 0
    """Number of tokens drafted for every request and step. Recurrent layers keep a state for each of these tokens."""
    max_loras: int = 0
    """Number of slots for adapters (LoRA)."""
    max_lora_rank: int = 16
    """Rank for which each slot for an adapter has room."""

    def of_cache(self, gpu: Gpu, model: Model) -> CacheSettings:
        """Return the settings from which the KV-cache groups of `model` on `gpu` follow."""
        return CacheSettings(
            max_model_len=model.max_position_embeddings if self.max_model_len is None else self.max_model_len,
            max_num_batched_tokens=self.max_in_flight_tokens or self.max_num_batched_tokens,
            block_size=self.block_size,
            enable_prefix_caching=self.enable_prefix_caching,
            keeps_every_state=self.keeps_every_state,
            hybrid_manager=self.hybrid_manager,
            mla_block_size=_mla_block_size(gpu),
            num_speculative_tokens=self.num_drafts,
            draft_layers=() if self.drafter is None else self.drafter.layers,
        )


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
    settings = settings or PoolSettings()
    _check_limits(settings)
    cache, additions = settings.of_cache(gpu, model), _additions(model, settings)
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
    """Terms of the budget. Their sum is the memory for the pool."""
    weights: tuple[BudgetTerm, ...]
    weight_limit_bytes: int
    limited_by: str
    """Name of the setting from which `weight_limit_bytes` follows, for an error message."""


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
    allowance = _allowance(gpu, settings.gpu_memory_utilization)
    limit_bytes = sum(term.size_bytes for term in allowance)
    stages = []
    for layers in pipeline_stages(model.num_layers, model.pipeline_parallel_size):
        weights = (*weight_terms(model, layers), *additions)
        terms = (*allowance, *weights, *_overheads(model, settings, layers))
        stages.append(_StageBudget(terms, weights, limit_bytes, "gpu_memory_utilization"))
    return stages


def _check_limits(settings: PoolSettings) -> None:
    share = settings.gpu_memory_utilization
    if not 0 < share <= 1:
        raise UsageError(f"gpu_memory_utilization is {share}; it must be above 0 and at most 1.")
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        _check_count(name, getattr(settings, name))


def _fill(
    gpu: Gpu,
    model: Model,
    settings: PoolSettings,
    cache: CacheSettings,
    terms_of: Sequence[tuple[BudgetTerm, ...]],
) -> tuple[CachePlan, tuple[BudgetTerm, ...], int]:
    """Fill the pool with as many blocks as fit on the pipeline stage with the least memory.

    `terms_of` has the terms of each stage, whose sum is the memory for blocks. Return the plan, the terms of the stage
    with the least memory, and the number of this stage.
    """
    sizes = bytes_per_block(model, cache)
    available = [max(0, sum(term.size_bytes for term in terms)) for terms in terms_of]
    stage = min(range(len(terms_of)), key=lambda index: available[index] // sizes[index])
    if available[stage] < 2 * sizes[stage]:
        raise BudgetError(_nothing_left(gpu, model, terms_of[stage], sizes[stage]), _lines(terms_of[stage]))
    try:
        insist, finds = settings.max_model_len is None or settings.oversize, settings.find_max_model_len
        plan = plan_cache(model, cache, available, find_max_model_len=finds, insist=insist)
    except BudgetError as error:
        raise BudgetError(str(error), _lines(terms_of[stage])) from None
    pool = plan.num_blocks * sizes[stage]
    rounding = BudgetTerm("rounding", pool - available[stage], f"whole blocks of {_size(sizes[stage])}")
    return plan, (*terms_of[stage], rounding), stage


def _mla_block_size(gpu: Gpu) -> int | None:
    if gpu.architecture.startswith("Hopper"):
        return None
    return FLASHINFER_MLA_BLOCK if gpu.architecture.startswith("Blackwell GB100") else BACKEND_BLOCK


def _stated(settings: PoolSettings, block_bytes: int) -> BudgetTerm:
    if settings.kv_memory_bytes is not None:
        _check_count("kv_memory_bytes", settings.kv_memory_bytes)
        return BudgetTerm("KV memory", settings.kv_memory_bytes, "as stated; nothing is estimated")
    count = settings.num_blocks or 0
    _check_count("num_blocks", count)
    return BudgetTerm("KV memory", count * block_bytes, f"{count:,} blocks, as stated; nothing is estimated")


def _allowance(gpu: Gpu, utilization: float) -> tuple[BudgetTerm, BudgetTerm]:
    requested = math.ceil(gpu.memory_bytes * utilization)
    return (
        BudgetTerm("GPU memory", gpu.memory_bytes, f"what the driver reports for {gpu.name}"),
        BudgetTerm("left to others", requested - gpu.memory_bytes, f"gpu_memory_utilization is {utilization:g}"),
    )


def weight_terms(model: Model, stage: range) -> tuple[BudgetTerm, ...]:
    """Return the terms of the weights on one GPU of a pipeline stage.

    `stage` has the numbers of its layers. The first stage also has the embedding, and the last stage the output head.
    """
    table = model.vocab_size * model.hidden_size * model.dtype_bytes
    tables = table if model.tie_word_embeddings else 2 * table
    share = len(stage) / model.num_layers
    layers = (model.weight_bytes - model.expert_bytes - tables) * share
    ends = (stage.start == 0) + (stage.stop == model.num_layers)
    on_stage = layers + (tables if model.pipeline_parallel_size == 1 else table * ends)
    kept = model.quantization.method if model.quantization else model.dtype
    why = f"{model.num_parameters:,} parameters in {kept}, {model.weight_bytes / model.num_parameters:.2f} bytes each"
    if model.pipeline_parallel_size > 1:
        why += f"; layers {stage.start + 1} to {stage.stop} of {model.num_layers}"
    if model.tensor_parallel_size > 1:
        why += f"; divided among {model.tensor_parallel_size} GPUs"
    if model.num_experts and model.num_expert_gpus > model.tensor_parallel_size:
        why += f", experts among {model.num_expert_gpus}"
    experts = model.expert_bytes * share * model.expert_share_on_gpu
    terms = (BudgetTerm("weights", -math.ceil(on_stage / model.tensor_parallel_size + experts), why),)
    if not model.encoder_bytes or stage.start:
        return terms
    tower = math.ceil(model.encoder_bytes / model.tensor_parallel_size)
    return (*terms, BudgetTerm("tower for images", -tower, "estimate: width and depth of its layers"))


def _additions(model: Model, settings: PoolSettings) -> tuple[BudgetTerm, ...]:
    """Return the terms of the draft model and of the slots for adapters (LoRA); none that is 0."""
    drafter, max_loras, rank = settings.drafter, settings.max_loras, settings.max_lora_rank
    if model.pipeline_parallel_size > 1 and (drafter or max_loras):
        raise UsageError("draft layers and slots of adapters are accounted for where one stage holds all layers; take "
                         "--pipeline-parallel-size 1.")  # fmt: skip
    terms = []
    if drafter is not None:
        terms.append(BudgetTerm("draft weights", -drafter.weight_bytes, drafter.why))
    if max_loras:
        size = slot_bytes(model, rank)
        why = f"{plural(max_loras, 'slot')} of rank {rank} (--max-loras), {_size(size)} each, used or not"
        terms.append(BudgetTerm("adapters", -max_loras * size, why))
    return tuple(terms)


def _overheads(model: Model, settings: PoolSettings, stage: range) -> tuple[BudgetTerm, ...]:
    """Return all terms of one stage except those of its weights."""
    num_tokens, is_last = settings.max_num_batched_tokens, stage.stop == model.num_layers
    estimates = (
        ("activations", peak_activations(model, num_tokens, settings.max_num_seqs, samples=is_last)),
        ("outside PyTorch", outside_pytorch(model)),
        *(
            [("captured graphs", captured_graphs(model, len(stage), settings.max_num_seqs))]
            if settings.estimates_graphs
            else []
        ),
    )
    overheads = (BudgetTerm(label, -size, f"estimate: {why}") for label, (size, why) in estimates)
    return (*overheads, *_encoder_terms(model, num_tokens, stage))


def encoder_cache_tokens(model: Model, max_num_batched_tokens: int) -> int:
    """Return the number of image tokens that the encoder cache holds; 0 for a text model, or if the number is
    unknown.
    """
    rule = RULES.get(model.image_class)
    return max(max_num_batched_tokens, rule.most_tokens) if rule is not None else 0


def _encoder_terms(model: Model, max_num_batched_tokens: int, stage: range) -> tuple[BudgetTerm, ...]:
    """Return the term of the encoder cache, which only the first stage has; empty for other stages."""
    tokens = encoder_cache_tokens(model, max_num_batched_tokens)
    if not tokens or stage.start:
        return ()
    each = f"{model.image_token_bytes:,} bytes each"
    why = f"outputs for {tokens:,} tokens of images, {each}; the peak of the image encoder is left out"
    return (BudgetTerm("encoder cache", -tokens * model.image_token_bytes, why),)


def _lines(terms: Sequence[BudgetTerm]) -> list[tuple[str, int, str]]:
    return [(term.label, term.size_bytes, term.why) for term in terms]


def _check_weights_fit(gpu: Gpu, model: Model, stage: _StageBudget) -> None:
    size = -sum(term.size_bytes for term in stage.weights)
    if size > stage.weight_limit_bytes:
        raise BudgetError(
            f"the weights of {model.name} take {_size(size)} on each {gpu.name}, and {stage.limited_by} leaves "
            f"{_size(max(0, stage.weight_limit_bytes))} of its {_size(gpu.memory_bytes)} for them; a larger GPU, a "
            "higher --tensor-parallel-size, a --quantization or a smaller model would help, and --oversize allows it.",
            _lines(stage.terms),
        )


def _nothing_left(gpu: Gpu, model: Model, terms: Sequence[BudgetTerm], block_bytes: int) -> str:
    listed = ", ".join(f"{term.label} {_size(term.size_bytes)}" for term in terms)
    left = _size(sum(term.size_bytes for term in terms))
    return (
        f"too little memory is left on {gpu.name} for the KV cache of {model.name}: {listed} make {left}, and two "
        f"blocks take {_size(2 * block_bytes)}; a larger GPU, a higher --gpu-memory-utilization or "
        "--tensor-parallel-size, or a smaller --max-num-batched-tokens or --max-num-seqs would help."
    )


def _check_count(name: str, value: float) -> None:
    if not (1 <= value < math.inf and value == int(value)):
        raise UsageError(f"{name} is {value}; it must be a whole number of at least 1.")


def _size(num_bytes: int) -> str:
    return f"{num_bytes / GIB:,.2f} GiB" if abs(num_bytes) >= GIB // 10 else f"{num_bytes / 2**20:,.2f} MiB"
