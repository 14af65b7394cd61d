"""The paged KV cache: the block pool, the prefix cache, and block tables of one or several KV-cache groups."""
