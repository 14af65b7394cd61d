"""What several figures of one recording need, worked out once: opening a long recording costs more than drawing it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from kvsim.metrics import Waste, waste
from kvsim.replay import Replay

if TYPE_CHECKING:
    from kvsim.recording import Recording


@lru_cache(maxsize=4)  # as many recordings as one figure compares
def replay_of(recording: Recording) -> Replay:
    """The recording, ready to seek in; a caller must not count on where it stands.

    Raises:
        RecordingError: it has no steps.
    """
    return Replay(recording)


@lru_cache(maxsize=16)
def waste_of(recording: Recording) -> Waste:
    """The recording's slots by state over time.

    Raises:
        RecordingError: it has no steps.
    """
    return waste(replay_of(recording))
