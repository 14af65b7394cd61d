"""What a lesson says at one moment of its run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Caption:
    """A caption whose moment has been found in the run, with its figures in place."""

    frame: int
    """Of the player that plays the lesson."""
    title: str
    text: str
    follow: int | None = None
    """The request that it is about, which is followed from here on; None leaves it as it is."""
