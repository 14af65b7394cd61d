"""Contents of host memory after each step of a recorded run: stored blocks, and blocks on the way to or from the GPU.

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
    """Contents of host memory at one time, with one entry for each host block. A host block is a slot."""

    owner: IntArray
    """Request whose blocks were last stored in the host block; -1 for an unused host block."""
    is_storing: BoolArray
    """True for host blocks that a store is writing."""
    is_loading: BoolArray
    """True for host blocks that a load is reading."""
    is_overwritten: BoolArray
    """True for host blocks with contents evicted for a store begun in this step. False after its output."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostMemory:
    """Blocks in host memory over time.

    Arrays have one entry for each step, and one for the end of the recording. The entry of a step is right after its
    scheduling or, in arrays that end in `_after`, after its output. Stores, loads and evictions begin when a step is
    scheduled; an output only reports the ends of copies.
    """

    num_slots: int
    """Number of host blocks for which there is room. A host block may hold several GPU blocks."""
    slot_bytes: int
    """Bytes of a host block, summed over all GPUs."""
    used: IntArray
    """Number of host blocks that hold a copy or are being written."""
    storing: IntArray
    """Number of GPU blocks that are being stored."""
    loading: IntArray
    """Number of GPU blocks that are being loaded."""
    storing_after: IntArray
    """Number of GPU blocks that are still being stored after the output of each step, and at the end."""
    loading_after: IntArray
    """Number of GPU blocks that are still being loaded after the output of each step, and at the end."""
    _stores: _CopySteps
    _loads: _CopySteps

    def copying_at(self, frame: int, *, after_output: bool = False) -> tuple[int, int]:
        """Return the numbers of GPU blocks that are being stored and loaded, right after step `frame` was scheduled.

        With `after_output`, return the numbers after the output of that step. They are right only if no other step is
        in flight then. If `frame` is the number of steps, return the numbers at the end of the recording.
        """
        storing, loading = (self.storing_after, self.loading_after) if after_output else (self.storing, self.loading)
        return int(storing[frame]), int(loading[frame])

    def slots_at(self, frame: int, *, after_output: bool = False) -> HostSlots:
        """Return the host blocks' contents right after the scheduling of step `frame`, or after its output."""
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
            is_storing=stores.under_way(frame, self.num_slots, after_output=after_output),
            is_loading=self._loads.under_way(frame, self.num_slots, after_output=after_output),
            is_overwritten=is_overwritten,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _CopySteps:
    """Copies in one direction, with one entry for each GPU block, in the order in which steps decide on copies."""

    begun_step: IntArray
    reported_step: IntArray
    """Step whose output reports the end of the copy; the largest int32 if the recording ends before."""
    slot: IntArray
    request: IntArray

    @classmethod
    def of(cls, copies: Copies, rows: IntArray) -> _CopySteps:
        rows = rows[np.argsort(copies.copy[rows], kind="stable")]
        reported = copies.reported_step[rows]
        return cls(
            begun_step=copies.begun_step[rows],
            reported_step=np.where(reported < 0, np.iinfo(np.int32).max, reported),
            slot=copies.slot[rows],
            request=copies.request[rows],
        )

    def under_way(self, frame: int, num_slots: int, *, after_output: bool) -> BoolArray:
        """Tell, for each host block, whether it is being copied right after step `frame` was scheduled.

        With `after_output`, tell whether it is being copied after the output of that step.
        """
        begun = int(np.searchsorted(self.begun_step, frame, "right"))
        is_copied = np.zeros(num_slots, bool)
        is_copied[self.slot[:begun][self.reported_step[:begun] >= frame + after_output]] = True
        return is_copied


def host_memory(recording: Recording) -> HostMemory | None:
    """Return the host memory of `recording`; None if it has no copies."""
    copies, meta, num_frames = recording.copies, recording.meta, len(recording.steps) + 1
    if copies is None:
        return None
    # Frame from which a copy is done: the one after the step whose output reports its end; `num_frames` if none does.
    reported = np.where(copies.reported_step < 0, num_frames, copies.reported_step + 1)
    first_use = np.full(int(copies.slot.max(initial=-1)) + 1, num_frames)
    np.minimum.at(first_use, copies.slot, copies.begun_step)
    is_load = copies.kind == CopyKind.LOAD

    def by_frame(steps: IntArray) -> IntArray:
        """Return, for each frame, the number of entries of `steps` up to and including the frame's number."""
        return np.asarray(np.bincount(steps, minlength=num_frames + 1)[:num_frames].cumsum())

    stores_begun, loads_begun = (by_frame(copies.begun_step[rows]) for rows in (~is_load, is_load))
    stores_done, loads_done = (by_frame(np.minimum(reported[rows], num_frames)) for rows in (~is_load, is_load))
    num_slots, slot_bytes = _size(meta)
    return HostMemory(
        num_slots=num_slots,
        slot_bytes=slot_bytes,
        used=by_frame(first_use[first_use < num_frames]),
        storing=stores_begun - stores_done,
        loading=loads_begun - loads_done,
        storing_after=stores_begun - np.append(stores_done[1:], stores_done[-1:]),
        loading_after=loads_begun - np.append(loads_done[1:], loads_done[-1:]),
        _stores=_CopySteps.of(copies, np.flatnonzero(~is_load)),
        _loads=_CopySteps.of(copies, np.flatnonzero(is_load)),
    )


def _size(meta: Meta) -> tuple[int, int]:
    policy, pool = meta.policy, meta.pool
    unit_bytes = pool.bytes_per_unit * int(meta.model.get("tensor_parallel_size", 1))
    if meta.policy_name == Radix.name:
        size = {"ratio": policy["hicache_ratio"], "size_gb": policy["hicache_size"]}
        return host_pages(pool.num_units or 0, pool.unit_tokens, pool.bytes_per_unit, **size), unit_bytes
    block_size = int(policy.get("kv_offloading_block_size") or pool.unit_tokens)
    slot_bytes = block_size // pool.unit_tokens * unit_bytes
    reported = policy.get("host_blocks")
    num_slots = float(policy["kv_offloading_size"]) * _GIB // slot_bytes if reported is None else reported
    return int(num_slots), slot_bytes
