"""Memory that the draft layers of speculative decoding take from the pool.

This module is separate so that a budget needs no settings of speculative decoding: `kvsim.policies.drafter` makes the
record from these settings, and `kvsim.sizing.budget` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.models.layers import Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """Layers that draft tokens: an additional head of the model, or a draft model."""

    layers: tuple[Layer, ...]
    """Draft layers that need a KV cache."""
    weight_bytes: int
    """Bytes of the weights on each GPU."""
    why: str
    """Explanation of `weight_bytes`."""
