"""Describe an engine's cache: groups of layers that share one table of blocks, over one pool of block ids.

A model with one kind of layers has one group. A model with sliding windows, chunks or recurrent state beside full
attention has several: a token then has a slot in a block of every group, and a block id has the same bytes in every
group. This module knows neither models nor GPUs. `kvsim.kv_groups.plan` builds its values, an engine allocates by them,
and a recording stores them (`meta.kv_cache_groups`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from kvsim.errors import RecordingError
from kvsim.files.values import is_integer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Member = TypeVar("Member", bound=StrEnum)


class CacheKind(StrEnum):
    """Kind of cache of the layers in a group."""

    FULL = "full"
    """Keys and values of every token."""
    MLA = "mla"
    """Compressed latent of every token (multi-head latent attention)."""
    SLIDING_WINDOW = "sliding_window"
    """Keys and values of the last `window` tokens."""
    CHUNKED_LOCAL = "chunked_local"
    """Keys and values of the tokens since the last multiple of `window` tokens."""
    MAMBA = "mamba"
    """Recurrent state of fixed size: Mamba, linear attention, short convolution."""


class MambaMode(StrEnum):
    """Recurrent states kept for prefix hits."""

    NONE = "none"
    """Current state only: one block per sequence while it runs."""
    ALL = "all"
    """State at the end of every block."""
    ALIGN = "align"
    """State at block boundaries where a scheduled step ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheGroup:
    """Layers that share one table of blocks per sequence."""

    kind: CacheKind
    block_size: int
    """Tokens of one block. A recurrent group in mode `none` has one block for a whole sequence."""
    num_layers: int
    """Layers of the whole model, over all pipeline stages."""
    page_bytes: int
    """Bytes of one block in one layer on one GPU, padding included; of the first layer if layers differ."""
    content_bytes: int | None = None
    """Bytes of a page that are ever written; None for all."""
    window: int | None = None
    """Tokens of the window (`sliding_window`) or chunk (`chunked_local`); None for other kinds.

    A `full` group keeps every token, and its window is the common window of its layers, if any.
    """
    spec: int = 0
    """Number of the kind of layers. Groups of the same kind have the same number, and are looked up together."""
    mamba_mode: MambaMode | None = None
    """Recurrent states that the group keeps; None unless the kind is `mamba`."""
    num_speculative_blocks: int = 0
    """Additional blocks of a recurrent group, one per drafted token."""
    has_draft_layers: bool = False
    """True if a layer of the group drafts."""

    def blocks_for(self, num_tokens: int, max_num_batched_tokens: int) -> int:
        """Return the maximum number of blocks that a sequence of `num_tokens` tokens holds at once, for admission.

        A window also holds up to `max_num_batched_tokens` tokens that are computed in one step.
        """
        if self.kind is CacheKind.SLIDING_WINDOW and self.window is not None:
            return _blocks(min(self.window - 1 + max_num_batched_tokens, num_tokens), self.block_size) + 1
        if self.kind is CacheKind.CHUNKED_LOCAL and self.window is not None:
            return _blocks(min(self.window + max_num_batched_tokens, num_tokens), self.block_size)
        if self.mamba_mode is MambaMode.NONE:
            return 1 + self.num_speculative_blocks
        if self.mamba_mode is MambaMode.ALIGN:
            return 2 + self.num_speculative_blocks
        return _blocks(num_tokens, self.block_size) + self.num_speculative_blocks

    def held_blocks(self, num_tokens: int) -> int:
        """Return the maximum number of blocks that a sequence of `num_tokens` tokens holds while it decodes."""
        whole = _blocks(num_tokens, self.block_size)
        if self.kind is CacheKind.SLIDING_WINDOW and self.window is not None:
            return min(whole, _blocks(self.window - 1, self.block_size) + 1)
        if self.kind is CacheKind.CHUNKED_LOCAL and self.window is not None:
            return min(whole, _blocks(self.window, self.block_size))
        if self.kind is CacheKind.MAMBA:
            return (1 if self.mamba_mode is MambaMode.NONE else min(2, whole)) + self.num_speculative_blocks
        return whole

    def as_meta(self) -> dict[str, Any]:
        """Return the group as an entry of `meta.kv_cache_groups` in a recording, without fields that are unset."""
        entry = {
            "kind": self.kind.value,
            "block_size": self.block_size,
            "window": self.window,
            "num_layers": self.num_layers,
            "page_bytes": self.page_bytes,
            "content_bytes": self.content_bytes,
            "spec": self.spec,
            "mamba_mode": None if self.mamba_mode is None else self.mamba_mode.value,
            "num_speculative_blocks": self.num_speculative_blocks,
            "has_draft_layers": self.has_draft_layers,
        }
        return {key: value for key, value in entry.items() if value not in (None, 0)}

    @classmethod
    def from_meta(cls, entry: Mapping[str, Any], where: str = "kv_cache_groups") -> KVCacheGroup:
        """Return the group of an entry of `meta.kv_cache_groups`; unknown keys are ignored.

        Raises:
            RecordingError: a figure is missing or invalid; the message names `where` and the key.
        """
        if not isinstance(entry, dict):
            raise RecordingError(f"{where} is {entry!r}; it must be an object with kind, block_size and num_layers.")
        kind = _member(CacheKind, entry, "kind", where)
        windowed = kind in (CacheKind.SLIDING_WINDOW, CacheKind.CHUNKED_LOCAL)
        windowed |= kind is CacheKind.FULL and "window" in entry
        return cls(
            kind=kind,
            block_size=_count(entry, "block_size", where),
            num_layers=_count(entry, "num_layers", where),
            page_bytes=_count(entry, "page_bytes", where),
            content_bytes=_count(entry, "content_bytes", where) if "content_bytes" in entry else None,
            window=_count(entry, "window", where) if windowed else None,
            spec=_count(entry, "spec", where, least=0) if "spec" in entry else 0,
            mamba_mode=_mamba_mode(entry, where) if kind is CacheKind.MAMBA else None,
            num_speculative_blocks=(
                _count(entry, "num_speculative_blocks", where, least=0) if "num_speculative_blocks" in entry else 0
            ),
            has_draft_layers=_flag(entry, "has_draft_layers", where),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheLayout:
    """Groups of one engine in vLLM's order, and their common sizes."""

    groups: tuple[KVCacheGroup, ...]
    """Groups in order; group 0 has the kind of the model's first layer."""
    bytes_per_block: int
    """Bytes of one block id in all layers, on the GPU that has most layers."""
    scheduler_block_size: int
    """Tokens between common block boundaries of all groups: the granularity of prefix hits."""
    hash_block_size: int
    """Tokens per prefix hash."""

    @property
    def is_uniform(self) -> bool:
        """True if one group of full attention (or MLA) holds all layers, as in most models."""
        return len(self.groups) == 1 and self.groups[0].kind in (CacheKind.FULL, CacheKind.MLA)

    @property
    def unit_slots(self) -> int:
        """Number of slots in a block. A slot is the place of a token if one group holds all layers; otherwise a byte.

        The blocks of several groups may hold different numbers of tokens, but they have the same number of bytes.
        """
        return self.groups[0].block_size if self.is_uniform else self.bytes_per_block

    @property
    def has_windows(self) -> bool:
        """True if a group, because of a window or a recurrent state, can hold tokens that it no longer needs."""
        return any(group.kind is CacheKind.MAMBA or group.window is not None for group in self.groups)

    def keeps_some(self, group: KVCacheGroup) -> bool:
        """Tell whether some full blocks of `group` are never cached, because no lookup can end after them.

        A lookup ends at a common boundary of all groups, and needs the blocks of one window before it.
        """
        if group.kind is not CacheKind.SLIDING_WINDOW or group.window is None:
            return False
        return _blocks(group.window - 1, group.block_size) < self.scheduler_block_size // group.block_size

    def token_slots(self, group: KVCacheGroup) -> int:
        """Return the number of slots of one token in a block of `group`; 0 in a recurrent group."""
        if self.is_uniform:
            return 1
        return 0 if group.kind is CacheKind.MAMBA else self._content_bytes(group) // group.block_size

    def state_slots(self, group: KVCacheGroup) -> int:
        """Return the number of slots of one state in a block of `group`; 0 in a group of attention."""
        return self._content_bytes(group) if group.kind is CacheKind.MAMBA else 0

    def _content_bytes(self, group: KVCacheGroup) -> int:
        """Return the number of bytes in a block that are ever written, over all layers of `group`."""
        if len(self.groups) == 1 and group.content_bytes is None:
            return self.bytes_per_block
        return min(group.num_layers * (group.content_bytes or group.page_bytes), self.bytes_per_block)

    def blocks_for(self, num_tokens: int, max_num_batched_tokens: int) -> int:
        """Return the maximum number of blocks that a sequence of `num_tokens` tokens holds at once, in all groups."""
        return sum(group.blocks_for(num_tokens, max_num_batched_tokens) for group in self.groups)

    def held_blocks(self, num_tokens: int) -> int:
        """Return the maximum number of blocks that a decoding sequence of `num_tokens` tokens holds, in all groups."""
        return sum(group.held_blocks(num_tokens) for group in self.groups)


def groups_from_meta(entries: Sequence[Any]) -> tuple[KVCacheGroup, ...]:
    """Return the groups in `meta.kv_cache_groups` of a recording.

    If no group has a `spec`, groups with equal kind, window, block size and page are alike.

    Raises:
        RecordingError: the value is not a list of groups, or groups with one `spec` differ.
    """
    if not isinstance(entries, list | tuple) or not entries:
        raise RecordingError(f"kv_cache_groups is {entries!r}; it must be a list of at least one group.")
    groups = [KVCacheGroup.from_meta(entry, f"kv_cache_groups[{index}]") for index, entry in enumerate(entries)]
    rules = [replace(group, num_layers=1, spec=0, has_draft_layers=False) for group in groups]
    if not any("spec" in entry for entry in entries):
        return tuple(replace(group, spec=rules.index(rule)) for group, rule in zip(groups, rules, strict=True))
    first_of = {group.spec: index for index, group in reversed([*enumerate(groups)])}
    for index, (group, rule) in enumerate(zip(groups, rules, strict=True)):
        if rule != rules[first_of[group.spec]]:
            raise RecordingError(
                f"kv_cache_groups[{index}] has the spec of kv_cache_groups[{first_of[group.spec]}], {group.spec}, and "
                "is not alike; only groups of one kind, window, block size and page have one spec."
            )
    return tuple(groups)


def _blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def _count(entry: Mapping[str, Any], key: str, where: str, least: int = 1) -> int:
    value = entry.get(key)
    if not is_integer(value, least):
        raise RecordingError(f"{where} says {key} = {value!r}; it must be a whole number of at least {least}.")
    return value


def _mamba_mode(entry: Mapping[str, Any], where: str) -> MambaMode:
    return _member(MambaMode, entry, "mamba_mode", where) if "mamba_mode" in entry else MambaMode.NONE


def _flag(entry: Mapping[str, Any], key: str, where: str) -> bool:
    value = entry.get(key, False)
    if type(value) is not bool:
        raise RecordingError(f"{where} says {key} = {value!r}; it must be true or false.")
    return value


def _member(kinds: type[Member], entry: Mapping[str, Any], key: str, where: str) -> Member:
    try:
        return kinds(str(entry.get(key)))
    except ValueError:
        right = ", ".join(kinds)
        raise RecordingError(f"{where} says {key} = {entry.get(key)!r}; it must be one of {right}.") from None
