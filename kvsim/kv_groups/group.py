"""Describe an engine's cache: groups of layers that share one table of blocks, over one pool of block ids.

A model with one kind of layers has one group. A model that has sliding windows, chunks or recurrent states beside full
attention has several groups. A token then has a slot in a block of every group, and a block id has the same number of
bytes in every group. `kvsim.kv_groups.plan` builds the objects of this module, an engine allocates by them, and a
recording stores them (`meta.kv_cache_groups`).
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
    """Kind of cache of the layers in a group: what its blocks hold for a sequence."""

    FULL = "full"
    """Keys and values of every token."""
    MLA = "mla"
    """Compressed latent of every token (multi-head latent attention)."""
    SLIDING_WINDOW = "sliding_window"
    """Keys and values of the last `window` tokens."""
    CHUNKED_LOCAL = "chunked_local"
    """Keys and values of the tokens of the current chunk: those since the last multiple of `window` tokens."""
    MAMBA = "mamba"
    """Recurrent state of fixed size: Mamba, linear attention, short convolution."""


class MambaMode(StrEnum):
    """Choice of the recurrent states that stay in blocks, so that a later request can hit them."""

    NONE = "none"
    """No state: a running sequence has one block with its current state."""
    ALL = "all"
    """The state at the end of every block."""
    ALIGN = "align"
    """The state at the end of a scheduled step, if that is the end of a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheGroup:
    """Layers that share one table of blocks per sequence."""

    kind: CacheKind
    block_size: int
    """Number of tokens in one block. A recurrent group in mode `none` has one block for a whole sequence."""
    num_layers: int
    """Number of layers in the group, over all pipeline stages."""
    page_bytes: int
    """Bytes, with padding, of a block in one layer on one GPU; of the first layer, if the group's layers differ."""
    content_bytes: int | None = None
    """Number of bytes of a page (a block in one layer) without padding; None if the page has no padding."""
    window: int | None = None
    """Number of tokens in the window (`sliding_window`) or chunk (`chunked_local`).

    A `full` group may have a window, too: its layers keep every token, but read only those in the window. None for
    layers without a window or chunk, and for a `full` group whose layers have different windows.
    """
    spec: int = 0
    """Number of the kind of layers: groups of equal layers have the same number. They share the lookup of prefixes."""
    mamba_mode: MambaMode | None = None
    """Recurrent states that the group keeps; None unless the kind is `mamba`."""
    num_speculative_blocks: int = 0
    """Number of additional blocks that each sequence has in a recurrent group, one for each drafted token."""
    has_draft_layers: bool = False
    """True if a layer of the group belongs to a draft model."""

    def blocks_for(self, num_tokens: int, max_num_batched_tokens: int) -> int:
        """Return the largest number of blocks that a sequence of `num_tokens` tokens can hold at the same time, while
        steps compute its prompt or its output.

        Admission requires this number. With a window or chunk, it covers the window or chunk and the
        `max_num_batched_tokens` tokens of a step.
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
        """Return the largest number of blocks that a sequence of `num_tokens` tokens can hold at the same time while it
        decodes. With a window or chunk, this may be less than `blocks_for`, because a step computes only one token.
        """
        whole = _blocks(num_tokens, self.block_size)
        if self.kind is CacheKind.SLIDING_WINDOW and self.window is not None:
            return min(whole, _blocks(self.window - 1, self.block_size) + 1)
        if self.kind is CacheKind.CHUNKED_LOCAL and self.window is not None:
            return min(whole, _blocks(self.window, self.block_size))
        if self.kind is CacheKind.MAMBA:
            return (1 if self.mamba_mode is MambaMode.NONE else min(2, whole)) + self.num_speculative_blocks
        return whole

    def as_meta(self) -> dict[str, Any]:
        """Return the group's entry of `meta.kv_cache_groups` in a recording. Values None, 0 and False are left out."""
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
        """Return the group that an entry of `meta.kv_cache_groups` describes. Unknown keys are ignored.

        Raises:
            RecordingError: a value is missing or invalid; the message names `where` and the key.
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
    """Groups of one engine in vLLM's order, and the block sizes that they share."""

    groups: tuple[KVCacheGroup, ...]
    """Groups in vLLM's order. The first layer of the model is in group 0."""
    bytes_per_block: int
    """Number of bytes that one block id takes in all layers of a GPU, on the pipeline stage where it takes the most."""
    scheduler_block_size: int
    """Least common multiple of the groups' block sizes, in tokens. A prefix hit ends only at a multiple of it, where
    every group has the end of a block.
    """
    hash_block_size: int
    """Number of tokens that one prefix hash covers."""

    @property
    def is_uniform(self) -> bool:
        """True if all layers are in one group of full attention or MLA, as in most models."""
        return len(self.groups) == 1 and self.groups[0].kind in (CacheKind.FULL, CacheKind.MLA)

    @property
    def unit_slots(self) -> int:
        """Number of slots in a block. A slot is room for one token if the layout is uniform, otherwise one byte.

        Blocks of different groups may hold different numbers of tokens, but have the same number of bytes.
        """
        return self.groups[0].block_size if self.is_uniform else self.bytes_per_block

    @property
    def has_windows(self) -> bool:
        """True if some group has windows, chunks or recurrent states. Sequences can hold blocks that no step reads."""
        return any(group.kind is CacheKind.MAMBA or group.window is not None for group in self.groups)

    def keeps_only_some(self, group: KVCacheGroup) -> bool:
        """Tell whether some full blocks of `group` are never cached, because no prefix hit can need them. A hit ends at
        a multiple of `scheduler_block_size`, and needs only the blocks of one window before its end.
        """
        if group.kind is not CacheKind.SLIDING_WINDOW or group.window is None:
            return False
        return _blocks(group.window - 1, group.block_size) < self.scheduler_block_size // group.block_size

    def token_slots(self, group: KVCacheGroup) -> int:
        """Return the number of slots that one token takes in a block of `group`; 0 for a recurrent group."""
        if self.is_uniform:
            return 1
        return 0 if group.kind is CacheKind.MAMBA else self._content_bytes(group) // group.block_size

    def state_slots(self, group: KVCacheGroup) -> int:
        """Return the number of slots that one recurrent state takes in a block of `group`; 0 for an attention group."""
        return self._content_bytes(group) if group.kind is CacheKind.MAMBA else 0

    def _content_bytes(self, group: KVCacheGroup) -> int:
        if len(self.groups) == 1 and group.content_bytes is None:
            return self.bytes_per_block
        return min(group.num_layers * (group.content_bytes or group.page_bytes), self.bytes_per_block)

    def blocks_for(self, num_tokens: int, max_num_batched_tokens: int) -> int:
        """Return the sum of `KVCacheGroup.blocks_for` over the groups."""
        return sum(group.blocks_for(num_tokens, max_num_batched_tokens) for group in self.groups)

    def held_blocks(self, num_tokens: int) -> int:
        """Return the sum of `KVCacheGroup.held_blocks` over the groups."""
        return sum(group.held_blocks(num_tokens) for group in self.groups)


def groups_from_meta(entries: Sequence[Any]) -> tuple[KVCacheGroup, ...]:
    """Return the groups that `meta.kv_cache_groups` of a recording describes.

    If no entry has a `spec`, groups that differ only in their number of layers get the same `spec`.

    Raises:
        RecordingError: `entries` is no list of groups, or groups with one `spec` differ.
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
                "differs from it; groups with one spec must have equal kinds, windows, block sizes and pages."
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
