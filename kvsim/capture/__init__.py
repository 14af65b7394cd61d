"""Recorders of real engines: vLLM's scheduler, and `generate()` of transformers.

No other package imports vLLM, PyTorch or transformers, so kvsim can be used without them.
"""
