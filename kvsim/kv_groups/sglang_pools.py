"""Divide the layers of a model into pools of slots as SGLang 0.5.23 does: all in one, or windows in a second pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.models.layers import ChunkedLocal, SlidingWindow

if TYPE_CHECKING:
    from kvsim.models import Model

_WITH_SECOND_POOL = ("GptOssForCausalLM", "Gemma4ForCausalLM", "Llama4ForCausalLM")
"""Architectures whose layers with windows have a second pool, from `is_hybrid_swa_model` in SGLang's `model_config.py`.

In all other architectures, such as Gemma 2 and 3, every layer keeps every token.
"""


@dataclass(frozen=True, slots=True)
class SlotLayers:
    """Bytes of one token in the layers of each pool."""

    full_bytes: int
    """Bytes of one token in the first pool: in the full-attention layers, or in all layers without a second pool."""
    window_bytes: int = 0
    """Bytes of one token in the second pool: in the layers with windows; 0 if there is no second pool."""
    window_tokens: int = 0
    """Number of preceding tokens that a layer with a window reads; 0 if there is no second pool."""

    @classmethod
    def of(cls, model: Model) -> SlotLayers:
        """Return the layers of each pool of `model`."""
        windowed = [layer for layer in model.attention_layers if isinstance(layer, SlidingWindow | ChunkedLocal)]
        if model.architecture not in _WITH_SECOND_POOL or not windowed:
            return cls(model.kv_bytes_per_token)
        window_bytes = sum(map(model.layer_bytes_per_token, windowed))
        # A sliding window counts the new token itself; SGLang takes a chunk of attention for a window of that size.
        tokens = {each.window - isinstance(each, SlidingWindow) for each in windowed}
        return cls(model.kv_bytes_per_token - window_bytes, window_bytes, max(tokens))

    def num_slots(self, kv_bytes: int, swa_full_tokens_ratio: float) -> int:
        """Return the number of slots of the first pool in `kv_bytes`; the second pool has a share of this number."""
        return int(kv_bytes // (self.full_bytes + swa_full_tokens_ratio * self.window_bytes))
