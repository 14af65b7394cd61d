"""Meanings of colour: the first one, and the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .paint import ColorBy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.replay.replay import Replay


def default_color(replay: Replay) -> ColorBy:
    """Return the first meaning of colour: the owner; the state in rectangles, which are about padding."""
    meta = replay.recording.meta
    return ColorBy.STATE if meta.policy_name == "static" or meta.extra.get("coarse") else ColorBy.OWNER


def next_color(color_by: ColorBy, replays: Iterable[Replay]) -> ColorBy:
    """Return the next meaning of colour in the pools of `replays`; skip meanings that give all units one colour."""
    metas = [replay.recording.meta for replay in replays]
    pointless = set()
    if not any(meta.pool.groups for meta in metas):
        pointless.add(ColorBy.LAYERS)
    if not any(meta.prefix_caching for meta in metas):
        pointless.add(ColorBy.SHARING)
    order = [one for one in ColorBy if one not in pointless]
    return order[(order.index(color_by) + 1) % len(order)]
