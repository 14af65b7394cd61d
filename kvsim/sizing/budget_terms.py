"""Terms of vLLM's memory budget: the GPU's memory, and what weights, activations and all else take of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.display.text import plural, size_words
from kvsim.errors import UsageError
from kvsim.models.image_rules import RULES
from kvsim.sizing.activations import captured_graphs, outside_pytorch, peak_activations, slot_bytes

if TYPE_CHECKING:
    from kvsim.hardware import Gpu
    from kvsim.models import Model
    from kvsim.sizing.pool_settings import PoolSettings


@dataclass(frozen=True, slots=True)
class BudgetTerm:
    """One line of the memory budget."""

    label: str
    size_bytes: int
    """Bytes of the term; negative if this memory is not available to the pool."""
    why: str
    """Explanation of `size_bytes`: its source, or the calculation."""


def allowance_terms(gpu: Gpu, utilization: float) -> tuple[BudgetTerm, BudgetTerm]:
    """Return the GPU's memory, and the share that `gpu_memory_utilization` leaves to other processes."""
    requested = math.ceil(gpu.memory_bytes * utilization)
    return (
        BudgetTerm("GPU memory", gpu.memory_bytes, f"what the driver reports for {gpu.name}"),
        BudgetTerm("left to others", requested - gpu.memory_bytes, f"--gpu-memory-utilization is {utilization:g}"),
    )


def weight_terms(model: Model, stage: range) -> tuple[BudgetTerm, ...]:
    """Return the terms of the weights on one GPU of a pipeline stage.

    `stage` has the indices of the layers of the stage. The first stage also has the embedding and the image encoder,
    and the last stage the output head.
    """
    table_bytes = model.vocab_size * model.hidden_size * model.dtype_bytes
    num_tables = 1 if model.tie_word_embeddings else 2
    share = len(stage) / model.num_layers
    layers_bytes = (model.weight_bytes - model.expert_bytes - num_tables * table_bytes) * share
    # The embedding and the head share a tied table only on one GPU: if they are on two stages, each stage has it.
    num_ends = (stage.start == 0) + (stage.stop == model.num_layers)
    dense_bytes = layers_bytes + table_bytes * min(num_tables, num_ends)
    expert_bytes = model.expert_bytes * share * model.expert_share_on_gpu
    size_bytes = math.ceil(dense_bytes / model.tensor_parallel_size + expert_bytes)
    weights = BudgetTerm("weights", -size_bytes, _weights_why(model, stage))
    if not model.encoder_bytes or stage.start > 0:
        return (weights,)
    encoder_bytes = math.ceil(model.encoder_bytes / model.tensor_parallel_size)
    return weights, BudgetTerm("tower for images", -encoder_bytes, "estimate: width and depth of its layers")


def _weights_why(model: Model, stage: range) -> str:
    """Explain the weights of a stage: number and format of the parameters, and how stages and GPUs divide them."""
    dtype = model.quantization.method if model.quantization else model.dtype
    why = f"{model.num_parameters:,} parameters in {dtype}, {model.weight_bytes / model.num_parameters:.2f} bytes each"
    if model.pipeline_parallel_size > 1:
        why += f"; layers {stage.start + 1} to {stage.stop} of {model.num_layers}"
    if model.tensor_parallel_size > 1:
        why += f"; divided among {model.tensor_parallel_size} GPUs"
    if model.num_experts and model.num_expert_gpus > model.tensor_parallel_size:
        why += f", experts among {model.num_expert_gpus}"
    return why


def added_terms(model: Model, settings: PoolSettings) -> tuple[BudgetTerm, ...]:
    """Return the terms of the draft model and of the slots for adapters (LoRA), for a server that has them.

    Raises:
        UsageError: there is a draft model or a slot, and there are several pipeline stages.
    """
    drafter, max_loras, rank = settings.drafter, settings.max_loras, settings.max_lora_rank
    if model.pipeline_parallel_size > 1 and (drafter or max_loras):
        raise UsageError("draft layers and slots of adapters are accounted for where one stage holds all layers; take "
                         "--pipeline-parallel-size 1.")  # fmt: skip
    terms = []
    if drafter is not None:
        terms.append(BudgetTerm("draft weights", -drafter.weight_bytes, drafter.why))
    if max_loras:
        size = slot_bytes(model, rank)
        why = f"{plural(max_loras, 'slot')} of rank {rank} (--max-loras), {size_words(size)} each, used or not"
        terms.append(BudgetTerm("adapters", -max_loras * size, why))
    return tuple(terms)


def overhead_terms(model: Model, settings: PoolSettings, stage: range) -> tuple[BudgetTerm, ...]:
    """Return the estimated terms of one stage.

    They are activations, memory outside PyTorch, captured graphs, and the encoder cache on the first stage.
    """
    num_tokens, is_last = settings.max_num_batched_tokens, stage.stop == model.num_layers
    estimates = [
        ("activations", peak_activations(model, num_tokens, settings.max_num_seqs, samples=is_last)),
        ("outside PyTorch", outside_pytorch(model)),
    ]
    if settings.estimates_graphs:
        estimates.append(("captured graphs", captured_graphs(model, len(stage), settings.max_num_seqs)))
    overheads = (BudgetTerm(label, -size, f"estimate: {why}") for label, (size, why) in estimates)
    return (*overheads, *_encoder_terms(model, num_tokens, stage))


def encoder_cache_tokens(model: Model, max_num_batched_tokens: int) -> int:
    """Return the number of image tokens that the encoder cache holds; 0 for a text model, or if unknown."""
    rule = RULES.get(model.image_class)
    return max(max_num_batched_tokens, rule.most_tokens) if rule is not None else 0


def _encoder_terms(model: Model, max_num_batched_tokens: int, stage: range) -> tuple[BudgetTerm, ...]:
    """Return the term of the encoder cache, which only the first stage has; empty for other stages."""
    num_tokens = encoder_cache_tokens(model, max_num_batched_tokens)
    if num_tokens == 0 or stage.start > 0:
        return ()
    each = f"{model.image_token_bytes:,} bytes each"
    why = f"outputs for {num_tokens:,} tokens of images, {each}; the peak of the image encoder is left out"
    return (BudgetTerm("encoder cache", -num_tokens * model.image_token_bytes, why),)
