"""KV events of vLLM: the blocks that a server puts into its prefix cache and removes from it, by hash.

A batch is an array of its time, its events and the engine's rank. An event is an array that begins with its kind before
vLLM 0.24, and a map with its `type` from then on. Later releases append fields, which are passed over here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvsim.errors import MissingExtraError, RecordingError, shortened

Hash = int | bytes
"""Name of a block: 64 bits of its hash, or the whole one, as the server is set."""

_FIELDS = {
    "BlockStored": (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
        *("extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"),
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
"""The fields of each kind of event, in the order of an array."""
_REQUIRED = {"BlockStored": 6, "BlockRemoved": 2, "AllBlocksCleared": 0}
"""The number of fields that every release has."""
_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """A part of the cache in which each hash is kept at most once."""

    medium: str
    group: int


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A cached block."""

    parent: Hash | None
    """The block before it; None for the first of a prompt."""
    num_tokens: int
    kind: str | None
    """Kind of its layers, such as full_attention or sliding_window; None before vLLM 0.22."""


class CachedBlocks:
    """Blocks in a server's prefix cache, followed by its KV events.

    An event reports each hash that a block gets or loses. A request can also ask for an event of each block that it
    reuses (`kv_cache_report_mode`), which has the same form. A hash is therefore counted once, and no longer counted
    when the first of several blocks has lost it.
    """

    def __init__(self) -> None:
        self.blocks: dict[Place, dict[Hash, StoredBlock]] = {}
        self.num_batches = 0

    def hear(self, payload: bytes) -> None:
        """Follow one batch, as it is published.

        Raises:
            RecordingError: it is no batch of KV events.
            MissingExtraError: msgpack is not installed.
        """
        for kind, fields in _events(_decoded(payload)):
            if kind == "AllBlocksCleared":
                self.blocks.clear()
                continue
            place = Place(fields["medium"] or "GPU", fields.get("group_idx") or 0)
            blocks = self.blocks.setdefault(place, {})
            if kind == "BlockStored":
                blocks.update(_stored(fields))
            else:
                for name in fields["block_hashes"]:
                    blocks.pop(name, None)
        self.num_batches += 1


def _stored(fields: dict[str, Any]) -> dict[Hash, StoredBlock]:
    """Return the blocks of one event; each is the parent of the next."""
    hashes, size = fields["block_hashes"], fields["block_size"]
    parents = [fields["parent_block_hash"], *hashes[:-1]]
    return {
        name: StoredBlock(parent, size, fields.get("kv_cache_spec_kind"))
        for name, parent in zip(hashes, parents, strict=True)
    }


def _decoded(payload: bytes) -> Any:
    try:
        import msgpack  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("Reading KV events", "events") from error
    if len(payload) > _MAX_BYTES:
        raise RecordingError(f"a batch of KV events has at most {_MAX_BYTES:,} bytes, not {len(payload):,}.")
    try:
        return msgpack.unpackb(payload)
    except (ValueError, msgpack.UnpackException) as error:
        raise RecordingError(f"{len(payload):,} bytes are no batch of KV events: {error}.") from error


def _events(batch: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return the kind and the fields of every event of a batch.

    Raises:
        RecordingError: it is no batch, or an event lacks a field, or has one of another type.
    """
    match batch:
        case [int() | float(), list(events), *_]:
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
        raise RecordingError(f"{shortened(repr(event))} has fields that a {kind} of vLLM cannot have.")
    return kind, fields


def _is_sound(fields: dict[str, Any]) -> bool:
    """Tell whether the fields that are read have the types that vLLM gives them."""

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
