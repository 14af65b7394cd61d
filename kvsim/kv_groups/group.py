"""What an engine knows of its cache: groups of layers that share one table of blocks, over one pool of block ids.

A model whose layers are all alike has one group. A model with sliding windows, chunks or recurrent state beside full
attention has several: a token then has a place in a block of every group, and a block id stands for so many bytes
whichever group holds it. This module knows nothing of models and GPUs; `kvsim.kv_groups.plan` makes its values from
them, an engine allocates by them, and a recording keeps them (`meta.kv_cache_groups`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from kvsim.errors import RecordingError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Member = TypeVar("Member", bound=StrEnum)


class CacheKind(StrEnum):
    """How the layers of a group keep what they have seen."""

    FULL = "full"
    """Keys and values of every token."""
    MLA = "mla"
    """One compressed latent of every token (multi-head latent attention)."""
    SLIDING_WINDOW = "sliding_window"
    """Keys and values of the last `window` tokens."""
    CHUNKED_LOCAL = "chunked_local"
    """Keys and values of the tokens since the last multiple of `window`."""
    MAMBA = "mamba"
    """A recurrent state of fixed size: Mamba, linear attention, short convolution."""


class MambaMode(StrEnum):
    """Which recurrent states are kept for prefixes to be hit."""

    NONE = "none"
    """The live state alone: one block a sequence, for as long as it runs."""
    ALL = "all"
    """The state at the end of every block."""
    ALIGN = "align"
    """The state at block boundaries that a scheduled step ends at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheGroup:
    """Layers that share one table of blocks per sequence."""

    kind: CacheKind
    block_size: int
    """Tokens of one block. A recurrent group in mode `none` has one block for a whole sequence."""
    num_layers: int
    """Layers of the whole model, over all pipeline stages."""
    page_bytes: int
    """Bytes of one block in one layer on one GPU, padding included; of the first layer where layers differ."""
    content_bytes: int | None = None
    """Bytes of a page that are ever written; None: all."""
    window: int | None = None
    """Tokens of the window (`sliding_window`) or of the chunk (`chunked_local`); of a `full` group, the window of all
    of its layers, which keep every token all the same; None for others."""
    spec: int = 0
    """Groups of layers that are alike share this number. Prefixes are looked up once for all of them."""
    mamba_mode: MambaMode | None = None
    """The states that a recurrent group keeps; None unless the kind is `mamba`."""
    num_speculative_blocks: int = 0
    """Blocks that a recurrent group holds beside, one for every drafted token."""

    def blocks_for(self, num_tokens: int, max_num_batched_tokens: int) -> int:
        """The most blocks that one sequence of `num_tokens` tokens holds at once: the engine's cap at admission.

        Args:
            num_tokens: Length of the sequence, prompt and answer together.
            max_num_batched_tokens: Tokens of the largest step; a window must hold what one step adds to it.
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
        """The most blocks that one sequence of `num_tokens` tokens holds while it decodes, a token a step."""
        whole = _blocks(num_tokens, self.block_size)
        if self.kind is CacheKind.SLIDING_WINDOW and self.window is not None:
            return min(whole, _blocks(self.window - 1, self.block_size) + 1)
        if self.kind is CacheKind.CHUNKED_LOCAL and self.window is not None:
            return min(whole, _blocks(self.window, self.block_size))
        if self.kind is CacheKind.MAMBA:
            return (1 if self.mamba_mode is MambaMode.NONE else min(2, whole)) + self.num_speculative_blocks
        return whole

    def as_meta(self) -> dict[str, Any]:
        """The group as one entry of `meta.kv_cache_groups` of a recording; what is None or 0 is left out."""
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
        }
        return {key: value for key, value in entry.items() if value not in (None, 0)}

    @classmethod
    def from_meta(cls, entry: Mapping[str, Any], where: str = "kv_cache_groups") -> KVCacheGroup:
        """The group that one entry of `meta.kv_cache_groups` describes; unknown keys are ignored.

        Raises:
            RecordingError: if a figure is missing or cannot be right; the message names `where` and the key.
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
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheLayout:
    """The groups of one engine, in vLLM's order, and what they have in common."""

    groups: tuple[KVCacheGroup, ...]
    """Group 0 is of the kind of the model's first layer."""
    bytes_per_block: int
    """Bytes of one block id over all its layers, on the GPU that holds most of them."""
    scheduler_block_size: int
    """Tokens at which all groups have a block boundary: prefixes are hit in multiples of it."""
    hash_block_size: int
    """Tokens over which prefixes are hashed."""

    @property
    def is_uniform(self) -> bool:
        """Whether one group of full attention (or MLA) holds all layers, as in most models."""
        return len(self.groups) == 1 and self.groups[0].kind in (CacheKind.FULL, CacheKind.MLA)

    @property
    def unit_slots(self) -> int:
        """Slots of one block in the account of where memory goes: its tokens where one group holds all layers.

        Blocks of several groups hold different numbers of tokens, so a slot is a byte there.
        """
        return self.groups[0].block_size if self.is_uniform else self.bytes_per_block

    @property
    def has_windows(self) -> bool:
        """Whether a group holds tokens, or states, that it does not need."""
        return any(group.kind is CacheKind.MAMBA or group.window is not None for group in self.groups)

    def keeps_some(self, group: KVCacheGroup) -> bool:
        """Whether some full blocks of `group` are never put into the prefix cache: no lookup could end behind them.

        A lookup ends where all groups have a boundary, and needs the blocks of one window before it.
        """
        if group.kind is not CacheKind.SLIDING_WINDOW or group.window is None:
            return False
        return _blocks(group.window - 1, group.block_size) < self.scheduler_block_size // group.block_size

    def token_slots(self, group: KVCacheGroup) -> int:
        """Slots that one token takes in a block of `group`; 0 in a recurrent group."""
        if self.is_uniform:
            return 1
        return 0 if group.kind is CacheKind.MAMBA else self._content_bytes(group) // group.block_size

    def state_slots(self, group: KVCacheGroup) -> int:
        """Slots that one state takes in a block of `group`; 0 in a group of attention."""
        return self._content_bytes(group) if group.kind is CacheKind.MAMBA else 0

    def _content_bytes(self, group: KVCacheGroup) -> int:
        """Bytes of a block that its layers ever write."""
        if len(self.groups) == 1 and group.content_bytes is None:
            return self.bytes_per_block
        return min(group.num_layers * (group.content_bytes or group.page_bytes), self.bytes_per_block)

    def blocks_for(self, num_tokens: int, max_num_batched_tokens: int) -> int:
        """The most blocks that one sequence of `num_tokens` tokens holds at once, over all groups."""
        return sum(group.blocks_for(num_tokens, max_num_batched_tokens) for group in self.groups)

    def held_blocks(self, num_tokens: int) -> int:
        """The most blocks that one sequence of `num_tokens` tokens holds while it decodes, over all groups."""
        return sum(group.held_blocks(num_tokens) for group in self.groups)


def groups_from_meta(entries: Sequence[Any]) -> tuple[KVCacheGroup, ...]:
    """The groups that `meta.kv_cache_groups` of a recording lists.

    Where none of them has a `spec`, those of one kind, window, block size and page are alike.

    Raises:
        RecordingError: if it is not a list of groups, or groups with one `spec` are not alike.
    """
    if not isinstance(entries, list | tuple) or not entries:
        raise RecordingError(f"kv_cache_groups is {entries!r}; it must be a list of at least one group.")
    groups = [KVCacheGroup.from_meta(entry, f"kv_cache_groups[{index}]") for index, entry in enumerate(entries)]
    rules = [replace(group, num_layers=1, spec=0) for group in groups]
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
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise RecordingError(f"{where} says {key} = {value!r}; it must be a whole number of at least {least}.")
    return value


def _mamba_mode(entry: Mapping[str, Any], where: str) -> MambaMode:
    return _member(MambaMode, entry, "mamba_mode", where) if "mamba_mode" in entry else MambaMode.NONE


def _member(kinds: type[Member], entry: Mapping[str, Any], key: str, where: str) -> Member:
    try:
        return kinds(str(entry.get(key)))
    except ValueError:
        right = ", ".join(kinds)
        raise RecordingError(f"{where} says {key} = {entry.get(key)!r}; it must be one of {right}.") from None
