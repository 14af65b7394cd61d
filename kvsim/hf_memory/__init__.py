"""What Hugging Face's `generate()` asks of the GPU's memory, from shapes alone, through PyTorch's allocator."""

from kvsim.hf_memory.generate import Batch, GenerateMemory, generate_memory
from kvsim.hf_memory.recorded import batches_of, memory_of

__all__ = ["Batch", "GenerateMemory", "batches_of", "generate_memory", "memory_of"]
