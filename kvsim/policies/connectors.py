"""KV connectors of vLLM, the scheduler's side: where KV comes from outside of the pool, and whose blocks wait for a
reader.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from kvsim.errors import UsageError
from kvsim.policies.releases import check_connectors

MOST_TRANSFERS = 1024


class Role(Enum):
    """The part of a server in the exchange of KV: vLLM's `kv_role`."""

    BOTH = "kv_both"
    PRODUCER = "kv_producer"
    CONSUMER = "kv_consumer"


class Remote(Enum):
    """The other server that has a part in a request."""

    NONE = "none"
    READS = "reads"
    """This server computes the prompt, and another one reads it: `do_remote_decode`."""
    HAS_PROMPT = "has prompt"
    """Another server has computed the prompt, and this one fetches it: `do_remote_prefill`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The exchange of KV of one request."""

    remote: Remote = Remote.NONE
    """The other server; of Nixl alone."""
    stored_tokens: int = 0
    """Leading tokens that the store holds; of stores alone."""
    is_async: bool = True
    """Whether a load takes place between steps; otherwise it is a part of the step that admits the request."""
    num_unknown: int = 0
    """Times that the store answers "ask again" before it knows."""
    is_kept: bool = False
    """Whether blocks stay at the end of the request until they are read."""
    bad: Sequence[int] = ()
    """Places, among the blocks of the first load, of those that fail to load."""
    rank: int = 0
    """Place among requests that fail in one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLink:
    """The link over which one server fetches KV from others."""

    gb_per_s: float = 50.0
    """10^9 bytes a second on each GPU: by default an adapter of 400 Gb/s for each GPU, as in NVIDIA's DGX H100."""
    latency_s: float = 1e-3
    """Seconds that a load takes however small it is: an assumption."""
    num_transfers: int = 1
    """Loads at the same time, each over an equal share of the link."""

    def __post_init__(self) -> None:
        for name, is_right in (
            ("gb_per_s", 0 < self.gb_per_s < math.inf),
            ("latency_s", 0 <= self.latency_s < math.inf),
            ("num_transfers", 1 <= self.num_transfers <= MOST_TRANSFERS),
        ):
            if not is_right:
                raise UsageError(f"{name} of a link cannot be {getattr(self, name)!r}.")

    def seconds_of(self, num_bytes: int) -> float:
        """Return the seconds in which `num_bytes` cross one share of the link."""
        return num_bytes * self.num_transfers / (self.gb_per_s * 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """One server's connector."""

    role: Role = Role.BOTH
    is_store: bool = False
    """A store that holds prefixes of prompts; otherwise Nixl, which fetches from another server."""
    recomputes: bool = False
    """Tokens that fail to load are computed here (`kv_load_failure_policy` "recompute"); otherwise the request ends."""
    link: KvLink | None = None
    """The link whose clock ends loads; None where the caller says when they end."""
    backoff_tokens: int = 0
    """Tokens at the end of a prompt that are never fetched."""
    exchanges: Sequence[Exchange] = field(default=(), repr=False)
    """One for each request."""

    @property
    def produces(self) -> bool:
        """Tell whether another server may read from here."""
        return self.role is not Role.CONSUMER

    @property
    def consumes(self) -> bool:
        """Tell whether KV is written from outside into blocks of the pool."""
        return self.role is not Role.PRODUCER

    def check(self, release: str, num_groups: int) -> None:
        """Check that kvsim knows this connector in a release and for a model.

        Raises:
            UsageError: it does not.
        """
        check_connectors(release)
        if num_groups > 1:
            raise UsageError(
                f"kvsim knows KV connectors for models with one group of full attention, and this one has {num_groups} "
                "KV-cache groups."
            )
