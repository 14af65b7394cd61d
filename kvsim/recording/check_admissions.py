"""Check admissions: the tokens that an admitted request need not compute were cached in the pool or on the host.

The hit rates that kvsim prints follow from the memory events only if this is true.
"""

from __future__ import annotations

from math import lcm
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvsim.kv_groups.group import CacheKind
from kvsim.policies import Radix
from kvsim.recording.by_request import first_rows_since
from kvsim.recording.check_queue import ResidencyRows
from kvsim.recording.check_swaps import Admissions, check_swaps
from kvsim.recording.model import Recording
from kvsim.recording.order import expanded, is_new, sort_key
from kvsim.recording.rules import agree, require
from kvsim.recording.tables import Copies, CopyKind, IntArray, MemoryKind


def check_admissions(recording: Recording, residencies: ResidencyRows, folder: Path) -> None:
    """Check that the tokens that an admitted request need not compute are exactly its prefix hit: tokens in units that
    it shares, or that it loads from host memory.

    If the engine swaps, or exchanges KV with other servers, a request may have more computed tokens than its hit. The
    numbers of copied units that steps state are checked as well.
    """
    schedule, copies, file = recording.schedule, recording.copies, folder / "schedule.parquet"
    step = np.searchsorted(recording.steps.schedule_seq, residencies.birth_seq)
    rows = first_rows_since(recording, residencies.birth_request, step)
    # Tables of groups may release units before the request computes, so only an immediate start shows the hit.
    is_checked = (rows >= 0) & (schedule.step[rows] == step) if recording.meta.pool.groups else rows >= 0
    hits = _hit_tokens(recording, residencies)
    if copies is not None:
        _check_copies(recording, copies, folder)
        hits += _loaded_units(copies, residencies.birth_request, step) * recording.meta.pool.unit_tokens
    hits, rows, step = hits[is_checked], rows[is_checked], step[is_checked]
    before = schedule.computed_before[rows].astype(np.int64)
    if recording.meta.policy.get("swap_gib"):
        require(before >= hits, file, "computed_before should be no less than the request shares", rows)
        admitted = Admissions(residencies.birth_request[is_checked], step, before, hits)
        check_swaps(recording, residencies, admitted, folder / "steps.parquet")
        return
    if recording.meta.exchanges_kv:  # tokens from another server are no hit in the tables of this one
        require(before >= hits, file, "computed_before should be no less than the request shares", rows)
        return
    if copies is not None:  # if all of a prompt was loaded, its last token is computed again
        hits -= (schedule.step[rows] > step) & (schedule.tokens[rows] == 1) & (before == hits - 1)
    groups = recording.meta.pool.groups
    if groups and all(group.kind is CacheKind.CHUNKED_LOCAL for group in groups):
        is_first = is_new(residencies.birth_request)[is_checked]
        starts_there = _starts_at_last_chunk(recording, schedule.request[rows], before, is_first)
        hits = np.where(starts_there, np.maximum(hits, before), hits)
    agree(before, hits, file, "computed_before", "memory.parquet", rows)


def _starts_at_last_chunk(
    recording: Recording, request: IntArray, before: IntArray, is_first: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Tell, for each request with `before` computed tokens, whether it can have begun at its last attention chunk.

    All KV-cache groups have chunked local attention here. No later step reads tokens of earlier chunks, so these count
    as a hit even if no unit holds them. The last chunk is that of the newest known token: of the last prompt token at
    the first admission (`is_first`), of an output token after a preemption.

    A request with one group begins to compute at the start of the unit in which its last chunk begins. With several
    groups, it begins at a common multiple of their chunks and blocks. False without prefix caching.
    """
    if not recording.meta.prefix_caching:
        return np.zeros(len(before), np.bool_)
    requests, groups = recording.requests, recording.meta.pool.groups
    chunk, unit = groups[0].window or 1, groups[0].block_size
    if len(groups) > 1:
        chunk, unit = lcm(*(group.window or 1 for group in groups), *(group.block_size for group in groups)), 1
    # The newest known token is at a position from `least` to `most`. The chunk boundaries that agree with a start at
    # `before` are those from `first` to `last`; one of these must begin the chunk of the newest known token.
    least = requests.prompt_tokens[request].astype(np.int64) - 1
    most = least + np.where(is_first, 0, requests.output_tokens[request])
    first, last = -(-before // chunk) * chunk, (before + unit - 1) // chunk * chunk
    return (first <= np.minimum(last, most)) & (last >= least // chunk * chunk)


def _loaded_units(copies: Copies, request: IntArray, step: IntArray) -> npt.NDArray[np.int64]:
    is_load = copies.kind == CopyKind.LOAD
    loaded, wanted = np.sort(sort_key(copies.request[is_load], copies.begun_step[is_load])), sort_key(request, step)
    # Equal entries of a sorted array lie between its left and its right insertion point.
    return np.searchsorted(loaded, wanted, side="right") - np.searchsorted(loaded, wanted)


def _hit_tokens(recording: Recording, residencies: ResidencyRows) -> npt.NDArray[np.int64]:
    """Return the number of tokens in the prefix hit with which each residency begins; 0 without a hit.

    A residency is the time from an admission of a request to the release of its memory. The hit ends with the last unit
    that any table of the request shares at the admission.
    """
    memory, pool = recording.memory, recording.meta.pool
    rows = np.flatnonzero(memory.kind == MemoryKind.SHARE)
    sizes = np.array([group.block_size for group in pool.groups] or [pool.unit_tokens])
    group = 0 if memory.group is None else memory.group[rows]
    end = (memory.position[rows].astype(np.int64) + memory.length[rows]) * sizes[group]
    # Several rows of one request and moment, such as those of its groups, count as one hit.
    moment, number = np.unique(sort_key(memory.request[rows], memory.seq[rows]), return_inverse=True)
    hit_tokens = np.zeros(len(moment) + 1, np.int64)
    np.maximum.at(hit_tokens, number, end)
    wanted = sort_key(residencies.birth_request, residencies.birth_seq)
    at = np.searchsorted(moment, wanted)
    return np.where(np.append(moment, -1)[at] == wanted, hit_tokens[at], 0)


def _check_copies(recording: Recording, copies: Copies, folder: Path) -> None:
    """Check that loads fill allocated blocks from slots with content, and that steps count all copies."""
    steps, file = recording.steps, folder / "copies.parquet"
    memory = recording.memory
    rows = np.flatnonzero(memory.kind == MemoryKind.APPEND)
    extent, offset = expanded(memory.length[rows])
    # Number the triples (request, address, seq), so that those of allocations and of copies can be compared.
    allocated = np.stack(
        (memory.request[rows][extent], memory.address[rows][extent] + offset, memory.seq[rows][extent])
    )
    copied = np.stack((copies.request, copies.address, steps.schedule_seq[copies.begun_step]))
    number = np.unique(np.concatenate((allocated, copied), axis=1), axis=1, return_inverse=True)[1].reshape(-1)
    is_allocated = np.isin(number[allocated.shape[1] :], number[: allocated.shape[1]])
    is_load = copies.kind == CopyKind.LOAD
    rule = "a load should fill a block that memory.parquet gives its request in that step"
    require(~is_load | is_allocated, file, rule)
    stored_in = np.full(int(copies.slot.max(initial=-1)) + 1, len(steps))
    np.minimum.at(stored_in, copies.slot[~is_load], copies.begun_step[~is_load])
    # In SGLang, a node that a pass evicts to the host may be loaded again in the same pass.
    latest = copies.begun_step - (recording.meta.policy_name != Radix.name)
    was_stored = stored_in[copies.slot] <= latest
    require(~is_load | was_stored, file, "a load should come from a slot that a step before has stored to")
    for column, units, chosen in (
        ("swapped_out_units", steps.swapped_out_units, ~is_load), ("swapped_in_units", steps.swapped_in_units, is_load)
    ):  # fmt: skip
        if units is not None:
            counted = np.bincount(copies.begun_step[chosen], minlength=len(steps))
            agree(units, counted, folder / "steps.parquet", column, "copies.parquet")
