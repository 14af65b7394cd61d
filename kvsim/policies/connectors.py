"""KV connectors of vLLM, as its scheduler uses them: loads of KV from outside, and blocks kept for another server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from kvsim.errors import UsageError
from kvsim.policies.releases import check_feature
from kvsim.setting_fields import check_settings, setting

if TYPE_CHECKING:
    from kvsim.policies.kinds import Paged

MOST_TRANSFERS = 1024
"""Limit for `KvLink.num_transfers`."""
STORE = "store"
"""Value of `kv_connector` in recordings of servers with a shared prefix store."""


class Role(Enum):
    """The role of a server in the exchange of KV: vLLM's `kv_role`."""

    BOTH = "kv_both"
    PRODUCER = "kv_producer"
    CONSUMER = "kv_consumer"


class Remote(Enum):
    """Part that another server has in serving a request."""

    NONE = "none"
    READS = "reads"
    """This server computes the prompt, and another server reads its KV: `do_remote_decode`."""
    HAS_PROMPT = "has prompt"
    """Another server has computed the prompt, and this server fetches its KV: `do_remote_prefill`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Ways in which one request gets KV from another server or a store, or leaves KV for another server."""

    remote: Remote = Remote.NONE
    """Part that another server has in serving the request, with Nixl; `Remote.NONE` with a store."""
    stored_tokens: int = 0
    """Number of leading tokens of the prompt that the store holds; 0 without a store."""
    is_async: bool = True
    """True if KV is loaded in the background, while other requests run. False: at the begin of the admitting step."""
    num_pending_lookups: int = 0
    """Number of lookups that the store answers with "ask again" before it answers with a number of tokens."""
    is_kept: bool = False
    """True if the blocks are kept after the end of the request, until another server has read them."""
    failed_blocks: Sequence[int] = ()
    """Indices of the blocks that fail to load. Block 0 is the first block that the request's first load writes."""
    fail_order: int = 0
    """Order among requests whose loads fail in the same step: the one with the smallest number ends first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLink:
    """The link over which one server fetches KV from others."""

    gb_per_s: float = setting(
        50.0,
        "Speed of a decode server's link for KV, in 10^9 bytes a second on each GPU.",
        "--kv-link-gb-per-s",
        above=0,
        below=math.inf,
    )
    """The default is the speed of one network adapter of 400 Gb/s for each GPU, as in NVIDIA's DGX H100."""
    latency_s: float = setting(
        1e-3,
        "Seconds that a transfer of KV takes in addition to those for its bytes.",
        "--kv-link-latency",
        at_least=0,
        below=math.inf,
    )
    """The default was assumed, not measured."""
    num_transfers: int = setting(
        1,
        "Number of transfers at once on a decode server's link, which share its speed equally.",
        "--kv-transfers",
        at_least=1,
        at_most=MOST_TRANSFERS,
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def seconds_of(self, num_bytes: int) -> float:
        """Return the seconds in which `num_bytes` on each GPU pass one of `num_transfers` equal shares of the link.

        `latency_s` is not included.
        """
        return num_bytes * self.num_transfers / (self.gb_per_s * 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """The KV connector of one server."""

    role: Role = Role.BOTH
    is_store: bool = False
    """True for a store of prefixes; False for Nixl, which fetches KV from another server."""
    recomputes: bool = False
    """True if this server computes tokens that fail to load (`kv_load_failure_policy`); False if the request fails."""
    link: KvLink | None = None
    """Link that determines how long loads take; None if the caller decides when each load ends."""
    backoff_tokens: int = 0
    """Number of tokens at the end of a prompt that this server always computes, even if their KV could be loaded."""
    exchanges: Sequence[Exchange] = field(default=(), repr=False)
    """Exchange of KV for each request, in the order of the workload; empty if all are `Exchange()`."""

    @property
    def produces(self) -> bool:
        """True if another server may read KV of this server."""
        return self.role is not Role.CONSUMER

    @property
    def consumes(self) -> bool:
        """True if this server writes KV from outside into blocks of its pool."""
        return self.role is not Role.PRODUCER

    def check(self, release: str, num_groups: int) -> None:
        """Raise a `UsageError` if kvsim does not simulate this connector in `release` with `num_groups` groups."""
        check_feature(release, "KV connectors")
        if num_groups > 1:
            raise UsageError(
                f"kvsim knows KV connectors for models with one group of full attention, and this one has {num_groups} "
                "KV-cache groups."
            )


def refuse_with_connector(policy: Paged, where: str) -> None:
    """Raise a `UsageError` if `policy` has settings that kvsim does not simulate with a KV connector.

    The error says "... is not modelled {where}".
    """
    for name, value in (
        ("--kv-offloading-size", policy.cache.kv_offloading_size),
        ("--swap-gib", policy.cache.swap_gib),
        ("--speculative-config", policy.scheduler.speculative_config),
    ):
        if value:
            raise UsageError(f"{name} is not modelled {where}; leave it out.")
