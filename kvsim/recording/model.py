"""A recording in memory: its provenance and its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from kvsim.errors import RecordingError
from kvsim.files import identity
from kvsim.kv_groups.group import KVCacheGroup, KVCacheLayout
from kvsim.recording.tables import Copies, IntArray, Memory, Requests, Schedule, Steps

FORMAT = identity.FORMAT
VERSION = 1
SOURCES = ("vllm", "hf", "simulation")
MAX_UNITS = 1 << 25
"""Units that a pool may have: more than any server's memory makes, and as many as can be shown."""
MAX_POOL_BYTES = 1 << 45
"""Bytes that a pool may have: more than the memory of a hundred GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The memory that was shared out, in units of `unit_slots` slots."""

    unit_tokens: int
    """Tokens per unit: the block size of a paged cache, 1 where allocation has no granularity.

    With several KV-cache groups, tokens at which all of them have a block boundary.
    """
    num_units: int | None
    """Units in the pool; None where the engine had no pool, only a growing cache."""
    first_unit: int = 0
    """Address of the first unit: 1 for vLLM, whose block 0 is never handed out."""
    bytes_per_unit: int
    groups: tuple[KVCacheGroup, ...] = ()
    """The KV-cache groups that share the units; empty where one group of full attention holds all layers."""

    @property
    def units_in_words(self) -> str:
        """What the units are: blocks of so many tokens, or of so many bytes for tables of several groups, or slots."""
        if self.groups:
            tables = f"{len(self.groups)} tables" if len(self.groups) > 1 else "one table"
            return f"blocks of {self.bytes_per_unit / 2**20:.2f} MiB for {tables} a sequence"
        return "slots" if self.unit_tokens == 1 else f"blocks of {self.unit_tokens} tokens"

    @property
    def layout(self) -> KVCacheLayout | None:
        """How the groups cut the units up; None where one group of full attention holds all layers."""
        if not self.groups:
            return None
        return KVCacheLayout(
            groups=self.groups,
            bytes_per_block=self.bytes_per_unit,
            scheduler_block_size=self.unit_tokens,
            hash_block_size=self.unit_tokens,
        )

    @property
    def unit_slots(self) -> int:
        """Slots of one unit: its tokens, or its bytes where layers of several kinds share the pool."""
        layout = self.layout
        return self.unit_tokens if layout is None else layout.unit_slots

    @property
    def bytes_per_slot(self) -> float:
        """Bytes of one slot."""
        return self.bytes_per_unit / self.unit_slots

    @property
    def capacity_slots(self) -> int | None:
        """Slots in the pool."""
        return None if self.num_units is None else self.num_units * self.unit_slots


HASH_TOKENS = "prompt_hash_tokens"
"""Key in `meta.json`: tokens that a prompt hash stands for, where neither the pool nor the engine says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """Where a recording comes from. The mappings are shown to people as they are; their keys are in the design."""

    source: str
    engine: Mapping[str, Any]
    gpu: str
    model: Mapping[str, Any]
    policy: Mapping[str, Any]
    pool: Pool
    initial_free: IntArray | None = None
    """Free unit ids in queue order when the recording began; None means ascending order."""
    initial_cached: IntArray | None = None
    """Ids of the free units that kept a prefix when a recording of an engine at work began; None means none."""
    initial_computed: IntArray | None = None
    """The most tokens that each of the first requests, which were there then, had ever had computed: a preemption may
    have taken some of them, though their outputs are known; None means that none was there.
    """
    command: str = ""
    created: str = ""
    notes: str = ""
    extra: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Whatever else stands in `meta.json`; kept when a recording is written again."""

    @property
    def policy_name(self) -> str:
        """`paged`, `contiguous` or `static`: how memory is shared out, and what a reader has to know."""
        return str(self.policy.get("name", "paged"))

    @property
    def rules_name(self) -> str:
        """What people call the policy: the name of one that a user wrote, or else that of the built-in one."""
        return str(self.policy.get("rules", self.policy_name))

    @property
    def prefix_caching(self) -> bool:
        """Whether released units may keep a prefix for others to hit."""
        return bool(self.policy.get("enable_prefix_caching", self.engine.get("enable_prefix_caching", False)))

    @property
    def hash_block_size(self) -> int:
        """Tokens that each prompt hash stands for, beyond those before it."""
        stated = self.engine.get("hash_block_size") if self.pool.groups else self.extra.get(HASH_TOKENS)
        return int(stated or self.pool.unit_tokens)

    @property
    def begins_in_the_middle(self) -> bool:
        """Whether the recorder joined an engine that was at work: what happened before is known in part."""
        return bool(self.extra.get("joined_at_step"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Recording:
    """What happened, as columns. A simulation and a captured run produce the same thing."""

    meta: Meta
    requests: Requests
    steps: Steps
    schedule: Schedule
    memory: Memory
    copies: Copies | None = None
    """Copies of an engine that offloads blocks to host memory; None of any other."""
    name: str = ""
    """The folder's name, for titles."""

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name!r}: {self.meta.rules_name}, {len(self.requests):,} requests, "
            f"{len(self.steps):,} steps in {self.duration_s:.4g} s ({self.meta.source})>"
        )

    @property
    def duration_s(self) -> float:
        """Seconds from the first event to the end of the last step; 0 without steps."""
        return float(np.max(self.steps.end_s, initial=0.0))

    @property
    def told_s(self) -> float:
        """Seconds of which it tells what happened; what was there before it began is as old at least."""
        begin_s = float(self.steps.start_s[0]) if self.meta.begins_in_the_middle and len(self.steps) else 0.0
        return self.duration_s - begin_s

    @property
    def num_preemptions(self) -> int:
        """Preemptions over the whole run."""
        return int(np.sum(self.steps.preempted))

    def row_of(self, request_id: str) -> int:
        """The row of the request called `request_id`.

        Raises:
            RecordingError: there is no such request.
        """
        rows = np.flatnonzero(self.requests.id == request_id)
        if not len(rows):
            raise RecordingError(f"recording {self.name!r} has no request {request_id!r}.")
        return int(rows[0])
