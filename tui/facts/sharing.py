"""Facts about sharing for the inspector: the shared units of a request, and the other requests that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..look.wording import listed, plural

if TYPE_CHECKING:
    from ..playback.session import Session


def share_lines(session: Session, request: int) -> list[tuple[str, str]]:
    """Return the number of shared units of `request`, and their other holders, as labels and values.

    The result is empty if the request shares no unit.
    """
    replay, tables = session.replay, session.replay.ledger.tables
    _, addresses = replay.block_table(request)
    shared = np.unique(addresses[replay.refs[addresses - replay.first_unit] > 1])
    if not len(shared):
        return []
    runs = replay.alive()
    begin = tables.address[runs]
    holds = np.searchsorted(shared, begin + tables.length[runs]) > np.searchsorted(shared, begin)
    others = [row for row in np.unique(tables.request[runs][holds]).tolist() if row != request]
    names = [session.request_name(row) for row in others]
    return [("shares", plural(len(shared), session.unit_name)), ("with", listed(names, "request"))]
