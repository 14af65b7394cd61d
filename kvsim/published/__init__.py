"""Published figures from papers, posts and logs, with their sources, tolerance bands and the runs that reproduce them.

Figures about memory and scheduling are reproduced. Figures about speed are predicted without tuning, and some of those
predictions are far off. A figure outside its band is reported as a failure.
"""

from kvsim.errors import UnknownNameError
from kvsim.published import branching, others, paged_attention, posts
from kvsim.published.figures import Figure, Outcome, Row, reproduce
from kvsim.published.lengths import paper_lengths

REPRODUCTIONS: tuple[Row, ...] = (*paged_attention.ROWS, *branching.ROWS, *others.ROWS)
"""Figures about memory and scheduling."""
ROWS: tuple[Row, ...] = (*REPRODUCTIONS, *posts.ROWS)
"""All published figures."""


def find_row(name: str) -> Row:
    """Return the row called `name`.

    Raises:
        UnknownNameError: there is none.
    """
    for row in ROWS:
        if row.name == name:
            return row
    raise UnknownNameError("published figure", name, [row.name for row in ROWS], listed_by="kvsim reproduce --list")


__all__ = ["REPRODUCTIONS", "ROWS", "Figure", "Outcome", "Row", "find_row", "paper_lengths", "reproduce"]
