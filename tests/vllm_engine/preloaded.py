"""What processes with vLLM's files on their path import, for forks of one that has."""

from __future__ import annotations

from importlib import import_module


def load() -> None:
    """Import vLLM and, for its engine, kvsim's recorder and what serves workloads."""
    import_module("kvsim.conformance.vllm_driver")  # first of all that imports vLLM
    import_module("kvsim.capture.vllm")
    for name in ("configuration", "engine_process", "fake_model", "telling", "watching"):
        import_module(f"{__package__}.{name}")
