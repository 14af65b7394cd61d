"""What the flags of host memory stand for: the settings of vLLM's native offload, over the link of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.hardware import Gpu

_SIZE = "kv_offloading_size"
_REST_ON_SIZE = (
    "kv_offloading_block_size",
    "kv_offloading_eviction",
    "kv_offloading_outputs",
    "kv_offloading_gb_per_s",
)


def offload_settings(flags: Mapping[str, Any], gpu: Gpu) -> dict[str, Any]:
    """The settings of the offload that the flags ask for; those that are not given keep their defaults.

    The link is as fast as told, as vLLM drives the one on the machine card, or as `PagedSettings` assumes.

    Raises:
        UsageError: a flag says nothing without `--kv-offloading-size`.
    """
    from kvsim.policies.settings import Eviction

    if not flags[_SIZE]:
        for flag in _REST_ON_SIZE:
            if flags[flag]:
                raise UsageError(
                    f"--{flag.replace('_', '-')} says nothing without --{_SIZE.replace('_', '-')}; give both."
                )
        return {}
    settings = _link(flags, gpu) | {_SIZE: flags[_SIZE], "kv_offloading_prompt_only": not flags[_REST_ON_SIZE[2]]}
    if flags["kv_offloading_block_size"] is not None:
        settings["kv_offloading_block_size"] = flags["kv_offloading_block_size"]
    if flags["kv_offloading_eviction"] is not None:
        settings["kv_offloading_eviction"] = Eviction(flags["kv_offloading_eviction"])
    return settings


def _link(flags: Mapping[str, Any], gpu: Gpu) -> dict[str, Any]:
    from kvsim.machines import card_named, card_of, host_link

    known, speed = host_link(card_named(flags["profile"]) or card_of(gpu)), flags["kv_offloading_gb_per_s"]
    return known | ({} if speed is None else {"load_gb_per_s": speed, "store_gb_per_s": speed})
