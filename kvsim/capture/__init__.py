"""Record real engines: vLLM's scheduler, and `generate()` of transformers.

No other package imports vLLM, PyTorch or transformers, so that kvsim can be used without them.
"""
