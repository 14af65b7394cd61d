"""Meanings of colour: the first one, and the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.memory.waste import SlotState
from kvsim.metrics.names import tells_owners

from .paint import OWNER, ColorBy, hue_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.replay.replay import Replay

    from ..playback.session import Session


def paint_of(session: Session, request: int) -> int:
    """Return the paint of what `request` has written: its hue where hues mean owners or it is followed."""
    is_hued = request == session.followed or tells_owners(session.recording)
    return OWNER + hue_of(request) if is_hued else int(SlotState.TOKEN)


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
