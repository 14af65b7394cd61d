"""Constants of the kernels of vLLM's steps, for step times from a machine card.

Unless a text names another source, they come from a profiler, or from the steps of vLLM 0.25.1 with seven shapes of
models on an H100 and on H200s.
"""

SMALL_KERNEL = 1.75
"""Time of a norm or an activation with few tokens (1.5 to 2.1 us), as a multiple of a card's `kernel_s`."""
ELEMENT_SHARE = 0.93
"""Share of the read bandwidth that norms and activations of many tokens reach: 0.89 on an H200, 0.98 on an H100."""
SPLIT_S = 3e-6
"""Additional seconds of the attention in one layer, which a card's launches of attention alone do not have.

Flash decoding divides the keys among processors, and a second kernel adds up the partial results. That kernel takes 2.6
us for 32 sequences with 32 heads of 128 elements, in an engine's captured graph.
"""
SPLIT_ELEMENT_S = 6e-12
"""Additional seconds of the second kernel of flash decoding per element of the queries; see `SPLIT_S`.

The kernel takes 14.5 us for 480 sequences with 32 heads of 128 elements.
"""
FP8_READ_RATIO = 1.53
"""Time to read a byte of an fp8 cache, relative to a byte of a bf16 cache.

All constants for fp8 caches were measured with FlashAttention 3, called as in vLLM's engine, with three kinds of heads
of 128 elements on an H200.
"""
FP8_SEQUENCE_RATIO = 1.7
"""Time of attention per sequence without cache reads, with an fp8 cache relative to a bf16 cache.

Measured: 1.7 to 2.0.
"""
FP8_PAIR_RATIO = 1.07
"""Time per pair of a query in a prompt and a key, with an fp8 cache relative to a bf16 cache.

Measured: 1.04 to 1.10.
"""
FP8_MIXED_SHARE = 0.28
"""Increase of `AttentionCost.mixed_share` with an fp8 cache. Measured: 0.22 to 0.33."""
FP8_QUERY_S = 3e-6
"""Seconds in which one layer converts its queries to fp8."""
PIECE_S = 10e-6
"""Seconds for which a GPU idles around the attention of one layer that runs between captured pieces of a step.

They were 5 to 15 us in the profiles of three models on an H200, which were fitted without a card.
"""
REDUCE_WAIT_S = 2e-6
"""Seconds for which GPUs wait for each other in an all-reduce."""
STEP_KERNELS = 100
"""Time of a step outside its layers (inputs, sampling, copies, gaps), in multiples of `Card.kernel_s`."""
SAMPLED_BYTES = 20
"""Number of bytes that sampling reads and writes per logit, to convert, perturb and compare it.

It takes 0.6 us for 128,256 logits on an H200.
"""
EXPERT_S = 24e-6
"""Seconds to start the experts of one layer.

The start took 20 us in 3,429 launches of 64 shapes that aiconfigurator-core 0.12.0 measured with vLLM 0.24.0 on an H100
and an H200. Another 4 us were added, because layers took 4 us longer in decodes of Qwen3-30B-A3B on an H200. Times
predicted with these constants for evenly spread tokens are 8 % off in the median launch, and 6 % in the median launch
of at most 128 tokens.
"""
EXPERT_READ_SHARE = 0.95
"""Share of the read bandwidth at which the weights of experts are read; see `EXPERT_S` for the source."""
EXPERT_ARITHMETIC_SHARE = 0.7
"""FLOP/s of experts, relative to the fastest large matrix product of the card; see `EXPERT_S` for the source."""
FOUR_BIT_SHARE = 0.75
"""Bytes per second at which quantized weights that are multiplied in bf16 are read, relative to bf16 weights.

Not measured.
"""

PLAIN_KERNELS = 11
"""Number of kernels in a plain attention layer: four products, attention, its second kernel, and five small ones."""
