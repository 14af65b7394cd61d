"""Constants for step times without a fit: shares of peak rates, and times measured on one H200 and its host.

A fit begins with these constants. Without a fit, they are the coefficients of `generate()`. On other machines, they
give only the order of magnitude.
"""

MEMORY_EFFICIENCY = 0.9
"""Share of the peak bandwidth at which weights, keys and values are read."""
ARITHMETIC_EFFICIENCY = 0.65
"""Share of the dense peak FLOP/s in a long prefill. Matrix products reach 0.8, but there are gaps between them."""
ATTENTION_EFFICIENCY = 0.65
"""Share of the dense peak FLOP/s that attention kernels reach in a long prefill."""

KERNELS_PER_LAYER = 11
"""Number of kernels in a fused layer.

They are two norms, four products, rotation, activation, cache write, and two kernels of attention.
"""
KERNEL_S = 4e-6
"""Seconds to start and end one kernel, in which the memory idles, even inside a captured graph."""
SEQUENCE_LAYER_S = 0.3e-6
"""Seconds per sequence of decode attention in one layer, in addition to reading keys and values."""

MAX_CAPTURED_TOKENS = 512
"""Number of tokens in the largest step that vLLM captures as a graph by default."""
GPT_OSS_CAPTURED_TOKENS = 1024
"""Number of tokens in the largest captured step of gpt-oss, for which vLLM raises the default."""
REQUEST_S = 0.1e-3
"""Seconds in which the host receives one request: it checks the request, hashes its blocks and queues it."""
REQUEST_TOKEN_S = 0.14e-6
"""Seconds per prompt token in which the host receives a request."""
HOST_STEP_S = 0.5e-3
"""Seconds of the host per step: schedule, prepare inputs, sample."""
HOST_SEQUENCE_S = 10e-6
"""Seconds of the host per sequence of a step."""
NEW_SEQUENCE_S = 50e-6
"""Seconds in which the host adds a sequence to the batch: it copies tokens, blocks and sampling parameters."""
HOST_TOKEN_S = 1e-6
"""Seconds of the host per prompt token of a step: it writes and copies the token's id, position and slot."""
TURNAROUND_STEP_S = 80e-6
"""Seconds of the host per step from its output to the next scheduling: it returns the output and receives requests."""
TURNAROUND_SEQUENCE_S = 2.4e-6
"""Seconds of the host per sequence from an output to the next scheduling."""
EXPOSED_SHARE = 0.2
"""Part of the shorter of two overlapping times (reading, arithmetic) that is added to the longer one.

This holds if both times are equal. Less is added the more they differ.
"""
LONE_SHARE = 0.5
"""Additional reading time of decode attention with at most one KV head per processor, relative to many heads."""
SHARED_SAVING = 0.4
"""Share of the repeated reads of shared keys and values that takes no time, because the GPU's cache serves them."""
THROTTLE_SHARE = 0.1
"""Additional time of arithmetic on a GPU whose clock is lowered, relative to the usual time.

Long dense arithmetic exceeds the power limit, so the GPU lowers its clock.
"""
PIECEWISE_S = 0.3e-3
"""Seconds that the GPU loses between the pieces of a captured step with prompt tokens."""
PIECEWISE_LAYER_S = 0.12e-3
"""Seconds in which the host launches one layer of a captured step with prompt tokens.

Attention runs between the captured pieces.
"""
EAGER_LAYER_S = 0.35e-3
"""Seconds in which the host launches one layer kernel by kernel."""

HF_LAYER_S = 0.5e-3
"""Seconds in which the host launches one layer of Hugging Face's unfused modules."""
HF_MASK_LAYER_S = 0.08e-3
"""Additional seconds of the host for one layer with a mask.

The mask is copied, and so are keys and values for each query head.
"""
PLAN_S = 31e-3
"""Seconds in which the host makes cuDNN's attention plan for a new batch size and length."""
KERNEL_BUILD_S = 0.4
"""Seconds in which the host builds a kernel for a plan, if the process has not built it yet; in addition to `PLAN_S`.
"""
LOAD_COMPILER_S = 2.0
"""Seconds in which the host loads the compiler of static caches into a process."""
COMPILE_S = 30.0
"""Seconds in which the host compiles the decode step of a static cache."""
HF_KERNELS_PER_LAYER = 30
"""Number of kernels in a layer with unfused norms, rotations and copies."""
HF_ARITHMETIC_EFFICIENCY = 0.4
"""Share of the dense peak FLOP/s in a prefill with unfused kernels between products."""
HF_COPY_BYTES_PER_CYCLE = 8.26
"""Bytes per cycle and streaming multiprocessor in strided copies of keys and values.

On an H200, this is 0.45 of the peak bandwidth.
"""
HF_ROW_LAYER_S = {"dynamic": 2.4e-6, "static": 1.6e-6}
"""Seconds of attention with a mask in one layer per row, by kind of cache."""
