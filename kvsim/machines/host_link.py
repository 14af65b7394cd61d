"""How fast vLLM's offload drives the link between a GPU and its host."""

from __future__ import annotations

from kvsim.steptime.card import Card

_GIGA = 1e9
_LOAD_SHARE, _STORE_SHARE = 0.65, 0.73
"""Shares of a link that vLLM 0.25.1 reaches: it copies each layer of a block by itself, for Llama-3-8B in pieces of 64
KiB. In a recorded run on an H200, whose link carries 55 GB/s, loads ran at 35.7 GB/s and stores at 40.5 GB/s.
"""


_HOST_LAUNCHES = {
    "copy_submit_s": 90.0,
    "copy_piece_s": 0.16,
    "offload_step_s": 20.0,
    "offload_sequence_s": 0.7,
    "offload_deferred_block_s": 0.7,
}
"""Costs of the offload for the host, in launches of one kernel: read off the clock around every call of vLLM 0.25.1's
connector, in six runs on an H200 whose host launches a kernel in 6.1 us. The last was found in what steps that preempt
take longer than their work explains: 3.4, 4.1 and 6.2 us a block in three runs, whose victims had 36, 199 and 35 each.
"""


def host_link(card: Card) -> dict[str, float]:
    """The speeds of copies, and what they cost the host, as settings of a paged cache on the machine of a card that was
    measured; else nothing.
    """
    if not card.measured:
        return {}
    launch_s = card.launch_s * card.factors.get("host", 1.0)
    return {
        "load_gb_per_s": _LOAD_SHARE * card.to_gpu_bytes_per_s / _GIGA,
        "store_gb_per_s": _STORE_SHARE * card.to_host_bytes_per_s / _GIGA,
        **{name: launches * launch_s for name, launches in _HOST_LAUNCHES.items()},
    }
