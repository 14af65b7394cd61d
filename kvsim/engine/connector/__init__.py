"""KV connectors: KV that is loaded from a store, or from servers that compute prompts for others."""
