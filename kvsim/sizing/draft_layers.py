"""Layers in the cache, and weights, of what drafts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.models.layers import Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """Layers in the cache, and weights, of what drafts."""

    layers: tuple[Layer, ...]
    """Caches of its layers, each once."""
    weight_bytes: int
    """Bytes of its weights on each GPU."""
    why: str
    """Source of the weights, in words."""
