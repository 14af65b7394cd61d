"""Facts about the node of a slot in SGLang's radix tree: its length, who locks it, and when it can be evicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsim.replay.unfolding import NO_OWNER

from ..look.wording import plural, seconds

if TYPE_CHECKING:
    from ..playback.session import Session


def tree_lines(session: Session, unit: int) -> list[tuple[str, str]]:
    """Return the facts about a unit's node as labels and values; empty without a tree, or if the unit is free.

    A node consists of consecutive entries of one block table. They are all cached; or none is, and all have the same
    number of holders.
    """
    replay, meta = session.replay, session.recording.meta
    if meta.policy_name != "radix" or not meta.prefix_caching:
        return []
    owner, is_cached = int(replay.owner[unit]), bool(replay.cached[unit])
    if owner == NO_OWNER and not is_cached:
        return []
    frame = session.player.frame
    last = max((stay for stay in session.stays(unit) if stay.begin_frame <= frame), key=lambda stay: stay.end_frame)
    # A cached unit has no holder now: look at the table of its last holder, one frame before the release.
    holder = last.request if is_cached else owner
    at = last.end_frame - 1 if is_cached else frame
    runs = replay.ledger.tables.at(replay.ledger.tables.held(holder, int(replay.frame_seq[at])))
    units, places = runs.address.astype(np.int64) - replay.first_unit, runs.position.astype(np.int64)
    alike = replay.cached[units] if is_cached else replay.refs[units] == replay.refs[unit]
    if not is_cached:
        in_tree = places < in_tree_units(session, holder)
        if not in_tree[units == unit].any():
            return [("in the tree", "not yet: an answer goes there when it ends")]
        alike = alike & in_tree
    begin, end = _range_around(alike, int(np.flatnonzero(units == unit)[0]))
    size = replay.unit_tokens
    tokens = f"tokens {places[begin] * size + 1:,} to {(places[end - 1] + 1) * size:,}"
    lines = [("node in the tree", f"{plural(end - begin, session.unit_name)}, {tokens}")]
    if not is_cached:
        return [*lines, ("locked by", plural(int(replay.refs[unit]), "request"))]
    age_s = float(session.times_s[frame]) - float(session.times_s[last.end_frame])
    ago = seconds(max(age_s, 0.0), session.player.duration_s / 1000)
    unless = ", unless a copy locks it" if session.is_copying else ""
    return [*lines, ("locked by", f"no request: it can be evicted{unless}"), ("given up", f"{ago} ago")]


def in_tree_units(session: Session, request: int) -> int:
    """Return how many leading units of a running request are in the tree: the computed full units of its prompt."""
    replay, prompt = session.replay, int(session.recording.requests.prompt_tokens[request])
    computed = int(replay.computed(np.array([request]))[0])
    return min(computed, prompt) // replay.unit_tokens


def _range_around(alike: npt.NDArray[np.bool_], place: int) -> tuple[int, int]:
    """Return the longest range [begin, end) around index `place` in which `alike` is true."""
    other = np.flatnonzero(~alike)
    nth = int(np.searchsorted(other, place))
    begin = int(other[nth - 1]) + 1 if nth else 0
    return begin, int(other[nth]) if nth < len(other) else len(alike)
