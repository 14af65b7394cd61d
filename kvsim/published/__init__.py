"""Published figures from papers, posts and logs, with their sources, tolerances and the runs that reproduce them.

Figures about memory and scheduling are reproduced. Figures about speed are predicted without tuning, and some
predictions are far off. A simulated figure outside its tolerance is reported as a failure.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from kvsim.errors import UnknownNameError
from kvsim.published import branching, others, paged_attention, posts
from kvsim.published.figures import Figure, PublishedRow, Reproduction, reproduce
from kvsim.published.length_tables import paper_lengths

_REPRODUCE = paged_attention.REPRODUCE | branching.REPRODUCE | others.REPRODUCE | posts.REPRODUCE


def _row(stated: dict[str, Any]) -> PublishedRow:
    return PublishedRow(
        **{key: stated[key] for key in ("name", "title", "source", "band")},
        figures=tuple(Figure.of(label, figure, stated) for label, figure in stated["figures"].items()),
        reproduce=_REPRODUCE[stated["name"]],
        note=stated.get("note", ""),
        ceilings=posts.CEILINGS.get(stated["name"]),
    )


ROWS = tuple(map(_row, tomllib.loads(Path(__file__).with_name("rows.toml").read_text(encoding="utf-8"))["row"]))
"""Published rows: tables, diagrams and sentences with their figures."""
REPRODUCTIONS = tuple(row for row in ROWS if row.name not in posts.REPRODUCE)
"""Published rows about memory and scheduling, which kvsim must reproduce. Rows about speed are not among them."""


def find_row(name: str) -> PublishedRow:
    """Return the row called `name`.

    Raises:
        UnknownNameError: there is no such row.
    """
    for row in ROWS:
        if row.name == name:
            return row
    raise UnknownNameError("published figure", name, [row.name for row in ROWS], listed_by="kvsim reproduce --list")


__all__ = ["REPRODUCTIONS", "ROWS", "Figure", "PublishedRow", "Reproduction", "find_row", "paper_lengths", "reproduce"]
