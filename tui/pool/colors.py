"""What colour means at first, and next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .paint import ColorBy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.replay.replay import Replay


def default_color(replay: Replay) -> ColorBy:
    """What colour means at first: whose memory it is; in rectangles, which are about padding, what it is doing."""
    meta = replay.recording.meta
    return ColorBy.STATE if meta.policy_name == "static" or meta.extra.get("coarse") else ColorBy.OWNER


def next_color(color_by: ColorBy, replays: Iterable[Replay]) -> ColorBy:
    """What colour means next in the pools of `replays`; layers and sharing only where that tells anything apart."""
    metas = [replay.recording.meta for replay in replays]
    pointless = set()
    if not any(meta.pool.groups for meta in metas):
        pointless.add(ColorBy.LAYERS)
    if not any(meta.prefix_caching for meta in metas):
        pointless.add(ColorBy.SHARING)
    order = [one for one in ColorBy if one not in pointless]
    return order[(order.index(color_by) + 1) % len(order)]
