"""Compute the GPU memory of Hugging Face's `generate()` from shapes alone, through PyTorch's allocator."""

from kvsim.hf_memory.generate import GenerateMemory, generate_memory
from kvsim.hf_memory.recorded_batches import assumptions_of, batches_of, earlier_batches, memory_of
from kvsim.steptime.kernels import Batch

__all__ = ["Batch", "GenerateMemory", "assumptions_of", "batches_of", "earlier_batches", "generate_memory", "memory_of"]
