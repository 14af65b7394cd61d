"""Estimate the memory that vLLM 0.25.1 measures in a profiling run before it creates its cache.

The estimate has three terms: the peak of the activations in the largest step, the memory of libraries outside PyTorch,
and the captured graphs. The constants are fitted to the starts of real engines in `docs/sizing.md`, which states the
errors. Weights and slots for adapters are not part of the estimate; `slot_bytes` computes the size of a slot.

vLLM's V1 engine has two model runners, which are also called V1 and V2.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.errors import UsageError

if TYPE_CHECKING:
    from kvsim.models import Model

Estimate = tuple[int, str]
"""Number of bytes, and an explanation of the number."""

_MIB = 1 << 20

RESIDUAL_COPIES = 3
"""Number of tensors with the width of the residual stream that exist at once in a feed-forward layer."""

OUTSIDE_BYTES = 358 * _MIB
"""Bytes that libraries use after a model has run: contexts, workspaces and loaded kernels."""

COMMUNICATOR_BYTES = 300 * _MIB
"""Additional bytes outside PyTorch on each of several GPUs, for buffers with which they exchange results."""

GRAPH_BYTES = 450 * _MIB
"""Bytes that vLLM's model runner V1 reserves for captured graphs."""

EXPERT_GRAPH_BYTES = int(4.7 * _MIB)
"""Bytes that captured graphs of models with experts take per captured size, in addition to those per layer."""
EXPERT_GRAPH_LAYER_BYTES = int(0.3 * _MIB)
"""Bytes that captured graphs of models with experts take, per captured size and layer.

Fitted to starts of Qwen3-30B-A3B with 48 layers and of Mixtral-8x7B with 16 layers on an H200, with 51 captured sizes.
"""
RANK_GRAPH_LAYER_BYTES = int(0.58 * _MIB)
"""Bytes of captured graphs on data-parallel ranks that share experts, per captured size and layer.

These graphs also exchange tokens. Fitted to a single start: vLLM 0.25.1 logged 1.12 GiB for two ranks of Qwen3-30B-A3B
with 35 captured sizes.
"""

SAMPLER_BYTES = 4
"""Bytes per logit of the copy of the logits in float32."""
OLDER_SAMPLER_BYTES = 3 * SAMPLER_BYTES
"""Bytes per logit on model runner V1, which also samples, with tensors of probabilities and of noise."""

_CAPTURED_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 1025, 16))
"""Numbers of tokens for which vLLM captures graphs, up to the limit of the model."""
_MOST_CAPTURED, _MOST_CAPTURED_OF_GPT_OSS = 512, 1024
"""Largest number of tokens in a captured graph of vLLM, and in one of gpt-oss.

Except for gpt-oss, the number is also at most twice `max_num_seqs`.
"""

_MIXTURES_ON_THE_NEWER = ("DeepseekV2ForCausalLM", "GraniteMoeForCausalLM", "Qwen2MoeForCausalLM")
"""Architectures with experts that vLLM 0.25.1 runs on model runner V2.

Models without experts run on it, too, unless they have recurrent layers.
"""


def on_older_runner(model: Model) -> bool:
    """Tell whether vLLM 0.25.1 runs the model on model runner V1, which uses more memory than V2."""
    return bool(model.recurrent_layers) or (model.num_experts > 0 and model.architecture not in _MIXTURES_ON_THE_NEWER)


def peak_activations(model: Model, num_tokens: int, num_seqs: int, *, samples: bool = True) -> Estimate:
    """Return the larger of two peaks: the one inside a layer, and the one of the logits with their float32 copy.

    `num_tokens` and `num_seqs` are those of the largest step. `samples` is False for a pipeline stage without logits,
    which is every stage but the last.
    """
    width = math.ceil(RESIDUAL_COPIES * model.hidden_size + _inner_width(model))
    layer = num_tokens * width * model.dtype_bytes
    num_seqs = min(num_seqs, num_tokens)
    copies = OLDER_SAMPLER_BYTES if on_older_runner(model) else SAMPLER_BYTES
    # With tensor parallelism, a GPU has its own part of the logits beside the whole that it gathers.
    own_part = model.dtype_bytes / model.tensor_parallel_size if model.tensor_parallel_size > 1 else 0
    logits = math.ceil(num_seqs * model.vocab_size * (model.dtype_bytes + copies + own_part)) if samples else 0
    if logits > layer:
        return logits, f"logits of {num_seqs:,} sequences over {model.vocab_size:,} tokens, and copies in float32"
    return layer, f"one layer over {num_tokens:,} tokens, {width:,} elements each"


def _inner_width(model: Model) -> float:
    """Return the number of elements per token in the widest part of a layer, on one GPU."""
    size = model.tensor_parallel_size
    dense = 3 * model.intermediate_size / size
    heads = (2 * model.num_attention_heads + 2 * model.num_kv_heads) * model.head_dim / size
    if not model.num_experts:
        return max(dense, heads)
    expert = model.expert_intermediate_size / (1 if model.enable_expert_parallel else model.num_expert_gpus)
    into, out = max(2 * expert, model.hidden_size), max(expert, model.hidden_size)
    return max(heads, model.num_experts_per_token * (into + out))


def outside_pytorch(model: Model) -> Estimate:
    """Estimate the bytes that libraries take outside PyTorch's allocator."""
    if model.num_gpus * model.data_parallel_size == 1:
        return OUTSIDE_BYTES, "workspaces and kernels that libraries load"
    return OUTSIDE_BYTES + COMMUNICATOR_BYTES, "workspaces, kernels, and buffers to exchange results between GPUs"


def captured_graphs(model: Model, num_layers: int, num_seqs: int) -> Estimate:
    """Estimate the bytes that vLLM sets aside for captured graphs before it creates the cache; 0 on model runner V2.

    `num_layers` is the number of layers in the graphs, and `num_seqs` the largest number of sequences in a step.
    """
    if model.num_experts > 0 and on_older_runner(model):
        is_gpt_oss = model.architecture == "GptOssForCausalLM"
        most = _MOST_CAPTURED_OF_GPT_OSS if is_gpt_oss else min(2 * num_seqs, _MOST_CAPTURED)
        num_sizes = sum(size <= most for size in _CAPTURED_SIZES)
        of_layer = RANK_GRAPH_LAYER_BYTES if model.divides_experts_among_ranks else EXPERT_GRAPH_LAYER_BYTES
        size = num_sizes * (EXPERT_GRAPH_BYTES + num_layers * of_layer)
        return size, f"{num_sizes} sizes, set aside by the older model runner, which serves most mixtures"
    if on_older_runner(model):
        return GRAPH_BYTES, "set aside by the older model runner, which serves recurrent layers"
    return 0, "nothing is set aside; they take what the utilization leaves to others"


def slot_bytes(model: Model, max_lora_rank: int) -> int:
    """Return the bytes of one slot for an adapter (LoRA) on each GPU. vLLM allocates the slots with the model.

    For each projection of a layer, a slot has two matrices: A of rank x inputs, and B of outputs x rank. If tensor
    parallelism divides the outputs of a projection, it divides B, and every GPU has the whole of A. If it divides the
    inputs, it divides A, and every GPU has the whole of B.

    Raises:
        UsageError: the model has experts, MLA or recurrent layers.
    """
    if model.num_experts or model.kv_lora_rank is not None or model.recurrent_layers:
        raise UsageError(
            f"kvsim knows the slots of adapters only for decoders with plain attention and without experts, which "
            f"{model.name} is not; leave --enable-lora out."
        )
    size, hidden, inner = model.tensor_parallel_size, model.hidden_size, model.intermediate_size
    heads, kv = model.num_attention_heads * model.head_dim, max(model.num_kv_heads // size, 1) * model.head_dim
    by_outputs = (hidden + heads // size) + 2 * (hidden + kv) + 2 * (hidden + inner // size)  # q, k and v, gate and up
    by_inputs = (heads // size + hidden) + (inner // size + hidden)  # o, down
    return model.num_layers * max_lora_rank * (by_outputs + by_inputs) * model.dtype_bytes
