"""Size of the pool of KV blocks: a GPU's memory, term by term."""
