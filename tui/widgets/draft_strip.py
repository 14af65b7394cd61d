"""Panel with the last slots of one request, below the pool, to show speculative decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..facts.draft_slots import draft_slots
from ..pool.strip_cells import DRAFTS, DraftSlots, draft_keys
from .drawn_panel import DrawnPanel

if TYPE_CHECKING:
    from textual.strip import Strip

    from ..look.states import Symbols
    from ..playback.session import Session


class DraftStrip(DrawnPanel):
    """Last slots of the followed request: known, under way, rejected, lookahead.

    If no request is followed, the strip shows the running request that got its memory first.
    """

    def __init__(self, session: Session, symbols: Symbols) -> None:
        super().__init__(session, symbols, id="drafts")

    def show_frame(self) -> None:
        slots = draft_slots(self.session)
        if self.size.width:
            titles: tuple[str, ...] = ("drafts: no request holds memory",)
            if slots is not None:
                titles = titles_of(slots, self.session.request_name(slots.request))
            self.show_title(titles)
        super().show_frame()

    def write(self) -> list[Strip]:
        slots = draft_slots(self.session)
        if slots is None:
            return []
        return self.lines_of(draft_keys(slots, self.size.width, half_blocks=self.symbols.color), DRAFTS)


def titles_of(slots: DraftSlots, name: str) -> tuple[str, ...]:
    """Return the title, then a shorter one for narrow screens."""
    figures = f"{slots.known:,} known, {slots.under_way:,} under way"
    return (
        f"drafts of {name}: {figures}, {slots.num_rejected:,} were taken back, {slots.lookahead:,} lookahead",
        f"{name}: {slots.under_way:,} under way, {slots.num_rejected:,} back, {slots.lookahead:,} ahead",
    )
