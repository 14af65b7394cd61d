"""Constants for step times without a fit: shares, and seconds that were measured on one H200 and its host.

They are the start of a fit, and the coefficients of `generate()` by a data sheet. On other machines they give only the
order of magnitude.
"""

MEMORY_EFFICIENCY = 0.9
"""Share of the peak bandwidth when reading weights, keys and values."""
ARITHMETIC_EFFICIENCY = 0.65
"""Share of the dense peak in a long prefill: 0.8 in its matrix products, minus the gaps between them."""
ATTENTION_EFFICIENCY = 0.65
"""Share of the dense peak that attention kernels reach in a long prefill."""

KERNELS_PER_LAYER = 11
"""Kernels of a fused layer: norms (2), products (4), rotation, activation, cache write, attention, its reduction."""
KERNEL_S = 4e-6
"""Seconds to start and drain one kernel; memory idles meanwhile, even inside a captured graph."""
SEQUENCE_LAYER_S = 0.3e-6
"""Seconds of a layer's decode attention per sequence, without the bytes it reads."""

MAX_CAPTURED_TOKENS = 512
"""Largest step that vLLM captures as a graph by default."""
GPT_OSS_CAPTURED_TOKENS = 1024
"""The same for gpt-oss, whose configuration in vLLM raises it, whatever the largest batch is."""
REQUEST_S = 0.1e-3
"""Host time to receive one request: check it, hash its blocks, queue it."""
REQUEST_TOKEN_S = 0.14e-6
"""Additional host time per prompt token to receive a request."""
HOST_STEP_S = 0.5e-3
"""Constant host time of a step: schedule, prepare inputs, sample."""
HOST_SEQUENCE_S = 10e-6
"""Host time of a step per sequence."""
NEW_SEQUENCE_S = 50e-6
"""Host time to add a sequence to the batch: its tokens, blocks and sampling parameters are copied."""
HOST_TOKEN_S = 1e-6
"""Host time per prompt token: its id, position and slot are written and copied."""
TURNAROUND_STEP_S = 80e-6
"""Host time between an output and the next decision: return the output, receive new requests."""
TURNAROUND_SEQUENCE_S = 2.4e-6
"""Host time per sequence between an output and the next decision."""
EXPOSED_SHARE = 0.2
"""Share of the shorter of two times, reading and arithmetic, that adds to the longer one if both are equal."""
LONE_SHARE = 0.5
"""Additional share of reading time of decode attention when there are fewer heads than processors."""
SHARED_SAVING = 0.4
"""Share of shared keys and values that are still in the GPU's cache when a second sequence of the step reads them."""
THROTTLE_SHARE = 0.1
"""Additional time of long dense arithmetic, as a share: it exceeds the power limit, and the GPU lowers its clock."""
PIECEWISE_S = 0.3e-3
"""GPU time lost between the pieces of a captured step with prompt tokens."""
PIECEWISE_LAYER_S = 0.12e-3
"""Host time to launch a layer with attention between captured pieces."""
EAGER_LAYER_S = 0.35e-3
"""Host time to launch a layer kernel by kernel."""

HF_LAYER_S = 0.5e-3
"""Host time to launch a layer of Hugging Face's unfused modules."""
HF_MASK_LAYER_S = 0.08e-3
"""Additional host time of a layer with a mask, which is copied, as are keys and values for each query head."""
PLAN_S = 31e-3
"""Host time of cuDNN's plan for attention on a batch size and length that is new to the process."""
KERNEL_BUILD_S = 0.4
"""Host time of a plan that needs a kernel which the process has not built yet."""
LOAD_COMPILER_S = 2.0
"""Host time to load the compiler of static caches into a process."""
COMPILE_S = 30.0
"""Host time to compile the decode step of a static cache."""
HF_KERNELS_PER_LAYER = 30
"""Number of kernels of a layer with unfused norms, rotations and copies."""
HF_ARITHMETIC_EFFICIENCY = 0.4
"""Share of the dense peak in a prefill with unfused kernels between products."""
HF_COPY_BYTES_PER_CYCLE = 8.26
"""Bytes per cycle and processor of strided copies of keys and values; an H200's reach 0.45 of its bandwidth."""
HF_ROW_LAYER_S = {"dynamic": 2.4e-6, "static": 1.6e-6}
"""Seconds of a layer's masked attention per row: it starts a kernel for every query head."""
