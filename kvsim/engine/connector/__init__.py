"""KV that comes from outside: a store, or servers that compute prompts for others."""
