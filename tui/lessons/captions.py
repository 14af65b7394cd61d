"""What a lesson says at one moment of its run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Caption:
    """A caption whose moment has been found in the run, with its figures in place."""

    frame: int
    """The frame of the player that plays the lesson."""
    title: str
    text: str
    follow: str | None = None
    """The id of the request that it is about, which is followed; None lights the whole pool."""
