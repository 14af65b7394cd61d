"""Size of the pool of KV blocks: the GPU's memory minus all other memory that the engine uses."""
