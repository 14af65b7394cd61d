"""Figures from papers, posts and logs, each with its source, the band in which ours counts as the same, and the run
that reproduces it.

Only figures about memory and scheduling stand here. A figure outside its band is a failure and is reported as one.
"""

from kvsim.errors import UnknownNameError
from kvsim.published import branching, others, paged_attention
from kvsim.published.figures import Figure, Outcome, ProgressCallback, Row, reproduce
from kvsim.published.lengths import PairedLengths, paper_lengths

ROWS: tuple[Row, ...] = (*paged_attention.ROWS, *branching.ROWS, *others.ROWS)
"""Everything that can be reproduced."""


def find_row(name: str) -> Row:
    """The row called `name`.

    Raises:
        UnknownNameError: there is none.
    """
    for row in ROWS:
        if row.name == name:
            return row
    raise UnknownNameError("published figure", name, [row.name for row in ROWS])


__all__ = [
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
