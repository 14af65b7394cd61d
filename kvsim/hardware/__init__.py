"""GPU facts: memory, bandwidth and arithmetic of the cards that kvsim knows by name.

A card's memory has two figures; to confuse them changes a KV cache by gigabytes. `memory_gb` is printed on the box.
`memory_bytes` is the total that the driver reports, without ECC and firmware; vLLM measures the same. It comes from the
totals in PyTorch's out-of-memory messages, exact to 0.01 GiB; it varies slightly with the driver.

This module knows neither models nor speeds on a card.
"""

from kvsim.hardware.find import find_gpu, find_gpus
from kvsim.hardware.gpu import GIB, Gpu
from kvsim.hardware.gpu_file import GPUS, gpu_template, read_gpu

__all__ = ["GIB", "GPUS", "Gpu", "find_gpu", "find_gpus", "gpu_template", "read_gpu"]
