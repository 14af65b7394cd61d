"""The pieces that free memory lies in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kvsim.recording.tables import IntArray
    from kvsim.replay.replay import Replay


def free_run_lengths(replay: Replay) -> IntArray:
    """Units in each run of free neighbours, in address order, at the current frame; a cached prefix is free too."""
    free = np.concatenate(([False], replay.refs == 0, [False]))
    edges = np.flatnonzero(np.diff(free.astype(np.int8)))
    return edges[1::2] - edges[::2]
