"""Where a fit of vLLM's step times begins: the roofline of a data sheet, with plain constants for what the host does.

No user's times come from here: those of a model without a profile come from a machine card. A fit moves every
coefficient by a factor, and so wants one that is not zero for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.steptime import Roofline
from kvsim.steptime.generate import streamed_bytes_per_s
from kvsim.steptime.overheads import (
    ARITHMETIC_EFFICIENCY,
    ATTENTION_EFFICIENCY,
    EAGER_LAYER_S,
    EXPOSED_SHARE,
    HOST_SEQUENCE_S,
    HOST_STEP_S,
    HOST_TOKEN_S,
    KERNEL_S,
    KERNELS_PER_LAYER,
    LONE_SHARE,
    MAX_CAPTURED_TOKENS,
    NEW_SEQUENCE_S,
    PIECEWISE_LAYER_S,
    PIECEWISE_S,
    REQUEST_S,
    REQUEST_TOKEN_S,
    SEQUENCE_LAYER_S,
    SHARED_SAVING,
    THROTTLE_SHARE,
    TURNAROUND_SEQUENCE_S,
    TURNAROUND_STEP_S,
)
from kvsim.steptime.work import streamed_bytes

if TYPE_CHECKING:
    from kvsim.hardware import Gpu
    from kvsim.models import Model


def vllm_prior(gpu: Gpu, model: Model) -> Roofline:
    """vLLM serving `model` on `gpu`, as a fit first thinks of it."""
    bandwidth = streamed_bytes_per_s(gpu)
    return Roofline(
        label=f"uncalibrated roofline of {gpu.name} with {model.name}",
        request_s=REQUEST_S,
        request_token_s=REQUEST_TOKEN_S,
        host_step_s=HOST_STEP_S,
        host_sequence_s=HOST_SEQUENCE_S,
        host_token_s=HOST_TOKEN_S,
        new_sequence_s=NEW_SEQUENCE_S,
        turnaround_step_s=TURNAROUND_STEP_S,
        turnaround_sequence_s=TURNAROUND_SEQUENCE_S,
        exposed_share=EXPOSED_SHARE,
        piecewise_launch_s=model.num_layers * PIECEWISE_LAYER_S,
        eager_launch_s=model.num_layers * EAGER_LAYER_S,
        uncompiled_launch_s=model.num_layers * EAGER_LAYER_S,
        new_shape_s=0.0,
        new_kernel_s=0.0,
        max_captured_tokens=MAX_CAPTURED_TOKENS,
        step_s=model.num_layers * KERNELS_PER_LAYER * KERNEL_S,
        weights_s=streamed_bytes(model, model.num_parameters) / bandwidth,
        active_weights_s=streamed_bytes(model, model.num_active_parameters) / bandwidth,
        token_s=model.flops_per_token / (gpu.dense_flops * ARITHMETIC_EFFICIENCY),
        logits_s=model.flops_per_logits / (gpu.dense_flops * ARITHMETIC_EFFICIENCY),
        sequence_s=model.num_kv_layers * SEQUENCE_LAYER_S,
        context_token_s=model.kv_bytes_per_token / bandwidth,
        lone_share=LONE_SHARE,
        full_seqs=gpu.num_processors / model.num_kv_heads,
        shared_saving=SHARED_SAVING,
        piecewise_s=PIECEWISE_S,
        attention_pair_s=model.flops_per_attention_pair / (gpu.dense_flops * ATTENTION_EFFICIENCY),
        throttle_share=THROTTLE_SHARE,
    )
