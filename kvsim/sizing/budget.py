"""Compute the pool of KV blocks from GPU memory, term by term, as vLLM 0.25.1 does.

The pool is a share of the card, minus weights, activations, memory outside PyTorch and captured graphs. vLLM measures
activations and overheads by running the model once. Here they are estimated from the shape
(`kvsim.sizing.activations`), and their terms say so. State a known pool with `kv_memory_bytes` or `num_blocks`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from kvsim.display.text import html_text
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
from kvsim.models.images import RULES
from kvsim.sizing.activations import captured_graphs, outside_pytorch, peak_activations
from kvsim.sizing.adapter_slots import slot_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.hardware import Gpu
    from kvsim.models import Model
    from kvsim.sizing.draft_layers import Drafter


@dataclass(frozen=True, slots=True)
class BudgetTerm:
    """Line of the explanation."""

    label: str
    size_bytes: int
    """Bytes of the term; negative for memory used."""
    why: str
    """Source of the figure, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """KV pool of one GPU, and the terms that led to it. All bytes are those of one GPU."""

    gpu: Gpu
    model: Model
    """Served model, with its types and parallel sizes."""
    plan: CachePlan
    terms: tuple[BudgetTerm, ...]
    """Terms of the budget in order; their sum is `kv_bytes`."""
    stage: int = 0
    """Pipeline stage with the least memory, to which the budget belongs."""
    encoder_cache_tokens: int = 0
    """Tokens of images whose encoder outputs are kept at once; 0 for a model for text, or where that is not known."""

    def __repr__(self) -> str:
        pool = f"{self.num_blocks:,} blocks, {self.capacity_tokens:,} tokens, {self.kv_bytes / GIB:.2f} GiB"
        return f"<Budget: {self.gpu.name}, {self.model.name}: {pool}>"

    def _repr_html_(self) -> str:
        cells = ((term.label, f"{term.size_bytes / GIB:,.2f} GiB", term.why) for term in self.terms)
        lines = "".join(f"<tr>{''.join(f'<td>{html_text(cell)}</td>' for cell in line)}</tr>" for line in cells)
        return f"<p>{html_text(repr(self))}</p><table>{lines}</table>"

    @property
    def num_blocks(self) -> int:
        """Number of blocks as in vLLM. Block 0 is the null block, so requests can use one block less."""
        return self.plan.num_blocks

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block in all layers of the stage."""
        return self.plan.bytes_per_block[self.stage]

    @property
    def block_size(self) -> int:
        """Tokens of the smallest block of any group."""
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
        """Blocks that requests can use."""
        return self.num_blocks - 1

    @property
    def capacity_tokens(self) -> int:
        """Tokens in the usable blocks; with several groups, in sequences of `max_model_len`."""
        if self.plan.layout.is_uniform:
            return self.num_usable_blocks * self.block_size
        length = self.plan.settings.max_model_len
        return self.num_usable_blocks * length // self.plan.blocks_for(length)

    def max_sequences(self, tokens: int) -> int:
        """Return the number of sequences of `tokens` tokens that decode at once, each in whole blocks."""
        _check_count("tokens", tokens)
        return self.plan.max_sequences(tokens)

    def with_full_layers(self) -> CachePlan | None:
        """Return the plan of this pool if every layer kept every token; None without windows."""
        is_windowed = any(group.kind is CacheKind.SLIDING_WINDOW for group in self.plan.layout.groups)
        if not is_windowed or self.model.recurrent_layers:
            return None
        pool = [self.num_blocks * size for size in self.plan.bytes_per_block]
        return plan_cache(self.model, replace(self.plan.settings, uniform=True), pool, insist=True)

    def with_divided_latents(self) -> CachePlan | None:
        """Return the plan of this pool if each GPU kept a share of every latent instead of all of it.

        The result is None without latents, with one GPU, or where GPUs divide contexts anyway.
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
    """Return the blocks of `block_size` tokens in `kv_memory_bytes` on each GPU, as in vLLM, null block included."""
    _check_count("kv_memory_bytes", kv_memory_bytes)
    _check_count("block_size", block_size)
    settings = CacheSettings(max_model_len=model.max_position_embeddings, block_size=block_size)
    return kv_memory_bytes // cache_layout(model, settings).bytes_per_block


def plan_budget(
    gpu: Gpu,
    model: Model,
    *,
    gpu_memory_utilization: float = 0.92,
    max_num_batched_tokens: int = 16384,
    max_in_flight_tokens: int | None = None,
    max_num_seqs: int = 1024,
    max_model_len: int | None = None,
    find_max_model_len: bool = False,
    block_size: int | None = None,
    enable_prefix_caching: bool | None = None,
    keeps_every_state: bool = False,
    hybrid_manager: bool = True,
    kv_memory_bytes: int | None = None,
    num_blocks: int | None = None,
    oversize: bool = False,
    estimates_graphs: bool = True,
    drafter: Drafter | None = None,
    num_drafts: int = 0,
    max_loras: int = 0,
    max_lora_rank: int = 16,
) -> Budget:
    """Return the KV pool that vLLM would create on `gpu` for `model`; defaults as in its `LLM` class on a large GPU.

    Args:
        gpu: GPU; with parallelism, each of several equal ones.
        model: Served model; `Model.served` sets its types and number of GPUs.
        gpu_memory_utilization: Share of the GPU's memory that may be used, in (0, 1].
        max_num_batched_tokens: Tokens of the largest step; they determine the activations and the window blocks.
        max_in_flight_tokens: Tokens of all steps in flight, which windows hold too; None for those of one step.
        max_num_seqs: Sequences of the largest step; they determine the size of the logits.
        max_model_len: Longest sequence in tokens; None for the model's, which need not fit.
        find_max_model_len: Whether to reduce `max_model_len` to the longest sequence that fits.
        block_size: Tokens per block of full attention; None for the choice of the attention backend.
        enable_prefix_caching: Whether prefixes are cached; None for on, except with recurrent layers.
        keeps_every_state: Whether a model that can keep the recurrent state of every block does so.
        hybrid_manager: Whether layers of different kinds get separate groups.
        kv_memory_bytes: Bytes of the pool before rounding; replaces the terms above.
        num_blocks: Exact number of blocks; replaces the terms above.
        oversize: Whether to create the pool even if it exceeds the GPU together with the weights.
        estimates_graphs: Whether the memory of CUDA graphs is taken from the pool.
        drafter: What drafts, with weights and cached layers of its own; None for nothing or a look-up.
        num_drafts: Tokens drafted for every request and step; recurrent layers keep a state for each.
        max_loras: Slots for adapters; 0 for none.
        max_lora_rank: Rank that each slot has room for.
    """
    if not 0 < gpu_memory_utilization <= 1:
        raise UsageError(f"gpu_memory_utilization is {gpu_memory_utilization}; it must be above 0 and at most 1.")
    _check_count("max_num_seqs", max_num_seqs)
    _check_count("max_num_batched_tokens", max_num_batched_tokens)
    settings = CacheSettings(
        max_model_len=model.max_position_embeddings if max_model_len is None else max_model_len,
        max_num_batched_tokens=max_in_flight_tokens or max_num_batched_tokens,
        block_size=block_size,
        enable_prefix_caching=enable_prefix_caching,
        keeps_every_state=keeps_every_state,
        hybrid_manager=hybrid_manager,
        mla_block_size=_mla_block_size(gpu),
        num_speculative_tokens=num_drafts,
        draft_layers=() if drafter is None else drafter.layers,
    )
    stages = pipeline_stages(model.num_layers, model.pipeline_parallel_size)
    additions = _additions(model, drafter, max_loras, max_lora_rank)
    weights = [(*weight_terms(model, stage), *additions) for stage in stages]
    step = _LargestStep(max_num_batched_tokens, max_num_seqs, estimates_graphs)
    if num_blocks is not None or kv_memory_bytes is not None:
        sizes = bytes_per_block(model, settings)
        accounts, setting = [_stated(kv_memory_bytes, num_blocks, size) for size in sizes], "the KV cache"
        rooms = [gpu.memory_bytes - account[0].size_bytes for account in accounts]
    else:
        allowance, setting = _allowance(gpu, gpu_memory_utilization), "gpu_memory_utilization"
        overheads = [_of_stage(model, step, stage) for stage in stages]
        accounts = [(*allowance, *terms, *others) for terms, others in zip(weights, overheads, strict=True)]
        rooms = [sum(term.size_bytes for term in allowance)] * len(stages)
    if not oversize:
        for terms, room, account in zip(weights, rooms, accounts, strict=True):
            _check_weights_fit(gpu, model, terms, room, setting, account)
    insist = max_model_len is None or oversize
    plan, terms, stage = _fill(gpu, model, settings, accounts, find_max_model_len=find_max_model_len, insist=insist)
    kept = encoder_cache_tokens(model, max_num_batched_tokens)
    return Budget(gpu=gpu, model=model, plan=plan, terms=terms, stage=stage, encoder_cache_tokens=kept)


class _LargestStep(NamedTuple):
    """The largest step, which activations and graphs are sized for."""

    num_tokens: int
    num_seqs: int
    estimates_graphs: bool


def _of_stage(model: Model, step: _LargestStep, stage: range) -> tuple[BudgetTerm, ...]:
    """Return what one stage needs beside its weights."""
    is_last = stage.stop == model.num_layers
    overheads = _overheads(model, step.num_tokens, step.num_seqs, is_last=is_last, graphs=step.estimates_graphs)
    return (*overheads, *_encoder_terms(model, step.num_tokens, stage))


def _fill(
    gpu: Gpu,
    model: Model,
    settings: CacheSettings,
    accounts: Sequence[tuple[BudgetTerm, ...]],
    *,
    find_max_model_len: bool,
    insist: bool,
) -> tuple[CachePlan, tuple[BudgetTerm, ...], int]:
    """Fill what the account of each stage leaves with blocks.

    Returns:
        The blocks, the terms of the stage that has the fewest, and its number.

    Raises:
        BudgetError: nothing is left, or no sequence fits.
    """
    sizes = bytes_per_block(model, settings)
    available = [max(0, sum(term.size_bytes for term in account)) for account in accounts]
    stage = min(range(len(accounts)), key=lambda index: available[index] // sizes[index])
    if available[stage] < 2 * sizes[stage]:
        raise BudgetError(_nothing_left(gpu, model, accounts[stage], sizes[stage]), _lines(accounts[stage]))
    try:
        plan = plan_cache(model, settings, available, find_max_model_len=find_max_model_len, insist=insist)
    except BudgetError as error:
        raise BudgetError(str(error), _lines(accounts[stage])) from None
    pool = plan.num_blocks * sizes[stage]
    rounding = BudgetTerm("rounding", pool - available[stage], f"whole blocks of {_size(sizes[stage])}")
    return plan, (*accounts[stage], rounding), stage


def _mla_block_size(gpu: Gpu) -> int | None:
    if gpu.architecture.startswith("Hopper"):
        return None
    return FLASHINFER_MLA_BLOCK if gpu.architecture.startswith("Blackwell GB100") else BACKEND_BLOCK


def _stated(kv_memory_bytes: int | None, num_blocks: int | None, block_bytes: int) -> tuple[BudgetTerm, ...]:
    if kv_memory_bytes is not None:
        _check_count("kv_memory_bytes", kv_memory_bytes)
        return (BudgetTerm("KV memory", kv_memory_bytes, "as stated; nothing is estimated"),)
    count = num_blocks or 0
    _check_count("num_blocks", count)
    return (BudgetTerm("KV memory", count * block_bytes, f"{count:,} blocks, as stated; nothing is estimated"),)


def _allowance(gpu: Gpu, utilization: float) -> tuple[BudgetTerm, BudgetTerm]:
    requested = math.ceil(gpu.memory_bytes * utilization)
    return (
        BudgetTerm("GPU memory", gpu.memory_bytes, f"what the driver reports for {gpu.name}"),
        BudgetTerm("left to others", requested - gpu.memory_bytes, f"gpu_memory_utilization is {utilization:g}"),
    )


def weight_terms(model: Model, stage: range) -> tuple[BudgetTerm, ...]:
    """Return the weights on one GPU of a pipeline stage: its layers, and the tables at both ends."""
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


def _additions(model: Model, drafter: Drafter | None, max_loras: int, max_lora_rank: int) -> tuple[BudgetTerm, ...]:
    """Return the weights of what drafts, and the slots of adapters."""
    if model.pipeline_parallel_size > 1 and (drafter or max_loras):
        raise UsageError("draft layers and slots of adapters are accounted for where one stage holds all layers; take "
                         "--pipeline-parallel-size 1.")  # fmt: skip
    terms = []
    if drafter is not None:
        terms.append(BudgetTerm("draft weights", -drafter.weight_bytes, drafter.why))
    if max_loras:
        size = slot_bytes(model, max_lora_rank)
        why = f"{max_loras:,} slots of rank {max_lora_rank} (--max-loras), {_size(size)} each, used or not"
        terms.append(BudgetTerm("adapters", -max_loras * size, why))
    return tuple(terms)


def _overheads(model: Model, num_tokens: int, num_seqs: int, *, is_last: bool, graphs: bool) -> tuple[BudgetTerm, ...]:
    estimates = (
        ("activations", peak_activations(model, num_tokens, num_seqs, samples=is_last)),
        ("outside PyTorch", outside_pytorch(model)),
        *([("captured graphs", captured_graphs(model))] if graphs else []),
    )
    return tuple(BudgetTerm(label, -size, f"estimate: {why}") for label, (size, why) in estimates)


def encoder_cache_tokens(model: Model, max_num_batched_tokens: int) -> int:
    """Return the tokens of images whose encoder outputs are kept at once; 0 for a model for text, or an unknown one."""
    rule = RULES.get(model.image_class)
    return max(max_num_batched_tokens, rule.most_tokens) if rule is not None else 0


def _encoder_terms(model: Model, max_num_batched_tokens: int, stage: range) -> tuple[BudgetTerm, ...]:
    """Return the outputs of the encoder that the first stage keeps."""
    tokens = encoder_cache_tokens(model, max_num_batched_tokens)
    if not tokens or stage.start:
        return ()
    why = f"outputs for {tokens:,} tokens of images, {model.image_token_bytes:,} bytes each; the tower's peak is not in"
    return (BudgetTerm("encoder cache", -tokens * model.image_token_bytes, why),)


def _lines(account: Sequence[BudgetTerm]) -> list[tuple[str, int, str]]:
    return [(term.label, term.size_bytes, term.why) for term in account]


def _check_weights_fit(
    gpu: Gpu,
    model: Model,
    weights: Sequence[BudgetTerm],
    room_bytes: int,
    setting: str,
    account: Sequence[BudgetTerm],
) -> None:
    size = -sum(term.size_bytes for term in weights)
    if size > room_bytes:
        raise BudgetError(
            f"the weights of {model.name} take {_size(size)} on each {gpu.name}, and {setting} leaves "
            f"{_size(max(0, room_bytes))} of its {_size(gpu.memory_bytes)} for them; a larger GPU, a higher "
            f"--tensor-parallel-size, a --quantization or a smaller model would help, and --oversize insists.",
            _lines(account),
        )


def _nothing_left(gpu: Gpu, model: Model, account: Sequence[BudgetTerm], block_bytes: int) -> str:
    terms = ", ".join(f"{term.label} {_size(term.size_bytes)}" for term in account)
    left = _size(sum(term.size_bytes for term in account))
    return (
        f"too little memory is left on {gpu.name} for the KV cache of {model.name}: {terms} make {left}, and two "
        f"blocks take {_size(2 * block_bytes)}; a larger GPU, a higher --gpu-memory-utilization or "
        "--tensor-parallel-size, or a smaller --max-num-batched-tokens or --max-num-seqs would help."
    )


def _check_count(name: str, value: float) -> None:
    if not (1 <= value < math.inf and value == int(value)):
        raise UsageError(f"{name} is {value}; it must be a whole number of at least 1.")


def _size(num_bytes: int) -> str:
    return f"{num_bytes / GIB:,.2f} GiB" if abs(num_bytes) >= GIB // 10 else f"{num_bytes / 2**20:,.2f} MiB"
