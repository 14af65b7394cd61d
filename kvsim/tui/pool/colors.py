"""What colour means at first, and next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .paint import ColorBy

if TYPE_CHECKING:
    from kvsim.recording.replay import Replay


def default_color(replay: Replay) -> ColorBy:
    """What colour means at first: whose memory it is; in rectangles, which are about padding, what it is doing."""
    meta = replay.recording.meta
    return ColorBy.STATE if meta.policy_name == "static" or meta.extra.get("coarse") else ColorBy.OWNER


def next_color(color_by: ColorBy, *, shares: bool = True) -> ColorBy:
    """What colour means next; sharing only where memory can be shared."""
    order = [one for one in ColorBy if shares or one is not ColorBy.SHARING]
    return order[(order.index(color_by) + 1) % len(order)]
