"""Figures from papers, posts and logs, each with its source, the band in which ours counts as the same, and the run
that reproduces it.

Figures about memory and scheduling are reproduced; figures about speed are predicted, without tuning to them, and some
of those predictions are far off. A figure outside its band is a failure and is reported as one.
"""

from kvsim.errors import UnknownNameError
from kvsim.published import branching, others, paged_attention, posts, windows
from kvsim.published.figures import Figure, Outcome, ProgressCallback, Row, reproduce
from kvsim.published.lengths import PairedLengths, paper_lengths

REPRODUCTIONS: tuple[Row, ...] = (*paged_attention.ROWS, *branching.ROWS, *others.ROWS, *windows.ROWS)
"""Figures about memory and scheduling."""
PREDICTIONS: tuple[Row, ...] = posts.ROWS
"""Figures about speed, from machines that no profile was fitted on."""
ROWS: tuple[Row, ...] = (*REPRODUCTIONS, *PREDICTIONS)
"""Everything that can be asked for."""


def find_row(name: str) -> Row:
    """The row called `name`.

    Raises:
        UnknownNameError: there is none.
    """
    for row in ROWS:
        if row.name == name:
            return row
    raise UnknownNameError("published figure", name, [row.name for row in ROWS], listed_by="kvsim reproduce --list")


__all__ = [
    "PREDICTIONS",
    "REPRODUCTIONS",
    "ROWS",
    "Figure",
    "Outcome",
    "PairedLengths",
    "ProgressCallback",
    "Row",
    "find_row",
    "paper_lengths",
    "reproduce",
]
