"""Decoder of the KV events of vLLM and SGLang: blocks that a server adds to its prefix cache and removes, by hash.

A batch is an array: time, events, rank of the engine. Before vLLM 0.24 an event is an array that begins with its kind;
since then it is a map with a `type`. SGLang 0.5.23 sends maps without the fields that are None. Fields that later
releases append are ignored.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from kvsim.errors import MissingExtraError, RecordingError, shortened

Hash = int | bytes
"""Hash of a block: 64 bits of it as an int, or all its bytes, depending on the server's settings."""

_FIELDS = {
    "BlockStored": (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
        *("extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"),
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
"""Fields of each kind of event, in the order in which servers before vLLM 0.24 send them."""
_REQUIRED = {"BlockStored": 4, "BlockRemoved": 1, "AllBlocksCleared": 0}
"""Number of leading fields that every release sends."""
MAX_BYTES = 64 << 20
"""Limit for the number of bytes of a batch."""
_MOST_BLOCKS = 1 << 24
_MOST_LIFETIMES = 10_000


@dataclass(frozen=True, slots=True)
class CachePart:
    """Part of the cache: blocks of one KV-cache group on one medium, such as GPU. In a part, each hash counts once."""

    medium: str
    group: int


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A cached block."""

    parent: Hash | None
    """Hash of the block before; None for the first block of a prompt."""
    num_tokens: int
    kind: str | None
    """Kind of layers, such as full_attention or sliding_window; None from vLLM before 0.22 and from SGLang."""
    stored_s: float = field(default=0.0, compare=False)
    """Time in seconds, by the server's clock, of the batch that reported the block."""


class ServerCache:
    """Blocks in a server's prefix cache, from its KV events.

    Each hash counts once, even if several blocks have it or several events report it: with `kv_cache_report_mode`,
    reused blocks are reported like new ones. The first event that removes a hash removes it for all its blocks.
    """

    def __init__(self) -> None:
        self.blocks: dict[CachePart, dict[Hash, StoredBlock]] = {}
        self.num_batches = 0
        self.num_stored = self.num_removed = 0
        self.num_cleared = 0
        """Number of events that cleared all blocks."""
        self.lifetimes_s: deque[float] = deque(maxlen=_MOST_LIFETIMES)
        """Seconds for which each of the last `_MOST_LIFETIMES` removed blocks was cached, oldest removal first."""
        self.newest_s: float | None = None
        """Time of the newest batch in seconds, by the server's clock; None before the first."""

    def hear(self, payload: bytes) -> None:
        """Apply one published batch.

        Raises:
            RecordingError: it is no batch of KV events.
        """
        batch = _decoded(payload)
        for kind, fields in _events(batch):
            if kind == "AllBlocksCleared":
                self.blocks.clear()
                self.num_cleared += 1
                continue
            place = CachePart(fields.get("medium") or "GPU", fields.get("group_idx") or 0)
            blocks = self.blocks.setdefault(place, {})
            if kind == "BlockStored":
                self._store(blocks, _stored(fields, float(batch[0])))
            else:
                self._remove(blocks, fields["block_hashes"], float(batch[0]))
        self.newest_s = float(batch[0])
        self.num_batches += 1

    def is_newer(self, payload: bytes) -> bool:
        """Tell whether a batch was made, by the server's clock, after all batches received before."""
        batch = _decoded(payload)
        _events(batch)  # checks the batch
        return self.newest_s is None or float(batch[0]) > self.newest_s

    def forget(self) -> None:
        """Remove all blocks, because the server has restarted. The counts stay."""
        self.blocks.clear()

    def _store(self, blocks: dict[Hash, StoredBlock], stored: dict[Hash, StoredBlock]) -> None:
        for name, block in stored.items():
            if name not in blocks:
                blocks[name] = block
                self.num_stored += 1
        if len(blocks) > _MOST_BLOCKS:
            raise RecordingError(f"the KV events tell of more than {_MOST_BLOCKS:,} cached blocks, which cannot be.")

    def _remove(self, blocks: dict[Hash, StoredBlock], names: list[Hash], now_s: float) -> None:
        for name in names:
            block = blocks.pop(name, None)
            if block is not None:
                self.num_removed += 1
                self.lifetimes_s.append(max(now_s - block.stored_s, 0.0))


def _stored(fields: dict[str, Any], time_s: float) -> dict[Hash, StoredBlock]:
    hashes, size = fields["block_hashes"], fields["block_size"]
    parents = [fields["parent_block_hash"], *hashes[:-1]]
    return {
        name: StoredBlock(parent, size, fields.get("kv_cache_spec_kind"), time_s)
        for name, parent in zip(hashes, parents, strict=True)
    }


def _decoded(payload: bytes) -> Any:
    try:
        import msgpack  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("Reading KV events", "events") from error
    if len(payload) > MAX_BYTES:
        raise RecordingError(f"a batch of KV events has at most {MAX_BYTES:,} bytes, not {len(payload):,}.")
    try:
        return msgpack.unpackb(payload)
    except (ValueError, msgpack.UnpackException) as error:
        raise RecordingError(f"{len(payload):,} bytes are no batch of KV events: {error}.") from error


def _events(batch: Any) -> list[tuple[str, dict[str, Any]]]:
    match batch:
        case [int() | float() as time_s, list(events), *_] if math.isfinite(time_s):
            return [_event(event) for event in events]
    raise RecordingError(f"{shortened(repr(batch))} is no batch of KV events: time, events, rank.")


def _event(event: Any) -> tuple[str, dict[str, Any]]:
    match event:
        case [str(kind), *values] if kind in _FIELDS:
            fields = dict(zip(_FIELDS[kind], values, strict=False))
        case {"type": str(kind)} if kind in _FIELDS:
            fields = event
        case _:
            raise RecordingError(f"{shortened(repr(event))} is no KV event that is known: {', '.join(_FIELDS)}.")
    for name in _FIELDS[kind][: _REQUIRED[kind]]:
        if name not in fields:
            raise RecordingError(f"a {kind} of the KV events has no {name}.")
    if not _is_sound(fields):
        raise RecordingError(f"{shortened(repr(event))} has fields that a {kind} cannot have.")
    return kind, fields


def _is_sound(fields: dict[str, Any]) -> bool:
    def is_hash(value: object) -> bool:
        return isinstance(value, int | bytes) and not isinstance(value, bool)

    hashes, size, group = fields.get("block_hashes", []), fields.get("block_size", 1), fields.get("group_idx")
    parent, medium, kind = fields.get("parent_block_hash"), fields.get("medium"), fields.get("kv_cache_spec_kind")
    return (
        isinstance(hashes, list)
        and all(map(is_hash, hashes))
        and (parent is None or is_hash(parent))
        and type(size) is int
        and size > 0
        and (group is None or (type(group) is int and group >= 0))
        and all(value is None or isinstance(value, str) for value in (medium, kind))
    )
