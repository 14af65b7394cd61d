"""Check of the column `cached`: the number of units that stay cached when a request releases its units.

A unit stays cached if all its tokens were computed and their values were known.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvsim.errors import UsageError
from kvsim.kv_groups.group import CacheKind, KVCacheGroup
from kvsim.metrics.drafted_prefixes import CachedTokens, cached_with_drafts, dropping_groups
from kvsim.metrics.retained_prefixes import SPARSELY_CACHED, check_retained
from kvsim.policies import Radix
from kvsim.policies.releases import UNSTATED, LeftOut, ReleaseRules, defaults_of, number_of, rules_of
from kvsim.recording import Recording
from kvsim.recording.by_request import TokenSteps
from kvsim.recording.order import sort_key
from kvsim.recording.rules import NO_LIMIT, require
from kvsim.recording.tables import WHOLE_TABLE, IntArray, MemoryKind, TransferKind
from kvsim.replay import Replay

_RULE = "cached should be the units that are full of what schedule.parquet computed"


def check_kept_prefixes(replay: Replay, file: Path) -> None:
    """Check that `cached` of every release lies between the smallest and the largest number that is possible.

    Both numbers follow from the tokens that the request had computed. Recordings without prefix caching or without
    their beginning are not checked. `file` is named in errors.
    """
    recording, memory = replay.recording, replay.recording.memory
    meta, pool = recording.meta, recording.meta.pool
    if memory.cached is None or meta.begins_in_the_middle or not meta.prefix_caching:
        return
    if meta.policy_name == Radix.name:
        _check_kept_by_tree(replay, file)
        return
    rows, release = np.flatnonzero(memory.kind == MemoryKind.RELEASE), _release_of(recording)
    rules, is_sparse = rules_of(release), defaults_of(release).retention_tokens is not None
    group, aligned = memory.groups[rows], pool.unit_tokens
    size = np.array([each.block_size for each in pool.groups] or [aligned])[group]
    # Hits end at boundaries that all groups have in common, every `aligned` tokens. Before a boundary, a hit needs only
    # the last blocks of a window, so the others need not be cached.
    num_for_hit = np.array([_blocks_for_hit(each, aligned) for each in pool.groups] or [1])[group]
    per_boundary, position = aligned // size, memory.position[rows]
    serves_hit = (position % per_boundary >= per_boundary - num_for_hit) | _keeps_all(size, aligned, rules)
    is_whole, leaves_some_out = memory.address[rows] == WHOLE_TABLE, num_for_hit < per_boundary
    together = aligned if rules.caches_to_boundaries else int(np.gcd.reduce(np.unique(size), initial=0))

    def kept(tokens: IntArray, together: IntArray | int, serves_hit: IntArray) -> IntArray:
        """Return the `cached` that each row should have if the request has `tokens` tokens in the prefix cache.

        Units are cached in groups of `together` tokens, so `tokens` is rounded down to a multiple of it. `serves_hit`
        is True for each row with a block that is cached because a hit may need it; it has no effect for rows that
        release whole tables.
        """
        num_full = tokens // together * together // size
        return np.where(is_whole, np.where(leaves_some_out, 0, num_full), serves_hit & (position < num_full))

    least_tokens, most_tokens = _cached_tokens(replay, rows)
    least = kept(least_tokens, together, serves_hit)
    # With drafts, keys cover tokens after a boundary, and a hit that drops its last block needs one block more.
    dropping = dropping_groups(recording, release) if recording.has_drafts else ()
    most = kept(most_tokens, size if recording.has_drafts else together, serves_hit | np.isin(group, dropping))
    if "allocator" in meta.policy:  # a custom allocator may keep fewer units
        least = np.zeros_like(least)
    if meta.source != "simulation":  # a server may be configured to keep windows and states only at some boundaries
        least = np.where(is_whole & (memory.length[rows] > 0), least, 0)
    if is_sparse:  # newer versions do so by default
        least[np.isin(group, [index for index, each in enumerate(pool.groups) if each.kind in SPARSELY_CACHED])] = 0
    require((memory.cached[rows] >= least) & (memory.cached[rows] <= most), file, _RULE, rows)
    if is_sparse and pool.groups and meta.source == "simulation":
        least_of_rows, most_of_rows = np.zeros((2, len(memory)), np.int64)
        least_of_rows[rows], most_of_rows[rows] = least_tokens, most_tokens
        check_retained(replay, file, least=least_of_rows, most=most_of_rows, dropping=dropping)


def _check_kept_by_tree(replay: Replay, file: Path) -> None:
    """Check the pages that each request leaves in SGLang's tree.

    A finished request leaves all its full pages, and a retracted one at most its full pages. In a pool with windows, a
    finished request may leave fewer. This happens if the slots of windows of its prefix hit were evicted: then it
    leaves only the pages of the hit.
    """
    recording, memory, steps = replay.recording, replay.recording.memory, replay.recording.steps
    assert memory.cached is not None
    rows = memory.end_rows
    newest = np.searchsorted(steps.schedule_seq, memory.seq[rows], side="right") - 1
    # The pages of a step in flight are not put into the tree if the request is retracted.
    full = replay.progress.computed(memory.request[rows], newest) // recording.meta.pool.unit_tokens
    leaves_all = np.isin(memory.seq[rows], steps.output_seq) & (recording.meta.pool.windows is None)
    holds = np.where(leaves_all, memory.cached[rows] == full, memory.cached[rows] <= full)
    require(holds, file, _RULE, rows)


def _release_of(recording: Recording) -> str:
    """Return the vLLM release that the engine followed; `UNSTATED` if the recording states no valid release."""
    meta = recording.meta
    release = str(meta.stated_release)
    try:
        number_of(release)
    except UsageError:
        return UNSTATED
    return release


def _keeps_all(size: IntArray, aligned: int, rules: ReleaseRules) -> npt.NDArray[np.bool_]:
    """Tell, for each block size, whether the release also caches blocks of windows that no hit can need.

    `aligned` is the common boundary of all groups, in tokens.
    """
    return (rules.left_out is LeftOut.NONE) | ((rules.left_out is LeftOut.SMALLER) & (aligned <= size))


def _blocks_for_hit(group: KVCacheGroup, aligned: int) -> int:
    """Return the number of blocks of `group` that a hit needs before its end, which is a common boundary of all groups.

    The hit needs all blocks since the previous common boundary, or fewer if the group has a window. `aligned` is the
    number of tokens between two common boundaries.
    """
    per = aligned // group.block_size
    if group.kind is not CacheKind.SLIDING_WINDOW or group.window is None:
        return per
    return min(-(-(group.window - 1) // group.block_size), per)


def _cached_tokens(replay: Replay, rows: IntArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the smallest and the largest possible number of cached tokens at each of the releases in `rows`.

    A step caches the tokens that it computes. If a token is the output of an earlier step, it is cached only after this
    output was processed. A request that recomputes known tokens waits for no output.
    """
    recording, meta = replay.recording, replay.recording.meta
    request, seq = recording.memory.request[rows].astype(np.int64), recording.memory.seq[rows]
    previous_end = _step_of_previous_end(recording, request, seq)
    if recording.has_drafts:
        cached = cached_with_drafts(recording, rows, previous_end, _release_of(recording))
    else:
        cached = _cached_without_drafts(replay, request, seq, previous_end)
    least, most = cached.least, cached.most
    if recording.has_drafts and meta.exchanges_kv:  # blocks with a transfer are released later
        return np.zeros_like(least), np.full_like(most, NO_LIMIT)
    if recording.copies is not None or meta.exchanges_kv:
        return least, most
    if meta.policy.get("order", meta.engine.get("policy")) != "fcfs" or "rules" in meta.policy:
        # A step may preempt a request that it has just scheduled. The tokens of that step were cached at allocation but
        # not computed; the schedule has no row for them.
        moments, step = recording.steps.schedule_seq, recording.memory.step[rows]
        in_step = np.append(moments, -1)[np.minimum(step, len(moments))] == seq
        budget = meta.policy.get("max_num_batched_tokens", meta.policy.get("max_model_len", NO_LIMIT))
        in_this_step = np.minimum(cached.with_next_step, cached.computed + budget)
        most = np.where(in_step, np.maximum(most, in_this_step), most)
    return least, most


def _cached_without_drafts(replay: Replay, request: IntArray, seq: IntArray, previous_end: IntArray) -> CachedTokens:
    """Return the number of tokens that each request has in the prefix cache when it releases units at event `seq`.

    `previous_end` and the result are as in `cached_with_drafts`.
    """
    recording, progress = replay.recording, replay.progress
    moments = recording.steps.schedule_seq
    upto = np.searchsorted(moments, seq) - 1
    total, newest = progress.computed(request, upto), progress.newest_step(request, upto)
    before = _num_in_flight(replay, request, moments[newest], newest - 1)
    values = np.maximum(recording.requests.prompt_tokens[request], progress.reached(request, upto) + 1)
    if recording.copies is not None or recording.meta.exchanges_kv:  # blocks with a transfer are released later
        uncached, could_be = _loaded_but_not_cached(replay, request, seq, upto)
        least, most = total - np.maximum(before, uncached), total - np.where(could_be, 0, uncached)
        return CachedTokens(least, most, total, values)
    least = total - np.minimum(before, _num_in_flight(replay, request, seq, newest))
    known = progress.reached(request, previous_end) + 1
    return CachedTokens(least, np.where(total <= known, total, least), total, values)


def _loaded_but_not_cached(
    replay: Replay, request: IntArray, seq: IntArray, upto: IntArray
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return, for each request, the number of loaded tokens that no step has used, and whether they may be cached.

    Only the latest load that began up to `seq` counts; without such a load, the number is 0. Loaded blocks are cached
    in the first step after the end of their load is reported, so they may be cached if this was before `seq`. `upto` is
    the last step before the release.
    """
    transfers = replay.recording.transfers
    if transfers is None or not len(transfers):
        return np.zeros(len(request), np.int64), np.zeros(len(request), np.bool_)
    loads = np.flatnonzero(transfers.kind == TransferKind.LOAD)
    key = sort_key(transfers.request[loads], transfers.begun_seq[loads])
    loads, key = loads[np.argsort(key)], np.sort(key)
    at = np.searchsorted(key, sort_key(request, seq), side="right") - 1
    load = np.append(loads, 0)[at]
    waits = replay.progress.is_loading(request, upto) & (at >= 0) & (transfers.request[load] == request)
    reported = (transfers.ended_seq[load] >= 0) & (transfers.ended_seq[load] < seq)
    return np.where(waits, transfers.tokens[load], 0), waits & reported


def _num_in_flight(replay: Replay, request: IntArray, moment: IntArray, upto: IntArray) -> npt.NDArray[np.int64]:
    """Count, for each request, the steps up to `upto` whose output comes after the event number `moment`.

    Steps that give no output do not count.
    """
    recording, progress = replay.recording, replay.progress
    first = np.full(len(recording.requests), len(recording.steps))
    reached = TokenSteps.of(recording.schedule, recording.requests.prompt_tokens)
    first[reached.request] = reached.step
    since = np.maximum(np.searchsorted(recording.steps.output_seq, moment, side="right"), first[request])
    count: npt.NDArray[np.int64] = progress.num_steps(request, upto) - progress.num_steps(request, since - 1)
    return np.maximum(count, 0, out=count)


def _step_of_previous_end(recording: Recording, request: IntArray, seq: IntArray) -> npt.NDArray[np.int64]:
    """Return, for each request, the last step before its previous release of all memory; -1 if there is none.

    The previous release is the latest one before the event number `seq`.
    """
    memory, ends = recording.memory, recording.memory.end_rows
    key = sort_key(memory.request[ends], memory.seq[ends])
    ends, key = ends[np.argsort(key)], np.sort(key)
    at = np.searchsorted(key, sort_key(request, seq)) - 1
    same = (at >= 0) & (memory.request[ends[at]] == request)
    return np.where(same, np.searchsorted(recording.steps.schedule_seq, memory.seq[ends[at]]) - 1, -1)
