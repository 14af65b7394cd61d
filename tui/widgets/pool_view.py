"""Picture of the pool that reacts to keyboard and mouse: the user selects units and follows requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from textual.binding import Binding, BindingType
from textual.message import Message

from kvsim.replay.unfolding import NO_OWNER

from .pool_picture import PoolPicture

if TYPE_CHECKING:
    from textual import events


class PoolView(PoolPicture, can_focus=True, inherit_bindings=False):
    """A picture of the pool with a cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1, 0)", "Move left", show=False, id="pool.left"),
        Binding("right,l", "move(1, 0)", "Move right", show=False, id="pool.right"),
        Binding("up,k", "move(0, -1)", "Move up", show=False, id="pool.up"),
        Binding("down,j", "move(0, 1)", "Move down", show=False, id="pool.down"),
        Binding("enter", "follow", "Follow", id="pool.follow"),
        Binding("escape", "leave", "Leave pool", show=False, id="pool.leave"),
    ]

    @dataclass
    class Selected(Message):
        """The cursor is on another unit, or was removed (None)."""

        pool: PoolView
        unit: int | None

    @dataclass
    class Hovered(Message):
        """The mouse is over another unit, or over no unit (None)."""

        pool: PoolView
        unit: int | None

    @dataclass
    class Follow(Message):
        """The user wants to follow a request, or no request (None)."""

        pool: PoolView
        request: int | None

    _hovered: int | None = None

    def select(self, unit: int) -> None:
        """Put the cursor on `unit`, and scroll to it."""
        self._canvas.cursor = unit
        self._scroll_to_cursor()
        self._repaint()
        self.post_message(self.Selected(self, unit))

    def action_move(self, right: int, down: int) -> None:
        if self.cursor is None:
            self.select(self._unit_at(0, 0) or 0)
        else:
            self.select(self._canvas.moved(self.cursor, right, down))

    def action_follow(self) -> None:
        """Follow the request that holds the selected unit.

        If none does, follow a request that holds another unit of the same cell of the picture. If there is none, follow
        no request.
        """
        if self.cursor is None:
            return
        cell = self.tiling.units_of(int(self.tiling.cell_of(np.array([self.cursor]))[0]))
        owners = self._replay.owner[np.append(self.cursor, cell)]
        held = owners[owners != NO_OWNER]
        self.post_message(self.Follow(self, int(held[0]) if len(held) else None))

    def action_leave(self) -> None:
        """Follow no request, and remove the cursor and the focus, so that arrow keys control playback again."""
        self._canvas.cursor = None
        self._repaint()
        self.post_message(self.Selected(self, None))
        self.post_message(self.Follow(self, None))
        self.screen.set_focus(None)

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        unit = None if at is None else self._unit_at(at.x, at.y)
        if unit is None:
            return
        self.select(unit)
        if event.chain > 1:
            self.action_follow()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        at = event.get_content_offset(self)
        self._hover(None if at is None else self._unit_at(at.x, at.y))

    def on_leave(self) -> None:
        self._hover(None)

    def _hover(self, unit: int | None) -> None:
        if unit != self._hovered:
            self._hovered = unit
            self.post_message(self.Hovered(self, unit))

    def _unit_at(self, x: int, y: int) -> int | None:
        return self._canvas.unit_at(x + self.scroll_offset.x, y + self.scroll_offset.y)
