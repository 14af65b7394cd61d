"""Speeds of the hosts of recorded machines, relative to the hosts with which the profiles were fitted.

Machines with the same GPU differ mainly in their hosts. The profiles were fitted on the two machines with the fastest
hosts. An unknown machine is assumed to have the median host.

The costs of vLLM's KV offload follow from a machine card: from the speed of its link and the launch time of its host.
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
"""Host times relative to those in the profiles, by the name of the machine in recordings.

Each value is the geometric mean over the models and engines recorded on the machine. `benchmarks/accuracy.py` prints
them.
"""
_GIGA = 1e9
_LOAD_SHARE, _STORE_SHARE = 0.65, 0.73
"""Shares of the link's bandwidth that vLLM 0.25.1 reaches when it loads KV from the host and when it stores KV there.

vLLM copies each layer of a block separately, for Llama-3-8B in pieces of 64 KiB. In a recorded run on an H200 with a
link of 55 GB/s, loads ran at 35.7 GB/s and stores at 40.5 GB/s.
"""
_HOST_LAUNCHES = {
    "copy_submit_s": 90.0,
    "copy_piece_s": 0.16,
    "offload_step_s": 20.0,
    "offload_sequence_s": 0.7,
    "offload_deferred_block_s": 0.7,
}
"""Host times of the KV offload, in multiples of `Card.launch_s`.

They were measured around every call of vLLM 0.25.1's connector, in six runs on an H200 whose host launches a kernel in
6.1 us. `offload_deferred_block_s` is the time per block whose release waits for a copy. It is the otherwise unexplained
time of steps with preemptions: 3.4, 4.1 and 6.2 us per block in three runs.
"""


def middle_host(*, without: str | None = None) -> float:
    """Return the median of `HOSTS`, without the machine `without` if it is not None."""
    return median(pace for machine, pace in HOSTS.items() if machine != without)


def host_words() -> str:
    """Describe the assumed host in one clause: the median, the number of machines, and the range."""
    span = f"{min(HOSTS.values()):.2f} to {max(HOSTS.values()):.2f}"
    return f"{middle_host():.2f} times the host time ({len(HOSTS)} machines: {span})"


def host_link(card: Card) -> dict[str, float]:
    """Return speeds and host times of copies to and from host memory, by field of `PagedSettings`.

    The result is empty if the card was not measured. Then the defaults of `PagedSettings` apply.
    """
    if not card.measured:
        return {}
    launch_s = card.launch_s * card.factors.get("host", 1.0)
    return {
        "load_gb_per_s": _LOAD_SHARE * card.to_gpu_bytes_per_s / _GIGA,
        "store_gb_per_s": _STORE_SHARE * card.to_host_bytes_per_s / _GIGA,
        **{name: launches * launch_s for name, launches in _HOST_LAUNCHES.items()},
    }
