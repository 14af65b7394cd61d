"""Data sheets of GPUs: memory size, bandwidth and peak FLOP/s, for `--gpu NAME` or from a file.

A GPU has two figures for its memory, and confusing the two changes the size of the KV cache by gigabytes. `memory_gb`
is printed on the box. `memory_bytes` is the total that the driver reports, without ECC and firmware; vLLM computes the
size of its cache from it. These totals come from PyTorch's out-of-memory messages, which are exact to 0.01 GiB, and
vary slightly with the driver.

This package does not depend on models, and has no measured speeds.
"""

from kvsim.hardware.find import find_gpu, find_gpus
from kvsim.hardware.gpu import GIB, GPUS, Gpu, gpu_template, read_gpu

__all__ = ["GIB", "GPUS", "Gpu", "find_gpu", "find_gpus", "gpu_template", "read_gpu"]
