"""Import vLLM and the modules that tests use with it, for a server of `forks`."""

from __future__ import annotations

from importlib import import_module


def load() -> None:
    """Import vLLM, kvsim's recorder, and the modules that serve workloads to vLLM's engine."""
    import_module("kvsim.conformance.vllm_driver")  # must be the first module that imports vLLM
    import_module("kvsim.capture.vllm")
    for name in ("configuration", "engine_process", "fake_model", "telling", "watching"):
        import_module(f"{__package__}.{name}")
