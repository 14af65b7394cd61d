"""Estimates of what vLLM 0.25.1 measures when it runs a model once before it makes its cache.

Three things come off a GPU's memory beside the weights: the peak of the activations in the largest step, what libraries
take outside PyTorch, and the captured graphs. The constants are fitted to the starts of real engines that
`docs/sizing.md` lists, with what is missed there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.models import Model

Estimate = tuple[int, str]
"""Bytes, and where they go."""

RESIDUAL_COPIES = 3
"""Tensors of the residual stream's width that are alive while a feed-forward layer works."""

OUTSIDE_BYTES = 358 << 20
"""Bytes that libraries take once a model has run: contexts, workspaces, loaded kernels."""

COMMUNICATOR_BYTES = 300 << 20
"""Bytes that a group of GPUs takes on each of them to exchange results."""

GRAPH_BYTES = 450 << 20
"""Bytes that the older of vLLM's two model runners sets aside for captured graphs."""

SAMPLER_BYTES = 4
"""Bytes of a logit's copy in float32."""
OLDER_SAMPLER_BYTES = 3 * SAMPLER_BYTES
"""The older model runner also samples: probabilities, and noise to weigh them by."""


_MIXTURES_ON_THE_NEWER = ("DeepseekV2ForCausalLM", "GraniteMoeForCausalLM", "Qwen2MoeForCausalLM")
"""Architectures with experts that vLLM 0.25.1 runs on its newer model runner; without experts all are, but hybrids."""


def on_older_runner(model: Model) -> bool:
    """Whether vLLM 0.25.1 runs the model on the older of its two model runners, which needs more memory beside."""
    return bool(model.recurrent_layers) or (model.num_experts > 0 and model.architecture not in _MIXTURES_ON_THE_NEWER)


def peak_activations(model: Model, num_tokens: int, num_seqs: int, *, samples: bool = True) -> Estimate:
    """The larger of two peaks that do not coincide: inside a layer, and the logits with their copy in float32.

    Args:
        model: What is served, and how.
        num_tokens: Tokens of the largest step.
        num_seqs: Sequences of the largest step.
        samples: Whether the GPU computes logits; in a pipeline only the last stage does.
    """
    width = math.ceil(RESIDUAL_COPIES * model.hidden_size + _inner_width(model))
    layer = num_tokens * width * model.dtype_bytes
    num_seqs = min(num_seqs, num_tokens)
    copies = OLDER_SAMPLER_BYTES if on_older_runner(model) else SAMPLER_BYTES
    gathered = model.dtype_bytes / model.tensor_parallel_size if model.tensor_parallel_size > 1 else 0
    logits = math.ceil(num_seqs * model.vocab_size * (model.dtype_bytes + copies + gathered)) if samples else 0
    if logits > layer:
        return logits, f"logits of {num_seqs:,} sequences over {model.vocab_size:,} tokens, and copies in float32"
    return layer, f"one layer over {num_tokens:,} tokens, {width:,} elements each"


def _inner_width(model: Model) -> float:
    """Elements that a token occupies inside of the widest part of a layer, on one GPU."""
    size = model.tensor_parallel_size
    dense = 3 * model.intermediate_size / size
    heads = (2 * model.num_attention_heads + 2 * model.num_kv_heads) * model.head_dim / size
    if not model.num_experts:
        return max(dense, heads)
    expert = model.expert_intermediate_size / size
    into, out = max(2 * expert, model.hidden_size), max(expert, model.hidden_size)
    return max(heads, model.num_experts_per_token * (into + out))


def outside_pytorch(model: Model) -> Estimate:
    """What lives on the GPU outside of PyTorch's allocator."""
    if model.tensor_parallel_size * model.pipeline_parallel_size == 1:
        return OUTSIDE_BYTES, "workspaces and kernels that libraries load"
    return OUTSIDE_BYTES + COMMUNICATOR_BYTES, "workspaces, kernels, and buffers to exchange results between GPUs"


def captured_graphs(model: Model) -> Estimate:
    """What is set aside for captured graphs before the cache is made: nothing, by the newer model runner."""
    if on_older_runner(model):
        return GRAPH_BYTES, "set aside by the older model runner, which serves recurrent layers and most mixtures"
    return 0, "nothing is set aside; they take what the utilization leaves to others"
