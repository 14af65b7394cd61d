"""Inspector: panel with the facts about the selected unit and the followed request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from textual.strip import Strip

from kvsim.memory.waste import SlotState
from kvsim.replay.unfolding import NO_OWNER

from ..facts.requests import request_facts, request_lines
from ..facts.tree import tree_lines
from ..facts.units import unit_heading, unit_lines, unit_story
from ..look.wording import plural
from ..pool.colors import paint_of
from .panel import LABEL_WIDTH, Panel
from .waste_bar import state_bar

if TYPE_CHECKING:
    from rich.segment import Segment

    from ..look.states import Symbols
    from ..playback.session import Session


_MOST_FORMER_HOLDERS = 3


class Inspector(Panel):
    """Facts about the selected unit, or else the unit under the mouse, and about the followed request."""

    def __init__(self, session: Session, symbols: Symbols) -> None:
        super().__init__(session, symbols, id="inspector")
        self.border_title = "inspector"

    def write(self) -> list[Strip]:
        """Return lines about the unit, then about the request.

        Former holders of the unit are left out if room is short.
        """
        lines = self._everything(num_stays=_MOST_FORMER_HOLDERS)
        self.num_lines, height = len(lines), max(self.size.height, 1)
        if len(lines) > height:
            lines = self._everything(num_stays=0)
        if len(lines) > height:
            more = f"{self.symbols.cut} {plural(len(lines) - height + 1, 'line')} more"
            lines = [*lines[: height - 1], Strip([self.text(more, "weak")])]
        return lines

    def _everything(self, num_stays: int) -> list[Strip]:
        """Return all lines: of the unit at the cursor, and of the followed request."""
        session = self.session
        lines = []
        if session.selected is not None:
            unit = session.selected
            lines += [self._unit_heading(unit)]
            of_unit = unit_lines(session, unit) + tree_lines(session, unit)
            lines += self.labelled(of_unit + unit_story(session, unit, num_stays))
        elif session.hovered is not None:
            # The facts of the tooltip are shown here, too.
            lines += [self._unit_heading(session.hovered)]
            lines += self.labelled(unit_lines(session, session.hovered))
        else:
            by_owner = self.screen.has_class("-by-owner")
            words = "click a strip: its request" if by_owner else f"tab, arrows or click: a {session.unit_name}"
            lines += [Strip([self.text(words, "weak")])]
        lines.append(self.blank())
        if session.followed is None:
            return [*lines, Strip([self.text("enter or / follows a request", "weak")])]
        facts = request_facts(session, session.followed)
        heading = self.text(f"request {session.request_name(session.followed)} ", "strong")
        lines.append(Strip([heading, *self._color_sample(session.followed)]))
        lines += self.labelled(request_lines(session, session.followed, facts))
        if facts.holds:
            label = self.text("its slots".ljust(LABEL_WIDTH), "label")
            bar = state_bar(np.array(facts.slots), self.size.width - LABEL_WIDTH, self.symbols, named=False)
            lines += [Strip([label, *bar])]
        return lines

    def _unit_heading(self, unit: int) -> Strip:
        """Return the name of a unit, and a sample of its owner's colour, which the cursor hides in the picture."""
        owner = int(self.session.replay.owner[unit])
        sample = [] if owner == NO_OWNER else self._color_sample(owner)
        return Strip([self.text(f"{unit_heading(self.session, unit)} ", "strong"), *sample])

    def _color_sample(self, request: int) -> list[Segment]:
        paint = paint_of(self.session, request)
        return [] if paint == SlotState.TOKEN else [self.sample(paint)]
