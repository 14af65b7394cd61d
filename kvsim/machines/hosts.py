"""Host speeds of the machines with recordings, relative to the machines of the fitted profiles.

Machines with the same GPU differ mainly in their hosts. The profiles were fitted on two machines with the fastest
hosts. For an unknown machine, the median host is assumed.

The costs of vLLM's offload follow from a machine's card: its link, and the launch time of its host.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from kvsim.steptime.card import Card

HOSTS: Mapping[str, float] = {
    "earlier": 0.96,
    "first": 0.99,
    "another": 1.19,
    "5b3fd3e7": 1.31,
    "fd476048": 1.31,
    "later": 1.34,
    "a350a717": 1.52,
    "d38ed9e7": 1.56,
}
"""Host times relative to the profiles' hosts, by machine as in recordings: the geometric mean over its models and
engines. `benchmarks/accuracy.py` prints them."""
_GIGA = 1e9
_LOAD_SHARE, _STORE_SHARE = 0.65, 0.73
"""Shares of a link's bandwidth that vLLM 0.25.1 reaches. It copies each layer of a block separately, for Llama-3-8B in
pieces of 64 KiB. In a recorded run on an H200 with a link of 55 GB/s, loads ran at 35.7 GB/s and stores at 40.5 GB/s.
"""
_HOST_LAUNCHES = {
    "copy_submit_s": 90.0,
    "copy_piece_s": 0.16,
    "offload_step_s": 20.0,
    "offload_sequence_s": 0.7,
    "offload_deferred_block_s": 0.7,
}
"""Host costs of the offload, in launches of one kernel. They were measured around every call of vLLM 0.25.1's
connector, in six runs on an H200 whose host launches a kernel in 6.1 us. The last one is the unexplained time of steps
that preempt: 3.4, 4.1 and 6.2 us per block in three runs, whose victims had 36, 199 and 35 blocks each."""


def middle_host(*, without: str | None = None) -> float:
    """Return the median host time relative to the profiles' hosts; one machine may be left out."""
    return median(pace for machine, pace in HOSTS.items() if machine != without)


def host_words() -> str:
    """Describe the median as a clause of a label."""
    span = f"{min(HOSTS.values()):.2f} to {max(HOSTS.values()):.2f}"
    return f"{middle_host():.2f} times the host time ({len(HOSTS)} machines: {span})"


def host_link(card: Card) -> dict[str, float]:
    """Return the speeds and host costs of copies to host memory, as settings of a paged cache; empty without a measured
    card."""
    if not card.measured:
        return {}
    launch_s = card.launch_s * card.factors.get("host", 1.0)
    return {
        "load_gb_per_s": _LOAD_SHARE * card.to_gpu_bytes_per_s / _GIGA,
        "store_gb_per_s": _STORE_SHARE * card.to_host_bytes_per_s / _GIGA,
        **{name: launches * launch_s for name, launches in _HOST_LAUNCHES.items()},
    }
