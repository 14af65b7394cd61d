"""What vLLM's own engine leaves behind, for the tests of this room."""

from ..vllm_engine.recordings import live

__all__ = ["live"]
