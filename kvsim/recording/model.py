"""A recording in memory, which all readers of kvsim use: its provenance (`Meta`) and its tables.

`kvsim.recording.files` reads one from a folder; `kvsim.recording.builder` makes one during a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from kvsim.errors import RecordingError
from kvsim.files import identity
from kvsim.kv_groups.group import KVCacheGroup, KVCacheLayout
from kvsim.policies import Radix
from kvsim.policies.speculative_config import SpeculativeConfig
from kvsim.recording.tables import (
    TABLES,
    ColumnTable,
    Copies,
    EncoderEvents,
    IntArray,
    Memory,
    PromptImages,
    Requests,
    Schedule,
    Steps,
    Transfers,
)

FORMAT = identity.FORMAT
VERSION = 1
SOURCES = ("vllm", "hf", "simulation")
MAX_UNITS = 1 << 25
"""Limit for the number of units in a pool: more than any server has, and the most that the memory map can show."""
MAX_POOL_BYTES = 1 << 45
"""Limit for the number of bytes of a pool: more than the memory of a hundred GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPool:
    """SGLang's second pool, for layers with sliding windows. A unit has as many tokens as a unit of the first pool."""

    num_units: int
    bytes_per_unit: int
    window_tokens: int
    """Number of earlier tokens that a layer with a window reads for a new token. The new token does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Memory pool of equal units. A unit consists of `unit_slots` slots, each for one token or one byte."""

    unit_tokens: int
    """Number of tokens in a unit: the block size of a paged cache, or 1 for allocation without blocks.

    With several KV-cache groups, it is the least common multiple of their block sizes.
    """
    num_units: int | None
    """Number of units in the pool; None for an engine without a pool, whose cache grows with its requests."""
    first_unit: int = 0
    """Address of the first unit. It is 1 for vLLM, which keeps block 0 as its null block."""
    bytes_per_unit: int
    groups: tuple[KVCacheGroup, ...] = ()
    """KV-cache groups that share the units; empty if all layers are in one group of full attention."""
    windows: WindowPool | None = None
    """SGLang's second pool, for layers with windows; the first is for all other layers. None if there is one pool."""

    @property
    def units_in_words(self) -> str:
        """Description for people, such as "slots" or "blocks of 16 tokens". With KV-cache groups, it has the size of a
        block and the number of tables: "blocks of 2.00 MiB for 3 tables a sequence".
        """
        if self.groups:
            tables = f"{len(self.groups)} tables" if len(self.groups) > 1 else "one table"
            return f"blocks of {self.bytes_per_unit / 2**20:.2f} MiB for {tables} a sequence"
        units = "slots" if self.unit_tokens == 1 else f"blocks of {self.unit_tokens} tokens"
        return units if self.windows is None else f"{units} and {self.windows.num_units:,} of layers with windows"

    @property
    def num_bytes(self) -> int:
        """Number of bytes of all units, including those of a second pool; 0 without a pool."""
        windows = self.windows.num_units * self.windows.bytes_per_unit if self.windows else 0
        return (self.num_units or 0) * self.bytes_per_unit + windows

    @property
    def layout(self) -> KVCacheLayout | None:
        """Layout of the KV-cache groups in a unit; None if all layers are in one group of full attention."""
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
        """Number of slots in a unit: tokens or, if some KV-cache groups differ from full attention, bytes."""
        layout = self.layout
        return self.unit_tokens if layout is None else layout.unit_slots

    @property
    def bytes_per_slot(self) -> float:
        """Number of bytes of one slot; 1 if a slot is a byte."""
        return self.bytes_per_unit / self.unit_slots

    @property
    def capacity_slots(self) -> int | None:
        """Number of slots in the pool; None without a pool."""
        return None if self.num_units is None else self.num_units * self.unit_slots


HASH_TOKENS = "prompt_hash_tokens"
"""Key in `meta.json` for the tokens per prompt hash; absent if the pool or the engine implies them."""


INITIAL_IMAGES = "initial_images"
"""Key in `meta.json` for the images that are in the encoder cache when the recorder joins a running engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """Provenance of a recording, from `meta.json`; `docs/reference/recordings.md` lists the keys of each mapping."""

    source: str
    engine: Mapping[str, Any]
    gpu: str
    model: Mapping[str, Any]
    policy: Mapping[str, Any]
    pool: Pool
    initial_free: IntArray | None = None
    """Addresses of the free units when the recording begins, in queue order; None for ascending order."""
    initial_cached: IntArray | None = None
    """Addresses of the free units with a cached prefix when the recorder joins a running engine; or None."""
    initial_computed: IntArray | None = None
    """Most tokens that a request had ever had computed, for each request that the recorder found in a running engine.
    These requests have the first rows of the requests table. None if there were none.

    A request may have fewer computed tokens when the recording begins, because a preemption may have discarded some.
    """
    command: str = ""
    created: str = ""
    notes: str = ""
    extra: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Fields of `meta.json` that have no attribute here, by key. They are kept when the recording is written again."""

    @property
    def policy_name(self) -> str:
        """Name of the built-in policy, such as `paged`, `contiguous`, `static` or `radix`."""
        return str(self.policy.get("name", "paged"))

    @property
    def max_model_len(self) -> int | None:
        """Longest sequence in tokens of the real engine or of the simulated policy; None if neither is stated."""
        length = self.engine.get("max_model_len", self.policy.get("max_model_len"))
        return length if isinstance(length, int) else None

    @property
    def stated_release(self) -> str | None:
        """Release of vLLM that was recorded or simulated; None if the recording does not state it."""
        stated = self.engine.get("version") if self.source == "vllm" else self.policy.get("vllm")
        return None if stated is None else str(stated)

    @property
    def rules_name(self) -> str:
        """Name of the policy for display: that of a custom policy, otherwise that of the built-in policy."""
        return str(self.policy.get("rules", self.policy_name))

    @property
    def kv_bytes(self) -> int:
        """Bytes of KV memory that a new run needs for a pool of the same size.

        They may be more than the bytes of the units. For vLLM they include the null block. SGLang divides them between
        its two pools by a fixed ratio, so a part of the second pool may stay unused.
        """
        pool = self.pool
        if self.policy_name != Radix.name:
            return ((pool.num_units or 0) + pool.first_unit) * pool.bytes_per_unit
        if pool.windows is None or self.policy.get("disable_radix_cache"):
            return pool.num_bytes
        ratio = float(self.policy.get("swa_full_tokens_ratio", 1.0))
        bytes_per_pair = pool.bytes_per_unit + ratio * pool.windows.bytes_per_unit
        # Round up, and add one byte, so that a new run, which rounds down, does not lose a unit.
        return max(pool.num_bytes, 1 + ceil((pool.num_units or 0) * bytes_per_pair))

    @property
    def prefix_caching(self) -> bool:
        """True if released units may keep a prefix that later requests can hit."""
        if self.policy_name == Radix.name:
            return not self.policy.get("disable_radix_cache", False)
        return bool(self.policy.get("enable_prefix_caching", self.engine.get("enable_prefix_caching", False)))

    @property
    def hash_block_size(self) -> int:
        """Number of tokens that each prompt hash covers in addition to the hash before it."""
        stated = self.engine.get("hash_block_size") if self.pool.groups else self.extra.get(HASH_TOKENS)
        return int(stated or self.pool.unit_tokens)

    @property
    def hash_ahead_tokens(self) -> int:
        """Number of tokens after a block that the block's hash also covers; 0 without speculative decoding."""
        return int(self.engine.get("num_hash_lookahead_tokens", 0))

    @property
    def num_drafts(self) -> int:
        """Limit for the number of draft tokens per request and step; 0 without speculative decoding."""
        config = self.policy.get("speculative_config")
        return SpeculativeConfig.parse(config).num_tokens if config else 0

    @property
    def exchanges_kv(self) -> bool:
        """True if the server loads the KV of prompts from other servers, or keeps KV for other servers to read."""
        return "kv_connector" in self.engine

    @property
    def encoder_cache_tokens(self) -> int:
        """Size of the encoder cache in outputs, one per image token that needs one; 0 without an encoder cache."""
        return int(self.engine.get("encoder_cache_tokens", 0))

    @property
    def initial_images(self) -> dict[int, int]:
        """Images in the encoder cache when the recording began. A key is the number of an image, its value the number
        of the image's encoder outputs.

        The image that is evicted first comes first.

        Raises:
            RecordingError: `meta.json` does not list them as pairs of integers.
        """
        pairs = self.extra.get(INITIAL_IMAGES, [])
        are_pairs = isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
        if not are_pairs or not all(type(number) is int for pair in pairs for number in pair):
            raise RecordingError(f"{INITIAL_IMAGES} in meta.json should be pairs of an image and its encoder outputs.")
        return dict(pairs)

    @property
    def begins_in_the_middle(self) -> bool:
        """True if the recorder joined a running engine. Events before that moment are only partly known."""
        return bool(self.extra.get("joined_at_step"))


class Outline(NamedTuple):
    """Provenance, requests, steps and transfers of a recording. Views of many recordings need no other tables."""

    meta: Meta
    requests: Requests
    steps: Steps
    transfers: Transfers | None = None

    @classmethod
    def of(cls, recording: Recording) -> Outline:
        """Return the outline of a recording that was read as a whole."""
        return cls(recording.meta, recording.requests, recording.steps, recording.transfers)

    @property
    def duration_s(self) -> float:
        """Seconds from the first event to the end of the last step; 0 without steps."""
        return float(np.max(self.steps.end_s, initial=0.0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Recording:
    """Events of a run, as columns. A simulation and a captured run produce the same type."""

    meta: Meta
    requests: Requests
    steps: Steps
    schedule: Schedule
    memory: Memory
    copies: Copies | None = None
    """Blocks copied between GPU and host memory; None for an engine without offloading."""
    transfers: Transfers | None = None
    """Transfers of KV between this server and others; None for a server that exchanges no KV."""
    images: PromptImages | None = None
    """Images in the prompts; None if no prompt has an image."""
    encoder: EncoderEvents | None = None
    """Events of the encoder cache; None if no prompt has an image, or the engine has no such cache."""
    name: str = ""
    """Name of the recording's folder, for titles."""

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name!r}: {self.meta.rules_name}, {len(self.requests):,} requests, "
            f"{len(self.steps):,} steps in {self.duration_s:.4g} s ({self.meta.source})>"
        )

    @property
    def tables(self) -> list[ColumnTable]:
        """Tables of the recording, in the order of `TABLES`, without the optional tables that it lacks."""
        return [table for kind in TABLES if (table := getattr(self, kind.name)) is not None]

    @property
    def duration_s(self) -> float:
        """Seconds from the first event to the end of the last step; 0 without steps."""
        return Outline.of(self).duration_s

    @property
    def recorded_s(self) -> float:
        """Seconds from the beginning of the recording to the end of the last step.

        If the recorder joined a running engine, the recording begins with its first step. `duration_s` is longer then:
        it counts from the first event, which is the arrival of a request that the recorder found running.
        """
        begin_s = float(self.steps.start_s[0]) if self.meta.begins_in_the_middle and len(self.steps) else 0.0
        return self.duration_s - begin_s

    @property
    def has_drafts(self) -> bool:
        """True if steps verified drafts (speculative decoding)."""
        return self.schedule.known is not None

    @property
    def has_failed_loads(self) -> bool:
        """True if blocks failed to load from other servers."""
        return self.transfers is not None and bool((self.transfers.failed >= 0).any())

    @property
    def num_preemptions(self) -> int:
        """Number of preemptions in all recorded steps."""
        return int(np.sum(self.steps.preempted))

    def row_of(self, request_id: str) -> int:
        """Return the row of the request called `request_id`.

        Raises:
            RecordingError: no request has this id.
        """
        rows = np.flatnonzero(self.requests.id == request_id)
        if not len(rows):
            raise RecordingError(f"recording {self.name!r} has no request {request_id!r}.")
        return int(rows[0])
