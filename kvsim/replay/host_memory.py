"""Contents of host memory after each step of a recorded run: stored blocks, and blocks that are being copied.

The interface and the exports show them beside the pool of the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.policies import Radix
from kvsim.policies.sglang import host_pages
from kvsim.recording.model import Meta, Recording
from kvsim.recording.tables import Copies, CopyKind, IntArray
from kvsim.replay.unfolding import NO_OWNER

BoolArray = npt.NDArray[np.bool_]

_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostSlots:
    """Contents of host memory at one moment, with one entry per slot."""

    owner: IntArray
    """Request whose block was last copied to the slot; -1 for an unused slot."""
    is_going: BoolArray
    """True for slots that a copy from the GPU is writing."""
    is_coming: BoolArray
    """True for slots that a copy to the GPU is reading."""
    is_overwritten: BoolArray
    """True for slots whose previous block was evicted in this step."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostMemory:
    """Blocks in host memory over time. Arrays have one entry after the scheduling of each step, and one for the end.

    An output may report the ends of copies; it stores and evicts nothing.
    """

    num_slots: int
    """Number of blocks for which host memory has room."""
    slot_bytes: int
    used: IntArray
    """Number of slots that hold a block or are being written."""
    going: IntArray
    """Number of GPU blocks that are being copied to the host."""
    coming: IntArray
    """Number of GPU blocks that are being copied from the host."""
    going_after: IntArray
    """Number of GPU blocks that are still being copied to the host after the output of each step."""
    coming_after: IntArray
    """Number of GPU blocks that are still being copied from the host after the output of each step."""
    stored: IntArray
    """Number of GPU blocks whose copies to the host have begun so far."""
    loaded: IntArray
    """Number of GPU blocks whose copies from the host have begun so far."""
    _stores: _CopySteps
    _loads: _CopySteps

    def copying_at(self, frame: int, *, after_output: bool = False) -> tuple[int, int]:
        """Return the numbers of blocks that are being copied to the host and from it, right after step `frame` was
        scheduled.

        With `after_output`, return the numbers after its output, if no other step is in flight then.
        """
        going, coming = (self.going_after, self.coming_after) if after_output else (self.going, self.coming)
        return int(going[frame]), int(coming[frame])

    def slots_at(self, frame: int, *, after_output: bool = False) -> HostSlots:
        """Return the contents of the slots right after step `frame` was scheduled, or as its output left them."""
        owner = np.full(self.num_slots, NO_OWNER, np.int32)
        stores = self._stores
        earlier, begun = (int(np.searchsorted(stores.begun_step, frame, side)) for side in ("left", "right"))
        owner[stores.slot[:earlier]] = stores.request[:earlier]
        new = stores.slot[earlier:begun]
        is_overwritten = np.zeros(self.num_slots, bool)
        is_overwritten[new[owner[new] != NO_OWNER]] = not after_output
        owner[new] = stores.request[earlier:begun]
        return HostSlots(
            owner=owner,
            is_going=stores.under_way(frame, self.num_slots, after_output=after_output),
            is_coming=self._loads.under_way(frame, self.num_slots, after_output=after_output),
            is_overwritten=is_overwritten,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _CopySteps:
    """Copies in one direction, in the order in which they were decided."""

    begun_step: IntArray
    reported_step: IntArray
    """Step whose output reports the end of the copy; the largest integer if it is not known."""
    slot: IntArray
    request: IntArray

    @classmethod
    def of(cls, copies: Copies, rows: IntArray) -> _CopySteps:
        """Select the copies in `rows`."""
        rows = rows[np.argsort(copies.copy[rows], kind="stable")]
        reported = copies.reported_step[rows]
        return cls(
            begun_step=copies.begun_step[rows],
            reported_step=np.where(reported < 0, np.iinfo(np.int32).max, reported),
            slot=copies.slot[rows],
            request=copies.request[rows],
        )

    def under_way(self, frame: int, num_slots: int, *, after_output: bool) -> BoolArray:
        """Tell for each slot whether it is being copied right after step `frame` was scheduled, or after its output."""
        begun = int(np.searchsorted(self.begun_step, frame, "right"))
        is_copied = np.zeros(num_slots, bool)
        is_copied[self.slot[:begun][self.reported_step[:begun] >= frame + after_output]] = True
        return is_copied


def host_memory(recording: Recording) -> HostMemory | None:
    """Return the host memory of `recording`, or None if blocks were not offloaded."""
    copies, meta, num_frames = recording.copies, recording.meta, len(recording.steps) + 1
    if copies is None:
        return None
    reported = np.where(copies.reported_step < 0, num_frames, copies.reported_step + 1)
    first_use = np.full(int(copies.slot.max(initial=-1)) + 1, num_frames)
    np.minimum.at(first_use, copies.slot, copies.begun_step)
    is_load = copies.kind == CopyKind.LOAD

    def by_frame(steps: IntArray) -> IntArray:
        """Return, for each frame, how many of `steps` are at or before it."""
        return np.asarray(np.bincount(steps, minlength=num_frames + 1)[:num_frames].cumsum())

    stored, loaded = (by_frame(copies.begun_step[rows]) for rows in (~is_load, is_load))
    stores_done, loads_done = (by_frame(np.minimum(reported[rows], num_frames)) for rows in (~is_load, is_load))
    num_slots, slot_bytes = _size(meta)
    return HostMemory(
        num_slots=num_slots,
        slot_bytes=slot_bytes,
        used=by_frame(first_use[first_use < num_frames]),
        going=stored - stores_done,
        coming=loaded - loads_done,
        going_after=stored[:-1] - stores_done[1:],
        coming_after=loaded[:-1] - loads_done[1:],
        stored=stored,
        loaded=loaded,
        _stores=_CopySteps.of(copies, np.flatnonzero(~is_load)),
        _loads=_CopySteps.of(copies, np.flatnonzero(is_load)),
    )


def _size(meta: Meta) -> tuple[int, int]:
    """Return the capacity of host memory in blocks, and the bytes of a block, over all GPUs."""
    policy, pool = meta.policy, meta.pool
    unit_bytes = pool.bytes_per_unit * int(meta.model.get("tensor_parallel_size", 1))
    if meta.policy_name == Radix.name:
        size = (policy["hicache_ratio"], policy["hicache_size"])
        return host_pages(pool.num_units or 0, pool.unit_tokens, pool.bytes_per_unit, *size), unit_bytes
    block_size = int(policy.get("kv_offloading_block_size") or pool.unit_tokens)
    slot_bytes = block_size // pool.unit_tokens * unit_bytes
    reported = policy.get("host_blocks")
    num_slots = float(policy["kv_offloading_size"]) * _GIB // slot_bytes if reported is None else reported
    return int(num_slots), slot_bytes
