"""How fast vLLM's offload drives the link between a GPU and its host."""

from __future__ import annotations

from kvsim.steptime.card import Card

_GIGA = 1e9
_LOAD_SHARE, _STORE_SHARE = 0.65, 0.73
"""What vLLM 0.25.1 reaches of a link: it copies each layer of a block by itself, for Llama-3-8B in pieces of 64 KiB. In
a recorded run on an H200, whose link carries 55 GB/s, loads ran at 35.7 GB/s and stores at 40.5 GB/s.
"""


def host_link(card: Card) -> dict[str, float]:
    """The speeds of copies as settings of a paged cache, on the machine of a card that was measured; else nothing."""
    if not card.measured:
        return {}
    return {
        "load_gb_per_s": _LOAD_SHARE * card.to_gpu_bytes_per_s / _GIGA,
        "store_gb_per_s": _STORE_SHARE * card.to_host_bytes_per_s / _GIGA,
    }
