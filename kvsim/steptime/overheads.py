"""Plain constants for where nothing was fitted, read off runs on one H200 and its host; shares and seconds.

On another machine they are a guide to the order of magnitude.
"""

MEMORY_EFFICIENCY = 0.9
"""Share of the peak bandwidth that streaming weights, keys and values reaches."""
ARITHMETIC_EFFICIENCY = 0.65
"""Share of the dense peak that a long prefill reaches: 0.8 in its matrix products, less what stands between them."""
ATTENTION_EFFICIENCY = 0.65
"""Share of the dense peak that attention kernels reach in a long prefill."""

KERNELS_PER_LAYER = 11
"""Kernels of a fused layer: norms (2), products (4), rotation, activation, cache write, attention, its reduction."""
KERNEL_S = 4e-6
"""Start and drain of one kernel, during which memory idles even inside a captured graph."""
SEQUENCE_LAYER_S = 0.3e-6
"""Seconds that one more sequence adds to a layer's decode attention, beside the bytes it reads."""

MAX_CAPTURED_TOKENS = 512
"""Largest step that vLLM captures as a graph by default."""
REQUEST_S = 0.1e-3
"""Host time to take in one request: check it, hash its blocks, put it into the queue."""
REQUEST_TOKEN_S = 0.14e-6
"""Host time that one more token of its prompt adds to taking in a request."""
HOST_STEP_S = 0.5e-3
"""Host time of a step whatever it holds: schedule, prepare inputs, sample."""
HOST_SEQUENCE_S = 10e-6
"""Host time that one more sequence adds to a step."""
NEW_SEQUENCE_S = 50e-6
"""Host time to take a sequence into the batch: its tokens, its blocks and how it is sampled are copied over."""
HOST_TOKEN_S = 1e-6
"""Host time that one more prompt token adds: its id, position and slot are written and copied."""
TURNAROUND_STEP_S = 80e-6
"""Host time between an output and the next decision: handing over the output, looking for new requests."""
TURNAROUND_SEQUENCE_S = 2.4e-6
"""Host time that one more sequence adds between an output and the next decision."""
EXPOSED_SHARE = 0.2
"""Streaming and arithmetic overlap well, but not perfectly, where they take equally long."""
LONE_SHARE = 0.5
"""Decode attention reads at two thirds of the full rate while there are fewer heads to read for than processors."""
SHARED_SAVING = 0.4
"""Share of shared keys and values that the GPU's cache still has when a second sequence of the step reads them."""
THROTTLE_SHARE = 0.1
"""Dense arithmetic draws more power than a card may for long: its clock gives way by so much."""
PIECEWISE_S = 0.3e-3
"""GPU time lost between the pieces of a captured step with prompt tokens."""
PIECEWISE_LAYER_S = 0.12e-3
"""Host time to launch a layer whose attention stands between captured pieces."""
EAGER_LAYER_S = 0.35e-3
"""Host time to launch a layer kernel by kernel."""

HF_LAYER_S = 0.5e-3
"""Host time to launch a layer of Hugging Face's unfused modules."""
HF_MASK_LAYER_S = 0.08e-3
"""Host time that a mask adds to launching a layer: attention then wants it in another form, and keys and values once
per query head.
"""
PLAN_S = 31e-3
"""Host time that cuDNN takes to plan attention for a batch of a size and length that the process has not seen."""
KERNEL_BUILD_S = 0.4
"""Host time that a plan takes where it needs a kernel that the process has not built yet."""
LOAD_COMPILER_S = 2.0
"""Host time to load the compiler of static caches into a process."""
COMPILE_S = 30.0
"""Host time to compile the decode step of a static cache."""
HF_KERNELS_PER_LAYER = 30
"""Kernels of such a layer, of norms, rotations and copies left unfused."""
HF_ARITHMETIC_EFFICIENCY = 0.4
"""Share of the dense peak in a prefill with unfused kernels in between."""
HF_COPY_BYTES_PER_CYCLE = 8.26
"""Bytes that a processor moves in a cycle in strided copies of keys and values, where the memory does not limit them:
those of an H200 reach 0.45 of its bandwidth so.
"""
HF_ROW_LAYER_S = {"dynamic": 2.4e-6, "static": 1.6e-6}
"""Seconds that one more row of the batch adds to a layer's masked attention, which starts every query head of its own.
"""
