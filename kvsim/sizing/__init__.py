"""Size of the pool of KV blocks: the GPU's memory minus everything else that the engine keeps there."""
