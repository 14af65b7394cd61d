"""The paged KV cache: block ids, the prefix cache, and block tables of several groups of layers."""
