"""Record real engines. Only this room knows vLLM, PyTorch or transformers; each is imported in a module of its own."""
