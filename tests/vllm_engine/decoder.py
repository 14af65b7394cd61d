"""What vLLM asks of a model before there is an engine for it: what it can do.

Imported by processes that have vLLM's files on their path (`engine_process`).
"""

from __future__ import annotations

from typing import Any

import torch
from vllm import ModelRegistry


class _Decoder(torch.nn.Module):
    """A decoder in what it can do, and in nothing else."""

    supports_pp = True

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        raise NotImplementedError

    def embed_input_ids(self, input_ids: Any) -> Any:
        raise NotImplementedError

    def forward(self, input_ids: Any, positions: Any, intermediate_tensors: Any = None) -> Any:
        raise NotImplementedError

    def compute_logits(self, hidden_states: Any) -> Any:
        raise NotImplementedError

    def make_empty_intermediate_tensors(self, batch_size: int, dtype: Any, device: Any) -> Any:
        raise NotImplementedError


def stand_in_for(architecture: str) -> None:
    """Put a decoder in the place of vLLM's model of this architecture.

    To see what that one can do, vLLM would start a process that imports all that it computes with.
    """
    ModelRegistry.register_model(architecture, type(architecture, (_Decoder,), {}))
