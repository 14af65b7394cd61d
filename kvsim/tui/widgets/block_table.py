"""Where the followed request's tokens are: its block table, or a row for each kind of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.segment import Segment
from textual.strip import Strip

from ..facts.group_tables import AHEAD, HELD, LET_GO, table_rows, uniform_words
from .panel import Panel

if TYPE_CHECKING:
    from kvsim.recording.tables import IntArray

    from ..look.states import Symbols
    from ..playback.session import Session


_MOST_LINES = 13
"""Lines of a table that takes as many as it needs."""


class BlockTable(Panel):
    """Where the followed request's tokens are: logical units to physical ones."""

    def __init__(self, session: Session, symbols: Symbols) -> None:
        super().__init__(session, symbols, id="table")
        unit = session.unit_name
        several = len(session.replay.groups) > 1
        self.border_title = (
            f"{unit} tables, by kind of layers" if several else f"{unit} table: logical {symbols.arrow} physical"
        )

    def write(self) -> list[Strip]:
        """Runs of neighbouring units, newest last; the newest are kept where there are too many."""
        session = self.session
        if session.followed is None:
            return [Strip([self.text("follow a request to see its table", "weak")])]
        positions, addresses = session.replay.block_table(session.followed)
        if not len(positions):
            return [Strip([self.text("it holds no memory now", "weak")])]
        if len(session.replay.groups) > 1:
            return self._group_rows(session.followed)
        order = np.argsort(positions)
        entries = [self._entry(*run) for run in _runs(positions[order], addresses[order])]
        width = max(map(len, entries)) + 2
        per_line = max(self.size.width // width, 1)
        room = (_MOST_LINES if self.styles.is_auto_height else max(self.size.height, 1)) * per_line
        hidden = len(entries) - room
        if hidden > 0:
            more = self.symbols.cut + f" {hidden + 1:,} more"
            entries = [more[: width - 1], *entries[hidden + 1 :]]
        return [
            Strip([self.text("".join(entry.ljust(width) for entry in entries[at : at + per_line]))])
            for at in range(0, len(entries), per_line)
        ]

    def _group_rows(self, request: int) -> list[Strip]:
        """A row of blocks for each kind of layers: what is held of the sequence, and what its window has let go."""
        width = max(self.size.width - 2, 8)
        glyphs = {LET_GO: self.symbols.dot, HELD: self.symbols.up[-1], AHEAD: " "}
        strips = []
        for row in table_rows(self.session, request, width):
            sample = self.sample(row.kind.paint)
            let_go = f", {row.num_let_go:,} let go" if row.num_let_go else ""
            strips += [
                Strip([sample, self.text(f" {row.kind.words}", "strong")]),
                Strip([Segment("".join(glyphs[part] for part in row.parts), sample.style)]),
                Strip([self.text(f"{row.num_held:,} held{let_go}", "weak")]),
            ]
        if words := uniform_words(self.session, request):
            strips.append(Strip([self.text(words, "weak")]))
        return strips

    def _entry(self, position: int, address: int, length: int) -> str:
        arrow, dash = self.symbols.arrow, self.symbols.dash
        if length == 1:
            return f"{position}{arrow}{address}"
        return f"{position}{dash}{position + length - 1} {arrow} {address}{dash}{address + length - 1}"


def _runs(positions: IntArray, addresses: IntArray) -> list[tuple[int, int, int]]:
    """Runs of neighbours that stay neighbours, as (position, address, length); blocks of short runs stand alone."""
    breaks = np.flatnonzero((np.diff(positions) != 1) | (np.diff(addresses) != 1)) + 1
    begins = np.concatenate(([0], breaks))
    lengths = np.diff(np.append(begins, len(positions)))
    return list(zip(positions[begins].tolist(), addresses[begins].tolist(), lengths.tolist(), strict=True))
