"""Initial values for a fit of vLLM's step times: from a GPU's data sheet, with constants for the host.

No coefficient that is fitted may be zero, because a fit multiplies each by a factor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.steptime import Roofline, overheads
from kvsim.steptime.hf_generate import streamed_bytes_per_s
from kvsim.steptime.work import streamed_bytes

if TYPE_CHECKING:
    from kvsim.hardware import Gpu
    from kvsim.models import Model


def vllm_prior(gpu: Gpu, model: Model) -> Roofline:
    """Return the initial step times for a fit of vLLM with `model` on `gpu`."""
    bandwidth = streamed_bytes_per_s(gpu)
    return Roofline(
        label=f"uncalibrated roofline of {gpu.name} with {model.name}",
        request_s=overheads.REQUEST_S,
        request_token_s=overheads.REQUEST_TOKEN_S,
        host_step_s=overheads.HOST_STEP_S,
        host_sequence_s=overheads.HOST_SEQUENCE_S,
        host_token_s=overheads.HOST_TOKEN_S,
        new_sequence_s=overheads.NEW_SEQUENCE_S,
        turnaround_step_s=overheads.TURNAROUND_STEP_S,
        turnaround_sequence_s=overheads.TURNAROUND_SEQUENCE_S,
        exposed_share=overheads.EXPOSED_SHARE,
        piecewise_launch_s=model.num_layers * overheads.PIECEWISE_LAYER_S,
        eager_launch_s=model.num_layers * overheads.EAGER_LAYER_S,
        uncompiled_launch_s=model.num_layers * overheads.EAGER_LAYER_S,
        new_shape_s=0.0,
        new_kernel_s=0.0,
        max_captured_tokens=overheads.MAX_CAPTURED_TOKENS,
        step_s=model.num_layers * overheads.KERNELS_PER_LAYER * overheads.KERNEL_S,
        weights_s=streamed_bytes(model, model.num_parameters) / bandwidth,
        active_weights_s=streamed_bytes(model, model.num_active_parameters) / bandwidth,
        token_s=model.flops_per_token / (gpu.dense_flops * overheads.ARITHMETIC_EFFICIENCY),
        logits_s=model.flops_per_logits / (gpu.dense_flops * overheads.ARITHMETIC_EFFICIENCY),
        sequence_s=model.num_kv_layers * overheads.SEQUENCE_LAYER_S,
        context_token_s=model.kv_bytes_per_token / bandwidth,
        lone_share=overheads.LONE_SHARE,
        full_seqs=gpu.num_processors / model.num_kv_heads,
        shared_saving=overheads.SHARED_SAVING,
        piecewise_s=overheads.PIECEWISE_S,
        attention_pair_s=model.flops_per_attention_pair / (gpu.dense_flops * overheads.ATTENTION_EFFICIENCY),
        throttle_share=overheads.THROTTLE_SHARE,
    )
