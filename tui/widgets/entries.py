"""Layout of entries in a line: an entry is shown whole or not at all."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.strip import Strip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.style import Style


def num_that_fit(entries: Sequence[list[Segment]], room: int) -> int:
    """Return how many of the leading `entries` fit into `room` characters; 1 if none fits."""
    ends = accumulate(sum(segment.cell_length for segment in entry) for entry in entries)
    return max(sum(end <= room for end in ends), 1)


def whole_entries(entries: Sequence[list[Segment]], room: int, style: Style, cut: str, others: str = "more") -> Strip:
    """Return the leading `entries` that fit into `room` characters, then the number of entries left out.

    The noun `others` follows that number. The first entry is always shown; if it does not fit, `cut` replaces its end.
    """
    for kept in range(len(entries), 0, -1):
        shown = Strip(segment for entry in entries[:kept] for segment in entry)
        hidden = len(entries) - kept
        more = Strip([Segment(f" +{hidden} {others}", style)] if hidden else [])
        if shown.cell_length + more.cell_length <= room:
            return Strip.join([shown, more])
    if not entries:
        return Strip([])
    return Strip.join([shown.crop(0, room - more.cell_length - len(cut)), Strip([Segment(cut, style)]), more])
