"""A second tier of the KV cache, in host memory, as in vLLM 0.25.1's native offload."""
