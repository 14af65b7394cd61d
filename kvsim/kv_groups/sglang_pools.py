"""Divide the layers of a model into pools of slots, as SGLang 0.5.23 does.

There is one pool or, in some architectures, a second one for the layers with windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.models.layers import ChunkedLocal, SlidingWindow

if TYPE_CHECKING:
    from kvsim.models import Model

_WITH_SECOND_POOL = ("GptOssForCausalLM", "Gemma4ForCausalLM", "Llama4ForCausalLM")
"""Architectures whose layers with windows have a pool of their own (`is_hybrid_swa_model` in SGLang's
`model_config.py`).

In models of other architectures, such as Gemma 2 and 3, every layer keeps every token.
"""


@dataclass(frozen=True, slots=True)
class PoolBytes:
    """Number of bytes on one GPU that one token takes in each of SGLang's pools of slots."""

    full_bytes: int
    """Bytes of one token in the first pool: in the layers without a window, or in all without a second pool."""
    window_bytes: int = 0
    """Bytes of one token in the second pool, for the layers with windows; 0 if there is no second pool."""
    window_tokens: int = 0
    """Tokens of the largest window in the second pool: without the new token, or of a chunk; 0 without the pool."""

    @classmethod
    def of(cls, model: Model) -> PoolBytes:
        """Return the bytes of one token of `model`."""
        windowed = [layer for layer in model.attention_layers if isinstance(layer, SlidingWindow | ChunkedLocal)]
        if model.architecture not in _WITH_SECOND_POOL or not windowed:
            return cls(model.kv_bytes_per_token)
        window_bytes = sum(map(model.layer_bytes_per_token, windowed))
        # A sliding window counts the new token itself; SGLang takes a chunk of attention for a window of that size.
        tokens = {each.window - isinstance(each, SlidingWindow) for each in windowed}
        return cls(model.kv_bytes_per_token - window_bytes, window_bytes, max(tokens))

    def num_slots(self, kv_bytes: int, swa_full_tokens_ratio: float) -> int:
        """Return the number of slots in the first pool, rounded down, if both pools together take `kv_bytes` bytes. The
        second pool has `swa_full_tokens_ratio` times as many slots.
        """
        return int(kv_bytes // (self.full_bytes + swa_full_tokens_ratio * self.window_bytes))
