"""GPU facts: memory, bandwidth and arithmetic of the cards that kvsim knows by name.

Two figures for a card's memory are in use, and mixing them up moves a KV cache by gigabytes: `memory_gb` is printed on
the box; `memory_bytes` is what the driver hands to a program, less ECC and firmware, and what vLLM measures. The latter
comes from the totals that PyTorch prints when it runs out of memory, good to 0.01 GiB; it moves a little with the
driver.

This module knows nothing of models, nor of how fast anything runs on a card.
"""

from kvsim.hardware.find import find_gpu, find_gpus, read_gpu
from kvsim.hardware.gpu import GIB, Gpu
from kvsim.hardware.listed import GPUS

__all__ = ["GIB", "GPUS", "Gpu", "find_gpu", "find_gpus", "read_gpu"]
