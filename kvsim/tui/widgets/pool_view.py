"""The pool: every unit of memory, coloured by whose it is, what it is doing, how many hold it, or how old it is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
from rich.segment import Segment
from textual.binding import Binding, BindingType
from textual.cache import LRUCache
from textual.filter import ANSIToTruecolor
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from kvsim.replay.ledger import NO_OWNER

from ..pool.brush import BLANK, Brush
from ..pool.canvas import Canvas
from ..pool.colors import default_color
from ..pool.flash import FLASH_S, Flash
from ..pool.lines import Lines
from ..pool.paint import ColorBy
from ..pool.tiling import one_cell
from ..pool.zoom import Zoom

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.filter import LineFilter

    from kvsim.replay.replay import Replay

    from ..look.states import Symbols
    from ..pool.tiling import Tiling


class PoolView(ScrollView, can_focus=True, inherit_bindings=False):
    """A scrollable picture of the pool with a cursor. Repaints only the lines that came out differently."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1, 0)", "Move left", show=False, id="pool.left"),
        Binding("right,l", "move(1, 0)", "Move right", show=False, id="pool.right"),
        Binding("up,k", "move(0, -1)", "Move up", show=False, id="pool.up"),
        Binding("down,j", "move(0, 1)", "Move down", show=False, id="pool.down"),
        Binding("enter", "follow", "Follow", id="pool.follow"),
        Binding("escape", "leave", "Leave pool", show=False, id="pool.leave"),
    ]

    class Selected(Message):
        """The cursor stands on another unit; None where there is no cursor any more."""

        def __init__(self, pool: PoolView, unit: int | None) -> None:
            super().__init__()
            self.pool = pool
            self.unit = unit

    class Hovered(Message):
        """The mouse is over another unit; None where it is over none."""

        def __init__(self, pool: PoolView, unit: int | None) -> None:
            super().__init__()
            self.pool = pool
            self.unit = unit

    class Follow(Message):
        """The user asks to follow a request, or None."""

        def __init__(self, pool: PoolView, request: int | None) -> None:
            super().__init__()
            self.pool = pool
            self.request = request

    def __init__(
        self,
        replay: Replay,
        symbols: Symbols,
        *,
        id: str = "pool",  # noqa: A002 - Textual's name
        heading: str | None = None,
        color_by: ColorBy | None = None,
        flash_s: float = FLASH_S,
        slots: bool = True,
    ) -> None:
        """Args: what to show, how to draw it, what to call it where it is one of several, what colour means, how long
        changes are lit up, and whether single slots may be shown.
        """
        super().__init__(id=id)
        self.border_title = heading  # where there is no room for a picture, it still says whose figures follow
        self._symbols = symbols
        self._zoom = Zoom(heading, half_blocks=symbols.color, slots=slots)
        self._hovered: int | None = None
        self._flash_s = flash_s
        self._color_by = color_by
        self._brush = Brush(symbols)
        self._strips: LRUCache[bytes, Strip] = LRUCache(1024)
        self.num_lines_painted = 0
        """Lines asked to be painted again so far: what the frame budget is counted in."""
        self._take(replay)

    def open(self, replay: Replay) -> None:
        """Show the pool of `replay` from now on, at the level of detail and with the cursor of the last one."""
        cursor, followed = self._canvas.cursor, self._canvas.followed
        self._color_by = self.color_by
        self._take(replay)
        self._canvas.cursor, self._canvas.followed = cursor, followed
        self._measure()

    def _take(self, replay: Replay) -> None:
        self._replay = replay
        self._lines = Lines(replay)
        self._stride = self._stride_now()
        self._canvas = Canvas(
            replay,
            one_cell(replay.num_units),
            half_blocks=self._symbols.color,
            color_by=self._color_by or default_color(replay),
        )
        self._frame = replay.frame
        self._flash = Flash(replay, self._flash_s)
        self._zoom.forget()
        self._keys = np.empty((0, 0), np.int32)

    @property
    def cursor(self) -> int | None:
        """The selected unit, from 0 in address order."""
        return self._canvas.cursor

    @property
    def color_by(self) -> ColorBy:
        """What colour means."""
        return self._canvas.color_by

    @color_by.setter
    def color_by(self, color_by: ColorBy) -> None:
        self._canvas.color_by = color_by
        self._show_title()
        self._repaint()

    @property
    def tiling(self) -> Tiling:
        """What the cells are at the current level of detail."""
        return self._canvas.tiling

    def get_line_filters(self) -> Sequence[LineFilter]:
        """All filters but one that these colours do not need, and that would cost a third of a frame."""
        return [item for item in super().get_line_filters() if not isinstance(item, ANSIToTruecolor)]

    def notify_style_update(self) -> None:
        """Draw in the colours of another theme."""
        super().notify_style_update()
        self._brush = Brush(self._symbols)
        self._strips.clear()

    def show_frame(self) -> None:
        """Follow the replay to its current frame, and light up what has changed on the way."""
        before, self._frame = self._frame, self._replay.frame
        self._canvas.update()
        if self._flash.flash_s > 0 and self._frame != before:
            self._light_up(before)
        stride = self._stride_now()
        if stride != self._stride:
            self._stride = stride
            self._measure()
        else:
            self._repaint()

    def _light_up(self, before: int) -> None:
        """Light up what has changed since frame `before`, and put it out later."""
        if self._flash.see(before, time.monotonic()):
            self.set_timer(self._flash.flash_s * 1.05, self._put_out)
        self._canvas.light_up(self._flash.lights(time.monotonic()))

    def _put_out(self) -> None:
        self._canvas.light_up(self._flash.lights(time.monotonic()))
        self._repaint()

    def follow(self, request: int | None) -> None:
        """Put everything into shade except what `request` holds; None lights everything."""
        self._canvas.followed = request
        self._repaint()

    def zoom(self, direction: int) -> bool:
        """Show more (1) or less (-1) detail around the cursor; return whether there is such a level."""
        moved = self._zoom.move(direction)
        if moved:
            self._show_level()
        return moved

    def select(self, unit: int) -> None:
        """Put the cursor on `unit`, and scroll to it."""
        self._canvas.cursor = unit
        self._scroll_to_cursor()
        self._repaint()
        self.post_message(self.Selected(self, unit))

    def action_move(self, right: int, down: int) -> None:
        """Move the cursor by cells."""
        if self.cursor is None:
            self.select(self._unit_at(0, 0) or 0)
        else:
            self.select(self._canvas.moved(self.cursor, right, down))

    def action_follow(self) -> None:
        """Follow the request that holds the selected unit, or else another one of the cell's."""
        if self.cursor is None:
            return
        cell = self.tiling.units_of(int(self.tiling.cell_of(np.array([self.cursor]))[0]))
        owners = self._replay.owner[np.append(self.cursor, cell)]
        held = owners[owners != NO_OWNER]
        self.post_message(self.Follow(self, int(held[0]) if len(held) else None))

    def action_leave(self) -> None:
        """Follow no request, select nothing, and give the arrow keys back to the player."""
        self._canvas.cursor = None
        self._repaint()
        self.post_message(self.Selected(self, None))
        self.post_message(self.Follow(self, None))
        self.screen.set_focus(None)

    def on_click(self, event: events.Click) -> None:
        """Select the unit under the mouse; a double click follows its request."""
        at = event.get_content_offset(self)
        unit = None if at is None else self._unit_at(at.x, at.y)
        if unit is None:
            return
        self.select(unit)
        if event.chain > 1:
            self.action_follow()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Say what is under the mouse."""
        at = event.get_content_offset(self)
        self._hover(None if at is None else self._unit_at(at.x, at.y))

    def on_leave(self) -> None:
        """Nothing is under the mouse any more."""
        self._hover(None)

    def _hover(self, unit: int | None) -> None:
        if unit != self._hovered:
            self._hovered = unit
            self.post_message(self.Hovered(self, unit))

    def on_resize(self) -> None:
        """Make the picture as large as the widget."""
        self._measure()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Paint the lines that came into view."""
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            self._repaint()

    def render_line(self, y: int) -> Strip:
        """One line of the picture."""
        width = self.size.width
        if not 0 <= y < len(self._keys):
            return Strip.blank(width, self._brush[BLANK][1])
        left = self.scroll_offset.x
        row = self._keys[y, left : left + width]
        name = row.tobytes()
        strip = self._strips.get(name)
        if strip is None:
            strip = self._strips[name] = self._strip(row).adjust_cell_length(width, self._brush[BLANK][1])
        return strip

    def _strip(self, row: npt.NDArray[np.int32]) -> Strip:
        ends = np.append(np.flatnonzero(row[1:] != row[:-1]) + 1, len(row)).tolist()
        segments, begin = [], 0
        for end in ends:
            character, style = self._brush[int(row[begin])]
            segments.append(Segment(character * (end - begin), style))
            begin = end
        return Strip(segments, len(row))

    def _unit_at(self, x: int, y: int) -> int | None:
        return self._canvas.unit_at(x + self.scroll_offset.x, y + self.scroll_offset.y)

    def _stride_now(self) -> int | None:
        return self._lines.length_at(int(self._replay.frame_seq[self._replay.frame]))

    def _measure(self) -> None:
        """Find the levels of detail for this size."""
        width, height = self.size
        if not width or not height:
            return
        self._zoom.measure(self._replay, width, height, self._stride)
        self._show_level()

    def _show_level(self) -> None:
        self._canvas.tiling = self._zoom.tiling
        self._show_title()
        self._strips.clear()
        self._keys = np.empty((0, 0), np.int32)
        self.virtual_size = Size(self.tiling.width, self._canvas.height)
        # Left to itself, a scrollbar that was needed for a moment while the screen was laid out would stay.
        self.styles.overflow_x = "auto" if self.tiling.width > self.size.width else "hidden"
        self._scroll_to_cursor()
        self._repaint()

    def _show_title(self) -> None:
        if self._zoom.ready:
            self.border_title = self._zoom.title(self._replay.unit_tokens, self.color_by, self._symbols)

    def _scroll_to_cursor(self) -> None:
        if self.cursor is not None:
            x, y = self._canvas.place_of(self.cursor)
            self.scroll_to_region(Region(x, y, self.tiling.wide, 1), animate=False, force=True)

    def _repaint(self) -> None:
        """Draw what is in view, and ask for the lines that came out differently."""
        width, height = self.size
        if not self._zoom.ready or not width or not height:
            return
        keys = self._canvas.draw(self.scroll_offset.y, height)
        if keys.shape == self._keys.shape:
            regions = self._regions(keys != self._keys)
        else:
            regions = [Region(0, y, width, 1) for y in range(height)]
        self._keys = keys
        self.num_lines_painted += len(regions)
        if regions:
            self.refresh(*regions)

    def _regions(self, changed: npt.NDArray[np.bool_]) -> list[Region]:
        """From the first character that has changed to the last one, in each line: over a slow line, more would be
        felt, and so would a stretch for each change.
        """
        lines = np.flatnonzero(changed.any(axis=1))
        first = changed[lines].argmax(axis=1) - self.scroll_offset.x
        last = changed.shape[1] - 1 - changed[lines, ::-1].argmax(axis=1) - self.scroll_offset.x
        stretches = zip(lines.tolist(), first.tolist(), last.tolist(), strict=True)
        return [Region(begin, line, end + 1 - begin, 1) for line, begin, end in stretches]
