"""Record real engines. The only room that knows vLLM, PyTorch or transformers; each is imported in its own module."""
