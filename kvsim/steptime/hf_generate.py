"""Step times of Hugging Face's `generate()` on a padded batch, estimated from the data sheet of a GPU.

With a dynamic cache, the host launches every kernel. Each step copies all keys and values to append one token: it reads
and writes them, and attention reads them again. With grouped-query attention, a further copy is made for each query
head: the keys and values are read once more, written once per query head, and read as often.

With a static cache, the step is compiled and copies nothing. Step times do not include compiling.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from kvsim.steptime import overheads
from kvsim.steptime.roofline import Roofline
from kvsim.steptime.work import streamed_bytes

if TYPE_CHECKING:
    from kvsim.hardware import Gpu
    from kvsim.models import Model


def generate_times(gpu: Gpu, model: Model, cache: Literal["dynamic", "static"] = "dynamic") -> Roofline:
    """Return the step times of `generate()` with `model` on `gpu`. Padding counts as context, because it is read."""
    static = cache == "static"
    bandwidth = streamed_bytes_per_s(gpu)
    num_kernels = model.num_layers * (overheads.KERNELS_PER_LAYER if static else overheads.HF_KERNELS_PER_LAYER)
    times = Roofline(
        label=f"uncalibrated roofline of {gpu.name} with {model.name}, Hugging Face {cache} cache",
        request_s=0.0,
        request_token_s=0.0,
        host_step_s=overheads.HOST_STEP_S,
        host_sequence_s=0.0,
        host_token_s=0.0,
        turnaround_step_s=0.0,
        turnaround_sequence_s=0.0,
        piecewise_launch_s=0.0,
        eager_launch_s=0.0,
        uncompiled_launch_s=0.0,
        new_shape_s=overheads.COMPILE_S if static else overheads.PLAN_S,
        new_kernel_s=overheads.LOAD_COMPILER_S if static else overheads.KERNEL_BUILD_S,
        max_captured_tokens=0,
        step_s=num_kernels * overheads.KERNEL_S,
        weights_s=streamed_bytes(model, model.num_parameters) / bandwidth,
        active_weights_s=streamed_bytes(model, model.num_active_parameters) / bandwidth,
        token_s=model.flops_per_token / (gpu.dense_flops * overheads.HF_ARITHMETIC_EFFICIENCY),
        logits_s=model.flops_per_logits / (gpu.dense_flops * overheads.HF_ARITHMETIC_EFFICIENCY),
        exposed_share=overheads.EXPOSED_SHARE,
        sequence_s=model.num_kv_layers * overheads.HF_ROW_LAYER_S[cache],
        context_token_s=model.kv_bytes_per_token / bandwidth,
        lone_share=0.0,
        full_seqs=gpu.num_processors / model.num_kv_heads,
        shared_saving=0.0,
        piecewise_s=0.0,
        attention_pair_s=model.flops_per_attention_pair / (gpu.dense_flops * overheads.ATTENTION_EFFICIENCY),
        throttle_share=0.0,  # kernels with gaps between them do not reach a card's power limit
    )
    if static:
        return times
    queries_per_key = model.num_attention_heads // model.num_kv_heads
    # Read, write, read by attention; with shared keys: two reads, and a write and a read for each query head.
    passes = 3 if queries_per_key == 1 else 3 + 2 * queries_per_key
    return replace(
        times,
        eager_launch_s=model.num_layers * overheads.HF_LAYER_S,
        masked_launch_s=model.num_layers * overheads.HF_MASK_LAYER_S,
        context_token_s=passes * model.kv_bytes_per_token / copy_bytes_per_s(gpu),
    )


def copy_bytes_per_s(gpu: Gpu) -> float:
    """Return the bytes per second at which a dynamic cache is copied, limited by the GPU's processors or its memory."""
    by_processors = overheads.HF_COPY_BYTES_PER_CYCLE * gpu.num_processors * gpu.boost_hz
    return min(by_processors, streamed_bytes_per_s(gpu))


def streamed_bytes_per_s(gpu: Gpu) -> float:
    """Return the bytes per second at which weights, keys and values are read.

    This is the peak bandwidth times a measured share. A GPU without a measurement takes the share of an H200.
    """
    return gpu.bandwidth_bytes_per_s * (gpu.streamed_share or overheads.MEMORY_EFFICIENCY)
