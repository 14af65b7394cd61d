"""What a run is about: where to begin, and what to say about the whole of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Where to begin, and what to say about the whole run."""

    frame: int
    parts: tuple[str, ...]
    """Parts of the headline, from the most to the least important."""
