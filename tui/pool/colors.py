"""Choice of the meaning of colour: the default for a recording, and the next one when the user changes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.memory.waste import SlotState
from kvsim.metrics.names import tells_owners

from .paint import FOLLOWED, OWNER, ColorBy, hue_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.replay.replay import Replay

    from ..playback.session import Session


def paint_of(session: Session, request: int) -> int:
    """Return the paint of the slots that `request` has written: its hue.

    If there are too few hues for all requests, it is `FOLLOWED` for the request with a colour of its own
    (`Session.marked`), and the paint of tokens for others.
    """
    if tells_owners(session.recording):
        return OWNER + hue_of(request)
    return FOLLOWED if request == session.marked else int(SlotState.TOKEN)


def default_color(replay: Replay) -> ColorBy:
    """Return the default meaning of colour: the owner or, for static batches, the state, which shows padding."""
    return ColorBy.STATE if replay.recording.meta.policy_name == "static" else ColorBy.OWNER


def next_color(color_by: ColorBy, replays: Iterable[Replay]) -> ColorBy:
    """Return the meaning of colour after `color_by`.

    Meanings that would give all units of `replays` one colour are skipped.
    """
    metas = [replay.recording.meta for replay in replays]
    skipped = set()
    if not any(meta.pool.groups for meta in metas):
        skipped.add(ColorBy.LAYERS)
    if not any(meta.prefix_caching for meta in metas):
        skipped.add(ColorBy.SHARING)
    order = [meaning for meaning in ColorBy if meaning not in skipped]
    return order[(order.index(color_by) + 1) % len(order)]
